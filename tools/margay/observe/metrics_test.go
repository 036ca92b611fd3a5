package observe_test

import (
	"bufio"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"

	"margay/cluster/control"
	"margay/tools/margay/margaytest"
	"margay/tools/margay/observe"
)

// playFigures answers for a machine with four nodes.
func playFigures(request proto.Message) (proto.Message, error) {
	switch request.(type) {
	case *control.Status:
		return &control.MachineStatus{Machine: `m"\`, Substrate: "hosted", Cores: 4, FreeCores: 1, SinceNs: 1500000000, ServeStarts: 3, Unwritten: 2}, nil
	case *control.ListNodes:
		info := &control.NodeInfo{Hostname: "h\n1", Arch: "amd64", Kernel: "9.9", Profile: "shared", Fabric: "udp", Memory: 64 << 20}
		cores := []*control.CoreUse{{Core: 1, Job: 4, Ranks: []uint32{0, 2}}, {Core: 2}}
		return &control.Nodes{Nodes: []*control.NodeState{
			{Node: 0, Health: control.NodeHealth_NODE_UP, Info: info, Cores: cores, FreeMemory: 32 << 20, Boots: 1, UpMs: 2500, SilentMs: 250,
				Vitals: &control.Vitals{Space: 5 << 20, ClockNs: -1e6}},
			{Node: 1, Health: control.NodeHealth_NODE_UP, Drain: &control.Drain{State: control.DrainState_DRAIN_DRAINED}, Vitals: &control.Vitals{Space: -1, ClockErrorNs: -1}, Info: info},
			{Node: 2, Health: control.NodeHealth_NODE_DEAD, Info: info, Cores: cores, Boots: 4},
			{Node: 7, Health: control.NodeHealth_NODE_BOOTING},
		}}, nil
	case *control.ListJobs:
		return &control.Jobs{
			Jobs:    []*control.JobSummary{{Job: 4, User: "ann", Command: "secret", Phase: control.JobPhase_JOB_RUNNING}, {Job: 5, Phase: control.JobPhase_JOB_PREPARED}},
			Waiting: []*control.WaitingJob{{User: "bob"}, {Array: 9, Tasks: 40}},
		}, nil
	}
	return nil, control.Failf(control.Code_CODE_REFUSED, "unexpected %T", request)
}

// The figures are in the text format of Prometheus. Nodes that are not up have no figures but that,
// users and commands are in none.
func TestMetrics(t *testing.T) {
	status, stdout, stderr := margaytest.Played(t, playFigures, "metrics")
	if status != 0 {
		t.Fatalf("status %d, %s", status, stderr)
	}
	for _, want := range []string{
		"# HELP margay_up Whether serve of the machine has answered.\n# TYPE margay_up gauge\nmargay_up 1\n",
		"margay_machine_info{machine=\"m\\\"\\\\\",substrate=\"hosted\"} 1\n", "margay_serve_start_time_seconds 1.5\n",
		"# TYPE margay_serve_starts_total counter\nmargay_serve_starts_total 3\n", "margay_history_unwritten_jobs 2\n",
		"margay_cores 4\n", "margay_free_cores 1\n",
		"margay_nodes{state=\"up\"} 1\nmargay_nodes{state=\"draining\"} 0\nmargay_nodes{state=\"drained\"} 1\n", "margay_nodes{state=\"dead\"} 1\n", "margay_nodes{state=\"booting\"} 1\n",
		"margay_jobs{phase=\"waiting\"} 41\nmargay_jobs{phase=\"launching\"} 1\nmargay_jobs{phase=\"running\"} 1\nmargay_jobs{phase=\"ending\"} 0\n",
		"margay_node_up{node=\"node0\"} 1\nmargay_node_up{node=\"node1\"} 1\nmargay_node_up{node=\"node2\"} 0\nmargay_node_up{node=\"node7\"} 0\n",
		"margay_node_boots_total{node=\"node2\"} 4\n",
		"margay_node_info{node=\"node0\",host=\"h\\n1\",arch=\"amd64\",kernel=\"9.9\",profile=\"shared\",fabric=\"udp\",image=\"\"} 1\n",
		"margay_node_cores{node=\"node0\"} 2\nmargay_node_cores{node=\"node1\"} 0\n", "margay_node_busy_cores{node=\"node0\"} 1\n", "margay_node_ranks{node=\"node0\"} 2\n",
		"margay_node_memory_bytes{node=\"node0\"} 6.7108864e+07\n", "margay_node_free_memory_bytes{node=\"node0\"} 3.3554432e+07\n",
		"margay_node_silent_seconds{node=\"node0\"} 0.25\n", "margay_node_up_seconds{node=\"node0\"} 2.5\n",
		"gauge\nmargay_node_tmp_free_bytes{node=\"node0\"} 5.24288e+06\n#", "gauge\nmargay_node_clock_offset_seconds{node=\"node0\"} -0.001\n",
	} {
		if !strings.Contains(stdout, want) {
			t.Errorf("%q is missing in\n%s", want, stdout)
		}
	}
	for _, secret := range []string{"secret", "ann", "bob", `cores{node="node2"`, `info{node="node2"`} {
		if strings.Contains(stdout, secret) {
			t.Errorf("there is %q in\n%s", secret, stdout)
		}
	}
	if lines := strings.Count(stdout, "# TYPE margay_node_cores "); lines != 1 {
		t.Errorf("a metric begins %d times", lines)
	}
}

// Every state of a node is counted.
func TestMetricsOfStates(t *testing.T) {
	_, stdout, _ := margaytest.Played(t, playFigures, "metrics")
	for _, state := range observe.States() {
		if !strings.Contains(stdout, `margay_nodes{state="`+state+`"} `) {
			t.Errorf("state %s is not counted", state)
		}
	}
}

// The server answers as the command, says that serve does not answer, and has nothing else.
func TestMetricsServed(t *testing.T) {
	var silent atomic.Bool
	m := margaytest.Play(t, "m", func(c *control.Conn, f *control.Frame) {
		answer, err := playFigures(f.Message())
		if silent.Load() {
			err = control.Failf(control.Code_CODE_FAILED, "not now")
		}
		c.Answer(f, answer, err)
	})
	server := httptest.NewServer(observe.MetricsHandler(m.Name))
	defer server.Close()
	get := func(path string) (int, string, string) {
		t.Helper()
		r, err := http.Get(server.URL + path)
		if err != nil {
			t.Fatal(err)
		}
		defer r.Body.Close()
		text, err := io.ReadAll(r.Body)
		if err != nil {
			t.Fatal(err)
		}
		return r.StatusCode, r.Header.Get("Content-Type"), string(text)
	}
	if status, kind, text := get("/metrics"); status != http.StatusOK || !strings.HasPrefix(kind, "text/plain; version=0.0.4") || !strings.Contains(text, "margay_free_cores 1\n") {
		t.Errorf("%d, %s\n%s", status, kind, text)
	}
	if status, _, _ := get("/"); status != http.StatusNotFound {
		t.Errorf("/ has status %d", status)
	}
	silent.Store(true)
	if status, _, text := get("/metrics"); status != http.StatusOK || !strings.HasSuffix(text, "\nmargay_up 0\n") || strings.Count(text, "\n") != 3 {
		t.Errorf("%d\n%s", status, text)
	}
}

// The address is printed, and a signal ends the server. An address that is taken is named.
func TestMetricsListen(t *testing.T) {
	margaytest.Play(t, "m", func(c *control.Conn, f *control.Frame) {
		answer, err := playFigures(f.Message())
		c.Answer(f, answer, err)
	})
	p := margaytest.Shell(t, "exec $0 metrics --listen 127.0.0.1:0")
	p.Stderr = nil
	words, err := p.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	p.Begin()
	line, err := bufio.NewReader(words).ReadString('\n')
	url := strings.TrimPrefix(strings.TrimSpace(line), "figures of machine m are at ")
	if err != nil || !strings.HasPrefix(url, "http://127.0.0.1:") {
		t.Fatalf("%q, %v", line, err)
	}
	r, err := http.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	r.Body.Close()
	address := strings.TrimSuffix(strings.TrimPrefix(url, "http://"), "/metrics")
	status, _, stderr := margaytest.Margay("", "metrics", "--listen", address)
	margaytest.Wants(t, status, 125, stderr, "metrics: --listen "+address, "address already in use")
	p.Signal(unix.SIGTERM)
	p.Ends(unix.SIGTERM, true, 0)
}
