package observe

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"margay/cluster/control"
	"margay/tools/margay/command"
)

func (a commands) metricsCommand() *cobra.Command {
	var listen string
	c := a.QuietFlag(&cobra.Command{
		Use:   "metrics",
		Short: "Print figures of the machine for Prometheus, or serve them",
		Long: `Print figures of the machine, its nodes and its jobs in the text format of Prometheus, or serve them at /metrics until it is
interrupted. It asks serve for each answer. When serve does not answer, margay_up is 0 and nothing else is there.

The figures are not secret to anything that reaches the address: they have the number of jobs and the state of the nodes, but
neither users nor commands. Any user of the machine may serve them.`,
		Example: `  margay metrics
  margay metrics --listen 127.0.0.1:9846`,
		Args: command.NoArguments,
		RunE: func(c *cobra.Command, _ []string) error {
			if listen != "" {
				return a.serveMetrics(c.Context(), listen)
			}
			figures, err := a.metrics(c.Context())
			if err != nil {
				return err
			}
			return figures.write(a.Stdout)
		},
	})
	c.Flags().StringVar(&listen, "listen", "", "serve the figures at this `HOST:PORT`")
	return c
}

// Bounds of what clients of the server can take. An answer takes at most command.AnswerTimeout for
// each of the questions to serve.
const (
	metricsHeader  = 10 * time.Second
	metricsAnswer  = time.Minute
	metricsClients = 16
)

// serveMetrics serves the figures until it is interrupted.
func (a commands) serveMetrics(ctx context.Context, address string) error {
	if _, err := a.Socket(); err != nil {
		return err
	}
	ctx, stop := command.Interruptible(ctx, unix.SIGINT, unix.SIGTERM, unix.SIGHUP)
	defer stop()
	l, err := net.Listen("tcp", address)
	if err != nil {
		return fmt.Errorf("metrics: --listen %s: %w", address, err)
	}
	a.Report("figures of machine %s are at http://%v/metrics", a.Machine, l.Addr())
	s := &http.Server{Handler: a.metricsHandler(), ReadHeaderTimeout: metricsHeader, WriteTimeout: metricsAnswer, IdleTimeout: metricsAnswer}
	end := context.AfterFunc(ctx, func() { s.Close() })
	defer end()
	if err := s.Serve(l); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return context.Cause(ctx)
}

// metricsHandler answers with the figures. Requests beyond metricsClients at a time are refused.
func (a commands) metricsHandler() http.Handler {
	places := make(chan struct{}, metricsClients)
	mux := http.NewServeMux()
	mux.HandleFunc("GET /metrics", func(w http.ResponseWriter, r *http.Request) {
		select {
		case places <- struct{}{}:
			defer func() { <-places }()
		default:
			http.Error(w, "too many requests at a time", http.StatusServiceUnavailable)
			return
		}
		figures, err := a.metrics(r.Context())
		if err != nil {
			figures = nil
			figures.add(upMetric, "gauge", upHelp, 0)
		}
		w.Header().Set("Content-Type", mediaType)
		_ = figures.write(w) // the client is gone
	})
	return mux
}

const (
	upMetric = "margay_up"
	upHelp   = "Whether serve of the machine has answered."
)

// metrics asks serve for all figures.
func (a commands) metrics(ctx context.Context) (families, error) {
	status, err := command.Ask[*control.MachineStatus](ctx, a.App, &control.Status{})
	if err != nil {
		return nil, err
	}
	nodes, err := command.Ask[*control.Nodes](ctx, a.App, &control.ListNodes{})
	if err != nil {
		return nil, err
	}
	jobs, err := command.Ask[*control.Jobs](ctx, a.App, &control.ListJobs{})
	if err != nil {
		return nil, err
	}
	return figuresOf(status, nodes, jobs), nil
}

// phaseNames are the words for the phases of jobs that have not ended.
var phaseNames = map[control.JobPhase]string{
	control.JobPhase_JOB_PREPARED: "launching",
	control.JobPhase_JOB_RUNNING:  "running",
	control.JobPhase_JOB_ENDING:   "ending",
}

