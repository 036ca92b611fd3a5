package boots

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"margay/cluster/boot"
	"margay/kernel/abi/id"
)

// order says what the process with the services serves.
type order struct {
	Nodes  int    `json:"nodes"`
	From   uint16 `json:"from"` // port of DHCP clients
	Turns  int    `json:"turns"`
	Kernel string `json:"kernel"` // paths
	Image  string `json:"image"`
	UEFI   string `json:"uefi"`
}

// ports are the ports of the services.
type ports struct {
	DHCP uint16 `json:"dhcp"`
	TFTP uint16 `json:"tftp"`
	HTTP uint16 `json:"http"`
}

// server is the address of the services, with the subnet of the nodes. Linux has all of these
// addresses on loopback.
var server = netip.MustParsePrefix("127.0.0.1/8")

// addressOf returns the address of the station of a number. Nodes have the first ones.
func addressOf(n int) netip.Addr { return netip.AddrFrom4([4]byte{127, 64, byte(n >> 8), byte(n)}) }

// macOf returns the MAC address of the station of a number.
func macOf(n int) boot.MAC { return boot.MAC{0x52, 0x54, 0, 1, byte(n >> 8), byte(n)} }

// Serve runs boot services on loopback as one line of in says, writes their ports to out, and ends
// when in ends. It is the part of a measurement that runs in a process of its own.
func Serve(ctx context.Context, in io.Reader, out io.Writer) error {
	decoder := json.NewDecoder(in)
	var o order
	if err := decoder.Decode(&o); err != nil {
		return fmt.Errorf("read what to serve: %w", err)
	}
	config := boot.Config{Server: server, Cmdline: "quiet", Turns: o.Turns, Log: func(string, ...any) {}, Report: func(id.Node, boot.Status) {}}
	for n := range o.Nodes {
		config.Hosts = append(config.Hosts, boot.Host{Node: id.Node(n), MAC: macOf(n), Address: addressOf(n)})
	}
	for _, f := range []struct {
		path string
		file *boot.File
	}{{o.Kernel, &config.Kernel}, {o.Image, &config.Image}, {o.UEFI, &config.UEFI}} {
		opened, err := os.Open(f.path)
		if err != nil {
			return err
		}
		defer opened.Close()
		info, err := opened.Stat()
		if err != nil {
			return err
		}
		*f.file = boot.File{ReaderAt: opened, Size: info.Size()}
	}
	services, err := boot.New(config)
	if err != nil {
		return err
	}
	sockets, at, err := listen(o.From)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		defer cancel()
		_, _ = io.Copy(io.Discard, io.MultiReader(decoder.Buffered(), in)) // its end is the order to end
	}()
	if err := json.NewEncoder(out).Encode(at); err != nil {
		return err
	}
	return services.Serve(ctx, sockets)
}

// listen opens sockets that are prepared as on a boot network.
func listen(from uint16) (s boot.Sockets, at ports, err error) {
	c, here := net.ListenConfig{Control: boot.Tune}, netip.AddrPortFrom(server.Addr(), 0).String()
	questions, err := c.ListenPacket(context.Background(), "udp4", here)
	if err != nil {
		return s, at, err
	}
	s.DHCP = answers{questions, from}
	if s.TFTP, err = c.ListenPacket(context.Background(), "udp4", here); err != nil {
		return s, at, err
	}
	s.HTTP, err = c.Listen(context.Background(), "tcp4", here)
	if err != nil {
		return s, at, err
	}
	for _, p := range []struct {
		to   *uint16
		addr net.Addr
	}{{&at.DHCP, s.DHCP.LocalAddr()}, {&at.TFTP, s.TFTP.LocalAddr()}, {&at.HTTP, s.HTTP.Addr()}} {
		a, err := netip.ParseAddrPort(p.addr.String())
		if err != nil {
			return s, at, err
		}
		*p.to = a.Port()
	}
	return s, at, nil
}

// answers sends datagrams for the port of DHCP clients, which only root can use, to another port.
type answers struct {
	net.PacketConn
	port uint16
}

// WriteTo implements net.PacketConn.
func (a answers) WriteTo(b []byte, to net.Addr) (int, error) {
	if u, ok := to.(*net.UDPAddr); ok {
		to = &net.UDPAddr{IP: u.IP, Port: int(a.port)}
	}
	return a.PacketConn.WriteTo(b, to)
}

// process is the process with the services.
type process struct {
	cmd   *exec.Cmd
	in    io.WriteCloser
	said  strings.Builder
	at    ports
	ended chan error
}

// readyWait bounds the start of the services, and their end.
const readyWait = time.Minute

// startServices starts a process with services by a command that calls Serve.
func startServices(ctx context.Context, command []string, o order) (p *process, err error) {
	p = &process{cmd: exec.Command(command[0], command[1:]...), ended: make(chan error, 1)}
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // signals of a terminal are not for it
	p.cmd.Stderr = &p.said
	if p.in, err = p.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := p.cmd.Start(); err != nil {
		return nil, err
	}
	ready := make(chan error, 1)
	go func() {
		err := json.NewEncoder(p.in).Encode(o)
		if err == nil {
			err = json.NewDecoder(out).Decode(&p.at)
		}
		ready <- err
		p.ended <- p.cmd.Wait()
	}()
	select {
	case err = <-ready:
	case <-time.After(readyWait):
		err = errors.New("no answer")
	case <-ctx.Done():
		err = context.Cause(ctx)
	}
	if err != nil {
		_ = p.cmd.Process.Kill() // it may have ended
		<-p.ended
		return nil, fmt.Errorf("start the boot services: %w: %s", err, strings.TrimSpace(p.said.String()))
	}
	return p, nil
}

// peak returns the most memory that the process has used so far, in KiB.
func (p *process) peak() int64 {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.cmd.Process.Pid))
	if err != nil {
		return 0
	}
	return peakOf(string(text))
}

// peakOf finds the peak of memory in the text of /proc/PID/status.
func peakOf(status string) (kib int64) {
	for line := range strings.Lines(status) {
		if rest, ok := strings.CutPrefix(line, "VmHWM:"); ok {
			fmt.Sscan(rest, &kib)
		}
	}
	return kib
}

// end ends the process, and returns the processor time that it has used.
func (p *process) end() (processor time.Duration, err error) {
	p.in.Close()
	select {
	case err = <-p.ended:
	case <-time.After(readyWait):
		_ = p.cmd.Process.Kill() // it may have ended
		err = <-p.ended
	}
	if err != nil {
		err = fmt.Errorf("boot services: %w: %s", err, strings.TrimSpace(p.said.String()))
	}
	if use, ok := p.cmd.ProcessState.SysUsage().(*syscall.Rusage); ok {
		processor = time.Duration(unix.TimevalToNsec(unix.Timeval(use.Utime)) + unix.TimevalToNsec(unix.Timeval(use.Stime)))
	}
	return processor, err
}
