package machine

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"sync"
	"syscall"
	"time"

	"margay/cluster/control"
	"margay/cluster/starter"
	"margay/cluster/trust"
	"margay/kernel/abi/id"
	"margay/kernel/abi/node"
	"margay/qemu/child"
	"margay/qemu/console"
)

// offerWait bounds how long a launcher may take until the starter on its host offers a node.
const offerWait = time.Minute

// launcherWait bounds how long a launcher may take to end when its input has ended. Then it is
// killed.
const launcherWait = 2 * time.Second

// ownMemory is how many bytes a node keeps for itself of the memory that a batch system has given,
// but at most half. Without a limit the node finds out how much it can give to jobs.
const ownMemory = 128 << 20

// remote runs each node on a host of its own, by a launcher that runs for as long as the node does.
type remote struct {
	spec   Spec
	dir    Dir
	cert   []byte
	serve  netip.AddrPort // where nodes find serve
	socket *os.File       // that listens there

	offerWait, endWait time.Duration

	mu    sync.Mutex
	nodes map[id.Node]*launch
}

// launch is a launcher that runs.
type launch struct {
	host string
	cmd  *exec.Cmd
	in   io.WriteCloser // to the starter
	out  io.Closer      // from the starter
	read *bufio.Reader  // of out
	log  *console.Log
	over chan struct{} // closed when it has ended

	offerWait, endWait time.Duration
}

// newRemote opens the socket on which each serve listens to nodes. It stays open between two of
// them.
func newRemote(s Spec, d Dir, a *trust.Authority) (*remote, error) {
	l, err := net.Listen("tcp4", s.Address)
	if err != nil {
		return nil, fmt.Errorf("listen to the nodes of other hosts (--address): %w", err)
	}
	defer l.Close()
	socket, err := l.(*net.TCPListener).File()
	if err != nil {
		return nil, fmt.Errorf("listen to the nodes of other hosts: %w", err)
	}
	return &remote{
		spec: s, dir: d, cert: a.Certificate(), serve: l.Addr().(*net.TCPAddr).AddrPort(), socket: socket,
		offerWait: offerWait, endWait: launcherWait, nodes: make(map[id.Node]*launch),
	}, nil
}

// start implements substrate.
func (r *remote) start(number id.Node, term uint32) (int, <-chan exit, error) {
	if int(number) >= len(r.spec.Hosts) {
		return 0, nil, fmt.Errorf("node%d has no host", number)
	}
	log, err := console.New(console.Config{Path: r.dir.ConsoleLog(number)})
	if err != nil {
		return 0, nil, err
	}
	l, err := r.launch(r.spec.Hosts[number], log)
	if err != nil {
		return 0, nil, errors.Join(err, log.Close())
	}
	r.mu.Lock()
	r.nodes[number] = l
	r.mu.Unlock()
	ended := make(chan exit, 1)
	go func() {
		ended <- l.hold(func(o starter.Offer) (node.Config, error) { return r.accept(o, number, term) })
		log.Close()
	}()
	return l.cmd.Process.Pid, ended, nil
}

// launch starts the launcher of a host.
func (r *remote) launch(host string, log *console.Log) (*launch, error) {
	words, err := r.spec.Launcher.Command(host, r.spec.Program, "start", r.serve.String())
	if err != nil {
		return nil, err
	}
	cmd := exec.Command(words[0], words[1:]...)
	cmd.Dir = "/"
	cmd.Stderr = log
	cmd.WaitDelay = r.endWait
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, w, err := os.Pipe()
	if err != nil {
		return nil, errors.Join(err, in.Close())
	}
	defer w.Close()
	cmd.Stdout = w
	if err := child.Start(cmd); err != nil {
		return nil, errors.Join(fmt.Errorf("launcher for host %s: %w", host, err), in.Close(), out.Close())
	}
	l := &launch{
		host: host, cmd: cmd, in: in, out: out, read: bufio.NewReader(out), log: log, over: make(chan struct{}), offerWait: r.offerWait, endWait: r.endWait,
	}
	go l.wait()
	return l, nil
}