// figuresOf returns the figures. A node that is not up has few.
func figuresOf(status *control.MachineStatus, nodes *control.Nodes, jobs *control.Jobs) (f families) {
	f.add(upMetric, "gauge", upHelp, 1)
	f.add("margay_machine_info", "gauge", "The machine.", 1, "machine", status.Machine, "substrate", status.Substrate)
	f.add("margay_serve_start_time_seconds", "gauge", "When serve was started, since the epoch.", float64(status.SinceNs)/1e9)
	f.add("margay_serve_starts_total", "counter", "How often serve was started.", float64(status.ServeStarts))
	f.add("margay_history_unwritten_jobs", "gauge", "Ended jobs that the history lacks.", float64(status.Unwritten))
	f.add("margay_cores", "gauge", "Application cores of nodes that are up.", float64(status.Cores))
	f.add("margay_free_cores", "gauge", "Cores on which a job can start.", float64(status.FreeCores))

	states := make(map[string]int)
	for _, n := range nodes.Nodes {
		states[State(n)]++
	}
	for _, state := range nodeStates {
		f.add("margay_nodes", "gauge", "Nodes in each state of margay nodes.", float64(states[state]), "state", state)
	}
	phases := make(map[string]int)
	for _, j := range jobs.Jobs {
		phases[phaseNames[j.Phase]]++
	}
	for _, w := range jobs.Waiting {
		phases["waiting"] += max(1, int(w.Tasks))
	}
	for _, phase := range []string{"waiting", "launching", "running", "ending"} {
		f.add("margay_jobs", "gauge", "Jobs that have not ended. Waiting ones have no cores yet; 1000 of them are counted at most.", float64(phases[phase]), "phase", phase)
	}
	for _, n := range nodes.Nodes {
		f.ofNode(n)
	}
	return f
}

// nodeStates are all that State returns.
var nodeStates = []string{"up", "draining", "drained", "ill", "booting", "late", "dead", "refused", "off", "waiting"}

// ofNode adds the figures of a node.
func (f *families) ofNode(n *control.NodeState) {
	name, up, there := fmt.Sprintf("node%d", n.Node), 0.0, false
	if n.Health == control.NodeHealth_NODE_UP {
		up, there = 1, true
	}
	f.add("margay_node_up", "gauge", "Whether the node is up.", up, "node", name)
	f.add("margay_node_boots_total", "counter", "Boots that it took the node to come up.", float64(n.Boots), "node", name)
	if !there || n.Info == nil {
		return
	}
	f.add("margay_node_info", "gauge", "The node.", 1, "node", name, "host", n.Info.Hostname, "arch", n.Info.Arch, "kernel", n.Info.Kernel,
		"profile", n.Info.Profile, "fabric", n.Info.Fabric, "image", n.Info.Image)
	busy, ranks := 0, 0
	for _, c := range n.Cores {
		if c.Job != 0 {
			busy++
		}
		ranks += len(c.Ranks)
	}
	f.add("margay_node_cores", "gauge", "Application cores of the node.", float64(len(n.Cores)), "node", name)
	f.add("margay_node_busy_cores", "gauge", "Cores of the node that a job has.", float64(busy), "node", name)
	f.add("margay_node_ranks", "gauge", "Ranks on the node.", float64(ranks), "node", name)
	f.add("margay_node_memory_bytes", "gauge", "Memory of the node for jobs.", float64(n.Info.Memory), "node", name)
	f.add("margay_node_free_memory_bytes", "gauge", "The part of it that is free.", float64(n.FreeMemory), "node", name)
	f.add("margay_node_silent_seconds", "gauge", "Time since the last heartbeat of the node.", float64(n.SilentMs)/1e3, "node", name)
	f.add("margay_node_up_seconds", "gauge", "Time since the node has registered.", float64(n.UpMs)/1e3, "node", name)
	if v := n.Vitals; v != nil && v.Space >= 0 {
		f.add("margay_node_tmp_free_bytes", "gauge", "Free bytes in /tmp of the node.", float64(v.Space), "node", name)
	}
	if v := n.Vitals; v != nil && v.ClockErrorNs >= 0 {
		f.add("margay_node_clock_offset_seconds", "gauge", "How far the node's clock is ahead of serve's.", float64(v.ClockNs)/1e9, "node", name)
	}
}
