package machine

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"margay/cluster/control"
	"margay/cluster/hosts"
	"margay/cluster/roster"
	"margay/cluster/trust"
	"margay/internal/check"
	"margay/kernel/abi/id"
)

// playedHosts is a launcher whose hosts do what their names say.
const playedHosts = `
offer() { echo "margay-node-offer {\"protocol\":$1,\"version\":\"0.1\",\"arch\":\"$2\",\"address\":\"127.0.0.1\",\"cpus\":$3,\"error\":\"$4\"}"; }
case $1 in
down) echo "connect to host down port 22: Connection refused" >&2; exit 255;;
old) echo 'margay-node-offer {"protocol":3,"version":"0.1"}';;
foreign) offer VERSION alpha 2;;
walled) offer VERSION ARCH 2 "it does not reach the machine's serve";;
mute) offer VERSION ARCH 0;;
silent) exec sleep 1000;;
deaf) offer VERSION ARCH 3; read config; echo up; exec sleep 1000;;
*)	echo "Welcome to $1"
	offer VERSION ARCH 3
	read config
	echo "$0 $* got $config" | tr -d ' '
	echo up
	cat >/dev/null;;
esac
exit 3
`

// remoteOf returns the substrate of a machine of played hosts.
func remoteOf(t *testing.T, names ...string) *remote {
	t.Helper()
	base(t)
	d := created(t, "m")
	if err := os.MkdirAll(filepath.Dir(d.ConsoleLog(0)), 0o700); err != nil {
		t.Fatal(err)
	}
	authority, err := trust.NewAuthority("m")
	if err != nil {
		t.Fatal(err)
	}
	script := filepath.Join(t.TempDir(), "launcher")
	text := strings.NewReplacer("VERSION", fmt.Sprint(control.Version), "ARCH", runtime.GOARCH).Replace(playedHosts)
	if err := os.WriteFile(script, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	r, err := newRemote(Spec{
		Name: "m", Hosts: names, Launcher: hosts.Launcher{"/bin/sh", script}, Program: "/bin/nodekernel", Address: "127.0.0.1:0", Secret: "s", Fabric: "tcp",
	}, d, authority)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := r.close(); err != nil {
			t.Error(err)
		}
	})
	return r
}

// A host without a node is named with the reason, and stays without one.
func TestHostsRefused(t *testing.T) {
	reasons := map[string]string{
		"down":    "its launcher ended before it had started the node: exit status 255",
		"old":     fmt.Sprintf("its margay 0.1 speaks version 3 of the control protocol, this one version %d: use one build on all hosts", control.Version),
		"foreign": "its architecture is alpha, this host has " + runtime.GOARCH,
		"walled":  "it does not reach the machine's serve",
		"mute":    "its offer of a node: 0 CPUs, a host has 1 to 4096",
	}
	var names []string
	for name := range reasons {
		names = append(names, name)
	}
	r := remoteOf(t, names...)
	for number, name := range names {
		_, ended, err := r.start(id.Node(number), 1)
		if err != nil {
			t.Fatal(err)
		}
		e := <-ended
		if want := "host " + name + ": " + reasons[name]; e.Reason != want || !e.Off {
			t.Errorf("%s: %q, off: %v", name, e.Reason, e.Off)
		}
		if name == "down" && (len(e.Console) != 1 || !strings.Contains(e.Console[0], "Connection refused")) {
			t.Errorf("the console is %q", e.Console)
		}
	}
	if _, _, err := r.start(id.Node(len(names)), 1); err == nil {
		t.Error("a node without a host starts")
	}
}

// A host that says nothing is given up, and a launcher that does not end is killed.
func TestHostsHang(t *testing.T) {
	r := remoteOf(t, "silent", "deaf")
	r.endWait = 10 * time.Millisecond
	_, ended, err := r.start(1, 1)
	if err != nil {
		t.Fatal(err)
	}
	check.AwaitFor(t, patience, "its console", func() bool { return strings.Contains(tailOf(r, 1), "up") })
	r.stop(1)
	if e := <-ended; e.Off || e.Reason != "host deaf: its launcher ended: signal: killed" {
		t.Errorf("%+v", e)
	}
	r.offerWait = 10 * time.Millisecond
	_, ended, err = r.start(0, 1)
	if err != nil {
		t.Fatal(err)
	}
	if e := <-ended; !e.Off || e.Reason != "host silent: its launcher has not started the node within 10ms" {
		t.Errorf("%+v", e)
	}
}

