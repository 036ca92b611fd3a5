package starter

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"margay/cluster/control"
	"margay/internal/printable"
	"margay/kernel/abi/id"
	"margay/kernel/abi/node"
	"margay/kernel/hardware"
	"margay/qemu/child"
)

// Config configures a starter.
type Config struct {
	Serve   string // address and port of the machine's serve
	Program string // path of the node program
	Version string // of its build

	In  io.Reader // from the holder
	Out *os.File  // to the holder; the node's console
}

// reachWait bounds how long a starter tries to reach serve.
const reachWait = 10 * time.Second

// Run is the life of a starter. It returns nil when the node has turned itself off.
func Run(c Config) error {
	offer := c.offer()
	line, err := offer.line()
	if err != nil {
		return err
	}
	if _, err := c.Out.Write(line); err != nil {
		return fmt.Errorf("offer a node: %w", err)
	}
	if offer.Error != "" {
		return errors.New(offer.Error)
	}
	in := bufio.NewReader(c.In)
	config, err := awaitConfiguration(in)
	if err != nil {
		return err
	}
	cmd, lifeline, err := c.start(config)
	if err != nil {
		return err
	}
	defer lifeline.Close()
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	return hold(in, ended)
}

// awaitConfiguration reads the configuration of the node, which must come within the time that the
// holder may be silent.
func awaitConfiguration(in *bufio.Reader) (node.Config, error) {
	type configuration struct {
		node.Config
		error
	}
	read := make(chan configuration, 1)
	go func() {
		config, err := readConfiguration(in)
		read <- configuration{config, err}
	}()
	select {
	case c := <-read:
		return c.Config, c.error
	case <-time.After(mostSilent * BeatInterval):
		return node.Config{}, fmt.Errorf("the holder of the machine has sent no configuration within %v", mostSilent*BeatInterval)
	}
}

// offer finds out what this host has for a node.
func (c Config) offer() Offer {
	o := Offer{Protocol: control.Version, Version: c.Version, Arch: runtime.GOARCH}
	address, err := reach(c.Serve)
	if err == nil {
		o.Address = address
		var cpus []id.CPU
		cpus, err = hardware.Allowed(0)
		o.CPUs = len(cpus)
	}
	o.Memory = givenMemory(os.Getenv)
	if err != nil {
		o.Error = printable.Short(err.Error(), maxText)
	}
	return o
}

// reach opens and closes a connection to serve, and returns the address of this host that it was
// opened from.
func reach(serve string) (string, error) {
	conn, err := net.DialTimeout("tcp4", serve, reachWait)
	if err != nil {
		return "", fmt.Errorf("it does not reach the machine's serve: %w (margay machine up --address gives it another address)", err)
	}
	defer conn.Close()
	return conn.LocalAddr().(*net.TCPAddr).AddrPort().Addr().Unmap().String(), nil
}

// givenMemory returns the bytes that Slurm has given to this process, 0 for no limit.
func givenMemory(getenv func(string) string) int64 {
	number := func(name string) int64 {
		n, err := strconv.ParseInt(getenv(name), 10, 64)
		if err != nil || n < 0 || n > maxMiB {
			return 0
		}
		return n
	}
	mib := number("SLURM_MEM_PER_NODE")
	if mib == 0 {
		mib = number("SLURM_MEM_PER_CPU") * min(maxCPUs, number("SLURM_CPUS_ON_NODE"))
	}
	return min(mib, maxMiB) << 20
}

// start starts PID 1 of a node in namespaces of its own, and returns the write end of its lifeline.
// It shares the network of the host.
func (c Config) start(config node.Config) (*exec.Cmd, *os.File, error) {
	text, err := config.Encode()
	if err != nil {
		return nil, nil, err
	}
	file, err := memoryFile(text)
	if err != nil {
		return nil, nil, err
	}
	defer file.Close()
	r, w, err := os.Pipe()
	if err != nil {
		return nil, nil, err
	}
	defer r.Close()
	cmd := exec.Command(c.Program, node.Hosted, configPath, "", filepath.Join(filepath.Dir(c.Program), "jobinit"))
	cmd.Stdout, cmd.Stderr = c.Out, c.Out
	cmd.ExtraFiles = []*os.File{r, file}
	cmd.Dir = "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: unix.CLONE_NEWPID | unix.CLONE_NEWNS | unix.CLONE_NEWIPC | unix.CLONE_NEWUTS,
		Setsid:     true,
	}
	if os.Getuid() != 0 {
		cmd.SysProcAttr.Cloneflags |= unix.CLONE_NEWUSER
		cmd.SysProcAttr.UidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getuid(), Size: 1}}
		cmd.SysProcAttr.GidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getgid(), Size: 1}}
	}
	if err := child.Start(cmd); err != nil {
		w.Close()
		return nil, nil, fmt.Errorf("start the node (its host may not let an ordinary user make namespaces): %w", err)
	}
	return cmd, w, nil
}

// configPath is where PID 1 finds its configuration: descriptor 4.
const configPath = "/proc/self/fd/4"

// memoryFile returns a file with a text that has no name on the host.
func memoryFile(text []byte) (*os.File, error) {
	fd, err := unix.MemfdCreate("node.json", unix.MFD_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("file in memory: %w", err)
	}
	f := os.NewFile(uintptr(fd), "node.json")
	if _, err := f.Write(text); err != nil {
		return nil, errors.Join(fmt.Errorf("file in memory: %w", err), f.Close())
	}
	return f, nil
}

// hold returns when the node has ended, or when the holder is gone: the caller then closes the
// lifeline of the node.
func hold(in io.Reader, ended <-chan error) error {
	beats, gone := make(chan struct{}), make(chan struct{})
	defer close(gone)
	go func() {
		defer close(beats)
		buffer := make([]byte, 64)
		for {
			if _, err := in.Read(buffer); err != nil {
				return
			}
			select {
			case beats <- struct{}{}:
			case <-gone:
				return
			}
		}
	}()
	ticker := time.NewTicker(BeatInterval)
	defer ticker.Stop()
	var s silence
	for {
		select {
		case err := <-ended:
			return err
		case _, ok := <-beats:
			if !ok {
				return errors.New("the holder of the machine is gone, or its connection to this host")
			}
			s.beat()
		case <-ticker.C:
			if s.tick() {
				return fmt.Errorf("the holder of the machine has been silent for %v", mostSilent*BeatInterval)
			}
		}
	}
}