// accept checks the offer of a host, and returns the configuration of its node.
func (r *remote) accept(o starter.Offer, number id.Node, term uint32) (node.Config, error) {
	switch {
	case o.Protocol != control.Version:
		return node.Config{}, fmt.Errorf("its margay %s speaks version %d of the control protocol, this one version %d: use one build on all hosts",
			o.Version, o.Protocol, control.Version)
	case o.Arch != runtime.GOARCH:
		return node.Config{}, fmt.Errorf("its architecture is %s, this host has %s", o.Arch, runtime.GOARCH)
	case o.Error != "":
		return node.Config{}, errors.New(o.Error)
	}
	c := r.spec.bootConfig(number, term, r.cert)
	c.Substrate, c.Host, c.Profile = node.Hosted, r.spec.Hosts[number], node.Shared
	c.MAC, c.Address, c.Serve = "", o.Address+"/32", r.serve.String()
	if c.Memory = int64(r.spec.MemoryMiB) << 20; c.Memory == 0 {
		c.Memory = max(o.Memory/2, o.Memory-ownMemory)
	}
	if c.Cores = r.spec.Cores; c.Cores == 0 {
		c.Cores = min(max(1, o.CPUs-1), mostCores) // beside core 0
	}
	return c, nil
}

// hold starts a node through the launcher, and returns when the launcher has ended.
func (l *launch) hold(accept func(starter.Offer) (node.Config, error)) exit {
	refused := l.begin(accept)
	started := refused == nil
	if started {
		go l.beat()
		_, _ = io.Copy(l.log, l.read)
	}
	l.stop()
	<-l.over
	_ = l.out.Close()
	e := exit{Console: l.log.Tail(consoleLines)}
	switch {
	case started:
		e.Reason = fmt.Sprintf("host %s: its launcher ended: %v", l.host, l.cmd.ProcessState)
		e.Off = l.cmd.ProcessState.Success()
	case errors.Is(refused, starter.ErrNoOffer):
		e.Reason = fmt.Sprintf("host %s: its launcher ended before it had started the node: %v", l.host, l.cmd.ProcessState)
		e.Off = true
	default:
		e.Reason = fmt.Sprintf("host %s: %v", l.host, refused)
		e.Off = true
	}
	return e
}

// begin waits until the starter has what it needs for its node. An error says why there is no node.
func (l *launch) begin(accept func(starter.Offer) (node.Config, error)) error {
	deadline := time.AfterFunc(l.offerWait, l.kill)
	err := l.meet(accept)
	if !deadline.Stop() {
		return fmt.Errorf("its launcher has not started the node within %v", l.offerWait)
	}
	return err
}

// meet takes the offer of the starter, and gives it the configuration of its node.
func (l *launch) meet(accept func(starter.Offer) (node.Config, error)) error {
	offer, err := starter.ReadOffer(l.read, l.log)
	if err != nil {
		return err
	}
	config, err := accept(offer)
	if err != nil {
		return err
	}
	text, err := starter.Configuration(config)
	if err != nil {
		return err
	}
	if _, err := l.in.Write(text); err != nil {
		return fmt.Errorf("give it the configuration of the node: %w", err)
	}
	return nil
}

// wait waits for the end of the launcher. What it has started here, and left behind, ends with its
// input.
func (l *launch) wait() {
	_ = l.cmd.Wait() // an error would only repeat the state
	close(l.over)
	l.stop()
}

// beat shows the starter that this process lives, while the launcher runs.
func (l *launch) beat() {
	ticker := time.NewTicker(starter.BeatInterval)
	defer ticker.Stop()
	for {
		select {
		case <-ticker.C:
			if _, err := l.in.Write([]byte{starter.Beat}); err != nil {
				return
			}
		case <-l.over:
			return
		}
	}
}

// stop ends the input of the launcher, and with it the node, and kills the launcher if it does not
// end then.
func (l *launch) stop() {
	_ = l.in.Close()
	time.AfterFunc(l.endWait, l.kill)
}

// kill kills the launcher, and closes its output, whose other end another process may have.
func (l *launch) kill() {
	_ = l.cmd.Process.Kill()
	_ = l.out.Close()
}

// stop implements substrate.
func (r *remote) stop(number id.Node) (failed <-chan error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if l := r.nodes[number]; l != nil {
		l.stop()
		delete(r.nodes, number)
	}
	return nil
}

// remove implements substrate: nothing of a node is in the machine's folder but its console.
func (r *remote) remove(id.Node) {}

// close implements substrate.
func (r *remote) close() error { return r.socket.Close() }