func tailOf(r *remote, number id.Node) string {
	return strings.Join(tail(r.dir.ConsoleLog(number), 10), "\n")
}

// A node gets its configuration, with the token, by standard input and not in its arguments. It
// ends with its input.
func TestHostsStart(t *testing.T) {
	r := remoteOf(t, "a", "b")
	_, ended, err := r.start(1, 2)
	if err != nil {
		t.Fatal(err)
	}
	check.AwaitFor(t, patience, "its console", func() bool { return strings.Contains(tailOf(r, 1), "up") })
	text := tailOf(r, 1)
	token := trust.NodeToken("s", 1, 2)
	arguments, config, _ := strings.Cut(text, "got")
	for _, want := range []string{
		`"host":"b"`, `"substrate":"hosted"`, `"address":"127.0.0.1/32"`, fmt.Sprintf(`"serve":"%v"`, r.serve), `"cores":2`, token,
	} {
		if !strings.Contains(strings.ReplaceAll(config, "\n", ""), want) {
			t.Errorf("the configuration lacks %s:\n%s", want, config)
		}
	}
	if strings.Contains(arguments, token) || !strings.Contains(arguments, "b/bin/nodekernelstart"+r.serve.String()) {
		t.Errorf("the launcher has the arguments %s", arguments)
	}
	r.stop(1)
	if e := <-ended; e.Off || e.Reason != "host b: its launcher ended: exit status 3" {
		t.Errorf("%+v", e)
	}
}

// A machine of hosts ends when no host has a node that runs or is started again.
func TestHostsLost(t *testing.T) {
	h := &holder{spec: Spec{Hosts: []string{"a", "b"}}, roster: roster.New(2), nodes: map[id.Node]*heldNode{0: {number: 0}, 1: {number: 1}}, log: t.Logf}
	over := 0
	h.over = func() { over++ }
	step := func(what string, want int) {
		t.Helper()
		if over != want {
			t.Errorf("after %s it has ended %d times", what, over)
		}
	}
	h.nodeExited(h.nodes[0], exit{Off: true})
	h.nodeExited(h.nodes[1], exit{Off: true})
	step("hosts without a node at the beginning, which machine up reports", 0)

	h.nodes[0].exit, h.nodes[1].exit = nil, nil
	h.nodeUp(&control.NodeUp{Node: 0})
	h.nodeExited(h.nodes[1], exit{Off: true})
	step("the end of one node", 0)
	h.nodeExited(h.nodes[0], exit{})
	step("the end of a node that is started again", 0)
	h.nodeExited(h.nodes[0], exit{Off: true})
	h.nodeExited(h.nodes[1], exit{Off: true})
	step("the end of all nodes", 1)
	if !h.vacated {
		t.Error("its folder stays")
	}

	// A node that an operator has switched off keeps the machine.
	h.vacated, h.nodes[0].exit = false, nil
	h.nodes[1].life.switchOff("by op")
	h.nodeOff(h.nodes[1])
	h.nodeExited(h.nodes[0], exit{Off: true})
	if h.vacated {
		t.Error("the machine has ended beside a node that is off")
	}
}

// A machine of hosts grows by no more than them.
func TestHostsGrow(t *testing.T) {
	h := &holder{spec: Spec{Name: "m", Hosts: []string{"a", "b"}}, roster: roster.New(2), log: t.Logf}
	if added, err := h.grow(t.Context(), t.Context(), &control.GrowMachine{Count: 1}); !errors.Is(err, &control.Failure{Code: control.Code_CODE_NO_ROOM}) ||
		!strings.Contains(err.Error(), "the machine was made of 2 hosts, and 2 of them have a node") {
		t.Errorf("%v, %v", added, err)
	}
}

