package machine

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"strings"
	"time"

	"margay/cluster/folder"
	"margay/cluster/serve"
	"margay/cluster/trust"
	"margay/kernel/abi/id"
	"margay/kernel/abi/node"
	"margay/nimble/engine"
	"margay/qemu/netstack"
)

// ErrHolderGone reports that the machine's holder has ended, and with it every node.
var ErrHolderGone = errors.New("the machine's holder is gone, and its nodes with it")

// ErrDown reports that the machine is being ended on request.
var ErrDown = errors.New("the machine goes down")

// Inherited is what a serve has from its holder; the zero value is for a serve without one.
type Inherited struct {
	Lifeline io.Reader // the read end of the holder's pipe
	Socket   *os.File  // that listens to nodes of other hosts
	Users    *os.File  // that listens to users of other hosts
}

// Serve is the life of a serve of the machine in the folder. Extensions in slot place run on e.
func Serve(ctx context.Context, d Dir, in Inherited, e engine.Engine, log func(format string, args ...any)) error {
	spec, err := d.ReadSpec()
	if err != nil {
		return err
	}
	if spec.goesFirst(in) {
		goFirst()
	}
	nodes, err := d.ReadRoster(spec)
	if err != nil {
		return err
	}
	authority, err := trust.Load(d.keyFile())
	if err != nil {
		return err
	}
	stopped := ctx
	ctx, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	defer cancel(nil)
	defer context.AfterFunc(stopped, func() { cancel(ErrDown) })()
	if in.Lifeline != nil {
		go func() {
			_, _ = io.Copy(io.Discard, in.Lifeline)
			cancel(ErrHolderGone)
		}()
	}
	audit, err := d.openAudit(spec)
	if err != nil {
		return err
	}
	if audit != nil {
		defer audit.Close()
	}
	if spec.Door != "" {
		door, err := lockDoor(spec.Door)
		if err != nil {
			return err
		}
		defer door.Close()
		defer func() {
			if errors.Is(context.Cause(ctx), ErrDown) {
				clearDoor(spec.Door)
			}
		}()
	}
	users, err := listener(in.Users)
	if err != nil {
		return err
	}
	server, err := serve.New(serve.Config{
		Machine: spec.Name, Substrate: spec.Substrate, Roster: nodes, Authority: authority, Secret: spec.Secret,
		Dir: string(d), Log: log, Timing: spec.timing(), AtOnce: spec.atOnce(), Owner: uint32(os.Getuid()), Access: spec.Access, Audit: audit, History: spec.history(), Fitness: spec.Fitness,
		Address: spec.addresses(), Engine: e,
		Console: func(node id.Node, lines int) []string { return tail(d.ConsoleLog(node), lines) },
		Remote:  users,

		KeepFirmwareLog: d.keepFirmwareLog, RemoveFirmwareLog: d.removeFirmwareLog,
	})
	if err != nil {
		return err
	}
	port, err := listenNodes(ctx, spec, d, in.Socket, cancel)
	if err != nil {
		return err
	}
	clients, err := listenClients(d.Socket())
	if err == nil && spec.Door != "" {
		clients, err = addDoor(clients, spec.Door)
	}
	if err != nil {
		return errors.Join(err, port.Close())
	}
	log("serving machine %s", spec.Name)
	err = server.Run(ctx, clients, port)
	if cause := context.Cause(ctx); !errors.Is(cause, ErrDown) {
		err = errors.Join(err, cause)
	}
	return err
}

// listenClients listens on the machine's unix socket. It removes the socket of an earlier serve,
// which would block it.
func listenClients(path string) (net.Listener, error) {
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("serve: %w", err)
	}
	l, err := net.Listen("unix", path)
	if err != nil {
		return nil, fmt.Errorf("serve: %w", err)
	}
	return l, os.Chmod(path, 0o600)
}

// addresses returns the addresses of nodes by number; nil if nodes use the addresses of their
// hosts.
func (s *Spec) addresses() func(id.Node) netip.Addr {
	if s.Substrate == node.Hosts {
		return nil
	}
	if s.Substrate == node.Metal {
		return func(node id.Node) netip.Addr {
			address, _ := s.Metal.Plan.Node(node)
			return address.Addr()
		}
	}
	return func(node id.Node) netip.Addr { return nodeAddress(node).Addr() }
}

// errNoSocket reports a serve that nodes of other hosts cannot reach.
var errNoSocket = errors.New("serve: the holder of a machine of hosts starts its serve (margay machine up)")

// listenNodes listens where the machine's nodes expect serve: on the machine's switch, on the
// socket of the holder, or on the network of the holder's namespace.
func listenNodes(ctx context.Context, s Spec, d Dir, socket *os.File, lost context.CancelCauseFunc) (net.Listener, error) {
	switch {
	case s.Substrate == node.Virtual:
		return listenSwitch(ctx, s, d, lost)
	case (s.Substrate == node.Hosts || s.Substrate == node.Metal) && socket == nil:
		return nil, errNoSocket
	case s.Substrate == node.Hosts || s.Substrate == node.Metal:
		defer socket.Close()
		return net.FileListener(socket)
	}
	address := netip.AddrPortFrom(serveAddress.Addr(), servePort)
	deadline := time.Now().Add(stopWait)
	for {
		l, err := net.Listen("tcp", address.String())
		if err == nil {
			return l, nil
		}
		// The address is free as soon as the kernel has noticed the end of the previous serve.
		if ctx.Err() != nil || time.Now().After(deadline) {
			return nil, fmt.Errorf("serve: %w", err)
		}
		time.Sleep(firstPause)
	}
}

// listenSwitch plugs serve into the machine's switch. When the switch is gone, so is the holder.
func listenSwitch(ctx context.Context, s Spec, d Dir, lost context.CancelCauseFunc) (net.Listener, error) {
	link, err := new(net.Dialer).DialContext(ctx, "unix", d.Port(servicePort))
	if err != nil {
		return nil, fmt.Errorf("serve: plug into the switch: %w", err)
	}
	stack, err := netstack.New(link, netstack.Config{MAC: serveMAC, Address: serveAddress, MTU: s.MTU})
	if err != nil {
		return nil, fmt.Errorf("serve: %w", err)
	}
	go func() {
		select {
		case <-stack.Done():
			lost(fmt.Errorf("%w: the switch hung up: %w", ErrHolderGone, stack.Err()))
		case <-ctx.Done():
		}
	}()
	l, err := stack.Listen(servePort)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("serve: %w", err), stack.Close())
	}
	return l, nil
}

// tail returns the last lines of a text file of a machine.
func tail(path string, lines int) []string {
	f, err := folder.Open(path, os.O_RDONLY)
	if err != nil {
		return nil
	}
	defer f.Close()
	const most = 16 << 10
	if info, err := f.Stat(); err == nil && info.Size() > most {
		_, _ = f.Seek(-most, io.SeekEnd)
	}
	text, _ := io.ReadAll(f)
	if len(text) == 0 {
		return nil
	}
	all := strings.Split(strings.TrimRight(string(text), "\n"), "\n")
	return all[max(0, len(all)-lines):]
}
