package main

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"margay/kernel/abi/wire"
	"margay/lib/margay"
)

// wired is an attacker that has mirrored channels with rank 1, on another node.
type wired struct {
	*attacker
	mirror wire.Mirror
	memory *os.File
	socket *os.File // of the datagrams
}

// newWired takes part in a job of two nodes. Rank 0 gets its mirrored channels. Rank 1 waits for
// messages, and gets nil.
func newWired(ctx context.Context) (*wired, error) {
	a, err := newAttacker()
	if err != nil {
		return nil, err
	}
	came := 0
	a.job.Handle(1, func(margay.Message) { came++ })
	if a.job.Rank() == 1 {
		if err := a.job.Send(ctx, 0, 1, [2]uint64{}, nil); err != nil {
			return nil, err
		}
		return nil, a.job.WaitFor(ctx, func() bool { return false })
	}
	if err := a.job.Send(ctx, 1, 1, [2]uint64{}, nil); err != nil {
		return nil, err
	}
	if err := a.job.WaitFor(ctx, func() bool { return came == 1 }); err != nil {
		return nil, err
	}
	for ctx.Err() == nil {
		reply, files, err := a.ask(encoded(wire.Request{Op: wire.OpChannel}))
		if err != nil { // there are none yet
			time.Sleep(10 * time.Millisecond)
			continue
		}
		w := &wired{attacker: a, memory: files[0], socket: files[1]}
		w.mirror, _ = wire.MirrorOf(reply.Values)
		return w, nil
	}
	return nil, errors.New("there are no mirrored channels")
}

// attackDatagrams lets rank 0 misuse its socket, and send forged datagrams to every port of rank
// 1's node that may be a rank's or a node kernel's.
func attackDatagrams([]string) error {
	ctx, cancel := context.WithTimeout(context.Background(), 8*time.Second)
	defer cancel()
	w, err := newWired(ctx)
	if w == nil {
		if errors.Is(err, context.DeadlineExceeded) {
			return nil
		}
		return err
	}
	fd := int(w.socket.Fd())
	own, err := unix.Getsockname(fd)
	if err != nil {
		return err
	}
	elsewhere := *own.(*unix.SockaddrInet4)
	elsewhere.Port ^= 1
	attempt([]try{
		{"move a socket to another port", func() error { return unix.Bind(fd, &elsewhere) }},
		{"move a socket that was disconnected", func() error { return moveDisconnected(fd, &elsewhere) }},
		{"take any source address", func() error { return unix.SetsockoptInt(fd, unix.SOL_IP, unix.IP_TRANSPARENT, 1) }},
		{"take a route of its own", func() error {
			return unix.SetsockoptString(fd, unix.SOL_IP, unix.IP_OPTIONS, "\x83\x07\x04\x0a\x42\x00\x01\x00")
		}},
		{"mark packets", func() error { return unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_MARK, 1) }},
		{"take more memory than allowed", func() error { return unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 1<<30) }},
		{"open a raw socket", func() error {
			_, err := unix.Socket(unix.AF_INET, unix.SOCK_RAW, unix.IPPROTO_UDP)
			return err
		}},
	})
	for ctx.Err() == nil {
		w.forge(fd)
	}
	return nil
}

// moveDisconnected connects a socket, disconnects it and binds it, and reports whether it has its
// old port.
func moveDisconnected(fd int, to *unix.SockaddrInet4) error {
	peer := *to
	if err := unix.Connect(fd, &peer); err != nil {
		return err
	}
	if err := disconnect(fd); err != nil {
		return err
	}
	return unix.Bind(fd, to)
}

// forge sends datagrams to the ports of rank 1's node: of mirrored channels with a wrong key, and
// of the fabric.
func (w *wired) forge(fd int) {
	var to unix.SockaddrInet4
	binary.BigEndian.PutUint32(to.Addr[:], w.mirror.Address)
	mirrored := make([]byte, 40+64)
	binary.LittleEndian.PutUint16(mirrored, 0x4d4d)
	mirrored[2] = 1
	for i := range 64 {
		mirrored[40+i] = 0xff
	}
	fabric := make([]byte, 200)
	fabric[0] = 1
	for port := 32768; port < 61000; port++ {
		to.Port = port
		if port == int(w.mirror.Port) {
			continue
		}
		binary.LittleEndian.PutUint64(mirrored[8:], w.mirror.PeerKey+uint64(port))
		_ = unix.Sendto(fd, mirrored, unix.MSG_DONTWAIT, &to)
		binary.LittleEndian.PutUint32(fabric[12:], uint32(port)*0x9e3779b9)
		_ = unix.Sendto(fd, fabric, unix.MSG_DONTWAIT, &to)
	}
}

// attackMirrors lets rank 0 write nonsense into its mirrored channels, and send nonsense through
// them.
func attackMirrors([]string) error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	w, err := newWired(ctx)
	if w == nil {
		return err
	}
	mem, err := unix.Mmap(int(w.memory.Fd()), 0, wire.MirrorSize, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return err
	}
	out, _, err := wire.OpenMirror(mem)
	if err != nil {
		return err
	}
	var to unix.SockaddrInet4
	binary.BigEndian.PutUint32(to.Addr[:], w.mirror.Address)
	to.Port = int(w.mirror.Port)
	b := make([]byte, 40+64)
	binary.LittleEndian.PutUint16(b, 0x4d4d)
	b[2] = 1
	binary.LittleEndian.PutUint32(b[4:], w.mirror.PeerNumber)
	binary.LittleEndian.PutUint64(b[8:], w.mirror.PeerKey)
	for i := range 64 {
		b[40+i] = 0xff
	}
	at := out.Acked().Load()
	for i := range mem {
		mem[i] = 0xff
	}
	for ctx.Err() == nil {
		binary.LittleEndian.PutUint64(b[16:], at)
		_ = unix.Sendto(int(w.socket.Fd()), b, 0, &to)
		time.Sleep(10 * time.Millisecond)
	}
	return fmt.Errorf("rank 1 goes on")
}