// The machine ends with the process that it was made for.
func TestHoldUntil(t *testing.T) {
	session := exec.Command("cat")
	end, err := session.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := session.Start(); err != nil {
		t.Fatal(err)
	}
	fd, err := unix.PidfdOpen(session.Process.Pid, 0)
	if err != nil {
		t.Fatal(err)
	}
	process := os.NewFile(uintptr(fd), "process")
	defer process.Close()
	over := make(chan struct{})
	h := &holder{log: t.Logf, over: func() { close(over) }}
	watched := make(chan struct{})
	go func() {
		defer close(watched)
		h.watch(process)
	}()
	end.Close()
	if err := session.Wait(); err != nil {
		t.Fatal(err)
	}
	<-over
	<-watched
	if !h.vacated {
		t.Error("its folder stays")
	}
}

// machine up reports the hosts that it does without, each once, and needs one.
func TestHostsMissing(t *testing.T) {
	state := func(node uint32, health control.NodeHealth) *control.NodeState {
		return &control.NodeState{Node: node, Health: health, Reason: "why"}
	}
	const up, booting, dead, refused = control.NodeHealth_NODE_UP, control.NodeHealth_NODE_BOOTING, control.NodeHealth_NODE_DEAD, control.NodeHealth_NODE_REFUSED
	var lost []string
	w := &rising{
		told: t.Logf, lost: func(format string, args ...any) { lost = append(lost, fmt.Sprintf(format, args...)) },
		up: make(map[uint32]bool), again: make(map[uint32]string), stages: make(map[uint32]string), missing: make(map[uint32]bool),
	}
	for range 2 {
		if done, err := w.look([]*control.NodeState{state(0, booting), state(1, dead), state(2, refused)}); done || err != nil {
			t.Errorf("%v, %v", done, err)
		}
	}
	if got := strings.Join(lost, "; "); got != "node1 did not come up: why; node2 was refused: why" {
		t.Error(got)
	}
	if _, err := w.look([]*control.NodeState{state(0, dead), state(1, dead), state(2, refused)}); err == nil || err.Error() != "none of the nodes came up" {
		t.Error(err)
	}
	if done, err := w.look([]*control.NodeState{state(0, up), state(1, dead), state(2, refused)}); !done || err != nil {
		t.Errorf("%v, %v", done, err)
	}
}

func TestHostSpecs(t *testing.T) {
	s := Spec{Substrate: "hosts", Hosts: []string{"127.0.0.1", "127.0.0.2"}, Launcher: hosts.Launcher{"sh"}, Program: "/bin/true"}
	if err := s.complete(); err != nil {
		t.Fatal(err)
	}
	if s.Nodes != 2 || s.Cores != 0 || s.MemoryMiB != 0 || s.Fabric != "tcp" || s.Address != "127.0.0.1:0" || !filepath.IsAbs(s.Launcher[0]) {
		t.Errorf("it becomes %+v", s)
	}
	for want, change := range map[string]func(*Spec){
		"needs a list of them":                                 func(s *Spec) { s.Hosts = nil },
		`"a b" is not the name of a host`:                      func(s *Spec) { s.Hosts = []string{"a b"} },
		"cannot be passed to another host":                     func(s *Spec) { s.Program = "/my programs/nodekernel" },
		"the launcher: exec: \"no-such-launcher\"":             func(s *Spec) { s.Launcher = hosts.Launcher{"no-such-launcher"} },
		`"0.0.0.0" is not an IPv4 address of this host`:        func(s *Spec) { s.Address = "0.0.0.0" },
		`"::1" is not an IPv4 address of this host`:            func(s *Spec) { s.Address = "::1" },
		`"10.0.0.1:99999" is not an IPv4 address of this host`: func(s *Spec) { s.Address = "10.0.0.1:99999" },
		"a node has 1 to 254 application cores, not 255":       func(s *Spec) { s.Cores = 255 },
	} {
		bad := s
		change(&bad)
		if err := bad.complete(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", want, err)
		}
	}
}
