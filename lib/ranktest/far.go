package ranktest

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"margay/internal/check"
	"margay/internal/train"
	"margay/kernel/abi/mirror"
	"margay/kernel/abi/wire"
)

// alone is the place of the rank of a job with two nodes, whose other rank is on the first one.
var alone = wire.Header{Job: 7, Rank: 1, Size: 2, Node: 2, LocalSize: 1, Nodes: 2}

// careEach is how often a node kernel looks whether a rank must be helped.
const careEach = 20 * time.Millisecond

// far is the other rank of the job, on another node, and the node kernels of both, played by the
// test.
type far struct {
	partner
	end   *mirror.End
	start time.Time

	mine, theirs          *os.File // the sockets
	trains                *train.Sender
	address, theirAddress netip.AddrPort // of the sockets
	number, theirNumber   uint32
	key, theirKey         uint64

	ownOut            *wire.Channel // of the test's pair
	memory            *os.File      // of the rank's pair
	theirOut, theirIn *wire.Channel
	seal              uint64 // changes the keys of datagrams to the rank
	loss              int    // percent of datagrams that are lost on their way to the test or from it
	came              int    // datagrams with data, lost ones included
	careless          bool   // there is no node kernel
	cared             time.Time
}

// largest is what the ends of a test may send.
const largest = 1372

// startFar starts the program with a mode, as a rank that has mirrored channels with a rank of
// another node, and gives it these.
func startFar(t *testing.T, seed uint64, program Program, mode ...string) *far {
	t.Helper()
	return startFarAt(t, alone, seed, program, mode...)
}

// startFarAt is startFar for a rank at a place like alone.
func startFarAt(t *testing.T, place wire.Header, seed uint64, program Program, mode ...string) *far {
	t.Helper()
	nodes := []uint32{0, 2}
	k := start(t, place, nodes, program, mode...)
	other := place
	other.Rank, other.Node = 0, 0
	f := &far{partner: newPartner(k, other, nodes, rand.New(rand.NewPCG(seed, 2))), start: time.Now()}
	f.mine, f.address = datagrams(t)
	f.theirs, f.theirAddress = datagrams(t)
	f.trains = train.NewSender(int(f.mine.Fd()))
	if err := unix.SetsockoptInt(int(f.theirs.Fd()), unix.SOL_UDP, unix.UDP_GRO, 1); err != nil { // as node kernels do
		t.Fatal(err)
	}
	f.number, f.theirNumber, f.key, f.theirKey = 5, 1, f.random.Uint64(), f.random.Uint64()
	f.openPairs()
	f.setPath(wire.PathDirect | wire.PathFar | wire.PathMeet)
	f.Greet()
	f.area.Channels().Store(1)
	f.ring()
	q, _ := f.expect(wire.OpChannel)
	host := f.address.Addr().As4()
	m := wire.Mirror{Rank: 0, Number: f.theirNumber, Key: f.theirKey, PeerNumber: f.number, PeerKey: f.key,
		Address: binary.BigEndian.Uint32(host[:]), Port: f.address.Port(), Largest: largest}
	f.answer(q, wire.Reply{Values: m.Values()}, f.memory, f.theirs)
	return f
}

// openPairs makes both copies of the channels.
func (f *far) openPairs() {
	f.t.Helper()
	_, mem := mapped(f.t, "channel", wire.MirrorSize)
	out, in, err := wire.OpenMirror(mem)
	if err != nil {
		f.t.Fatal(err)
	}
	f.ownOut = out
	f.end = mirror.NewEnd(out, in, mirror.Peer{Number: f.theirNumber, Key: f.theirKey, Largest: largest})
	f.out.OpenMirror(out, 1, largest-mirror.HeaderSize)
	f.in.OpenMirror(in, 1)
	var memory []byte
	f.memory, memory = mapped(f.t, "channel", wire.MirrorSize)
	if f.theirOut, f.theirIn, err = wire.OpenMirror(memory); err != nil {
		f.t.Fatal(err)
	}
}

// datagrams opens a socket. Like the sockets of node kernels it is bound to a port by number: Linux
// takes a port that it has chosen back when the socket is disconnected.
func datagrams(t *testing.T) (*os.File, netip.AddrPort) {
	t.Helper()
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		t.Fatal(err)
	}
	f := os.NewFile(uintptr(fd), "socket")
	t.Cleanup(func() { f.Close() })
	host := netip.AddrFrom4([4]byte{127, 0, 0, 1})
	for {
		port := uint16(10000 + rand.IntN(20000))
		switch err := unix.Bind(fd, &unix.SockaddrInet4{Addr: host.As4(), Port: int(port)}); err {
		case nil:
			return f, netip.AddrPortFrom(host, port)
		case unix.EADDRINUSE:
		default:
			t.Fatal(err)
		}
	}
}

func (f *far) now() time.Duration { return time.Since(f.start) }

// write sends a datagram from a socket.
func (f *far) write(from *os.File, b []byte, to netip.AddrPort) {
	_ = unix.Sendto(int(from.Fd()), b, unix.MSG_DONTWAIT, &unix.SockaddrInet4{Addr: to.Addr().As4(), Port: int(to.Port())})
}

// due returns the next datagram of the test's rank, with the key that a program on the interface
// gives it; nil: none is due.
func (f *far) due() []byte {
	b := f.end.Emit(nil, f.now())
	if len(b) > 0 {
		binary.LittleEndian.PutUint64(b[8:], f.theirKey^f.seal)
	}
	return b
}

// judge begins to give datagrams another key, as a node does for extensions in slot packet, and
// sends a message that such an extension has stopped. Datagrams on their way are lost.
func (f *far) judge() {
	f.seal = f.random.Uint64()
	f.theirIn.Seal().Store(f.seal)
	f.pass(wire.Record{Handler: wire.HandlerStopped, Payload: []byte("stopped")})
}

// emit sends the datagrams of the test's rank that are due, in trains, and loses some.
func (f *far) emit() {
	var datagrams [][]byte
	for {
		b := f.due()
		if n := len(datagrams); n > 0 && (len(b) == 0 || len(b) > len(datagrams[0]) || len(datagrams[n-1]) < len(datagrams[0]) || n == train.Bytes/largest) {
			f.trains.Send(datagrams, &unix.SockaddrInet4{Addr: f.theirAddress.Addr().As4(), Port: int(f.theirAddress.Port())})
			datagrams = nil
		}
		if len(b) == 0 {
			return
		}
		if f.random.IntN(100) >= f.loss {
			datagrams = append(datagrams, b)
		}
	}
}

// poll takes datagrams for the test's rank, and plays the node kernel that helps the other one.
func (f *far) poll() {
	f.t.Helper()
	b := make([]byte, mirror.Most)
	for {
		n, from, err := unix.Recvfrom(int(f.mine.Fd()), b, unix.MSG_DONTWAIT)
		if err != nil {
			break
		}
		h, data, err := mirror.Parse(b[:n])
		if err != nil || h.Number != f.number || h.Key != f.key || from.(*unix.SockaddrInet4).Port != int(f.theirAddress.Port()) || n > largest {
			f.t.Fatalf("the rank sends %d bytes with header %+v: %v", n, h, err)
		}
		if len(data) > 0 {
			f.came++
		}
		if f.random.IntN(100) >= f.loss {
			f.end.Arrive(&h, data, f.now())
		}
	}
	f.emit()
	if !f.careless && time.Since(f.cared) > careEach {
		f.cared = time.Now()
		f.care()
	}
}

// care sends for the rank what it does not know to have arrived.
func (f *far) care() {
	if f.theirOut.Position().Load() == f.theirOut.Acked().Load() && f.theirIn.Arrived().Load() == f.theirIn.Acknowledged().Load() &&
		f.theirOut.Blocked().Load() == 0 {
		return
	}
	e := mirror.NewEnd(f.theirOut, f.theirIn, mirror.Peer{Number: f.number, Key: f.key, Largest: largest})
	e.Ask()
	for b := e.Emit(nil, 0); len(b) > 0; b = e.Emit(nil, 0) {
		f.write(f.theirs, b, f.address)
	}
}

// carry plays the node kernels, which take messages from one rank and give them to the other, and
// say a while later that they are settled.
func (f *far) carry() {
	f.t.Helper()
	f.theirOut.Settled().Store(f.send.Position())
	f.ownOut.Settled().Store(f.sent.Position())
	push := func(r wire.Record) bool {
		ok, _, err := f.received.Push(r)
		if err != nil {
			f.t.Fatal(err)
		}
		return ok
	}
	for range f.random.IntN(8) {
		if f.carryOne(f.send, 1, push) {
			f.ring()
		}
		f.carryOne(f.sent, 0, f.Push)
	}
}

// carryOne takes a message of a rank and gives it to the other one, if there is room. It reports
// whether the rank waits for the room that this makes.
func (f *far) carryOne(from *wire.Consumer, rank uint32, push func(wire.Record) bool) (wake bool) {
	f.t.Helper()
	r, ok, err := from.Next()
	if err != nil {
		f.t.Fatal(err)
	}
	if !ok {
		return false
	}
	if r.Peer, r.Node = rank, 2*rank; !push(r) {
		from.Unread()
		return false
	}
	f.carries(int(rank), &r)
	return from.Release()
}

// pass sends the rank a message and reports whether there was room.
func (f *far) pass(r wire.Record) bool {
	f.t.Helper()
	r.Peer = 1
	ok, wake := f.push(r)
	if wake == wire.WakeMirror {
		f.emit()
	}
	return ok
}

// take returns the next message of the rank, if there is one.
func (f *far) take() (wire.Record, bool) {
	f.t.Helper()
	f.poll()
	r, _, ok := f.next()
	return r, ok
}

// pause changes whether messages may take the mirrored channels.
func (f *far) pause() {
	for _, c := range []*wire.Channel{f.ownOut, f.theirOut} {
		c.Closed().Store([]uint32{0, 0, wire.ChannelPaused}[f.random.IntN(3)])
	}
}

// mirrors: messages between ranks of two nodes are whole and in order while datagrams are lost,
// while they change their path, and while both sides sleep and wait for room; datagrams of
// strangers, and those without the seal, have no effect; and a rank enters a barrier only when its
// messages have arrived.
func mirrors(t *testing.T, seed uint64, program Program) {
	f := startFar(t, seed, program, "echo")
	c := talk{t: t, pass: f.pass, take: f.take}
	// Of a message whose first piece was stopped on the interface, behind one that was given up:
	f.Push(wire.Record{Handler: wire.HandlerPiece, Args: [2]uint64{2000, 1 | 1<<32 | 7<<48}, Payload: make([]byte, wire.PieceArgs+1000)})
	f.Push(wire.Record{Handler: wire.HandlerPiece, Args: [2]uint64{2000 | 1000<<32, 1 | 1<<32}, Payload: make([]byte, 1000)})
	for range 50 { // the rank sleeps
		f.Await("sleep", f.Waiting)
		c.send()
		f.Await("echo", c.receive)
	}
	f.sleeps(&c)
	f.loss = 5
	last := check.Rounds(longEach*(len(longSizes)+1), 20000)
	f.Await("echo", func() bool {
		for range 300 {
			switch f.random.IntN(16) {
			case 0:
				f.carry()
			case 1:
				switch f.random.IntN(60) {
				case 0, 1, 2:
					f.pause()
				case 3:
					f.judge()
				}
			case 2:
				f.stranger()
			case 3, 4, 5, 6: // less than has come, so that channels are full at times
				c.receive()
			default:
				if c.sent < last {
					c.send()
				}
			}
		}
		return c.got == last
	})
	f.ownOut.Closed().Store(0)
	f.theirOut.Closed().Store(0)
	f.Await("settled messages", func() bool { f.poll(); return f.end.Quiet() })
	f.carry()
	f.carry()
	if f.ownOut.Count().Load() == 0 || f.theirOut.Count().Load() == 0 {
		t.Error("no message has taken a mirrored channel")
	}
	f.shares(&c)
	f.settles(c.message())
}

// farFlood: a rank that sends without a pause, first through its node kernel, waits until its
// messages can take the mirrored channel.
func farFlood(t *testing.T, seed uint64, program Program) {
	const n = 20000
	f := startFar(t, seed, program, "flood", fmt.Sprint(n))
	got := 0
	f.Await("messages", func() bool {
		for range 300 {
			f.carry()
			r, ok := f.take()
			if !ok {
				continue
			}
			if r.Args != [2]uint64{uint64(got), ^uint64(got)} || !bytes.Equal(r.Payload, payload(got)) {
				t.Fatalf("message %d comes as %+v", got, r)
			}
			if got++; got == n {
				return true
			}
		}
		f.ring() // as node kernels do for a rank that may wait for messages to be settled
		return false
	})
	if direct := f.theirOut.Count().Load(); direct < n/2 {
		t.Errorf("%d of %d messages have taken the mirrored channel", direct, n)
	}
	f.Await("barrier", func() bool { f.poll(); return f.area.Entered().Load() == 1 })
	f.Barrier(1)
	f.Ended(0)
}

// sleeps: a rank that sleeps sends again what was lost, without a node kernel, whether a datagram
// or the doorbell has woken it before.
func (f *far) sleeps(c *talk) {
	f.t.Helper()
	direct := c.pass
	for _, pass := range []func(wire.Record) bool{direct, f.passNodeKernels, direct, f.passNodeKernels} {
		f.Await("acknowledgements", func() bool { f.poll(); return f.theirOut.Position().Load() == f.theirOut.Acked().Load() })
		f.Await("sleep", f.Waiting)
		f.careless = true
		c.pass = pass
		c.send()
		f.loss = 100
		enough := f.came + 4
		f.Await("retransmissions", func() bool { f.poll(); return f.came >= enough })
		f.loss, f.careless = 0, false
		f.Await("echo", c.receive)
	}
	c.pass = direct
}

// passNodeKernels sends the rank a message as its node kernel does.
func (f *far) passNodeKernels(r wire.Record) bool {
	r.Peer, r.Node = 0, 0
	return f.Push(r)
}

// stranger sends the rank datagrams that are not its peer's.
func (f *far) stranger() {
	b := f.due()
	if len(b) == 0 {
		return
	}
	f.write(f.theirs, b, f.theirAddress) // from another port
	forged := bytes.Clone(b)
	forged[8+f.random.IntN(8)] ^= 1 << f.random.IntN(8) // another key
	f.write(f.mine, forged, f.theirAddress)
	f.write(f.mine, b[:f.random.IntN(len(b))&^7|4], f.theirAddress)
	f.write(f.mine, b, f.theirAddress)
}

// shares: a rank that exchanges many datagrams with the only other one connects its socket, and
// gets the datagrams of others again when its node kernel has disconnected it.
func (f *far) shares(c *talk) {
	f.t.Helper()
	connected := func() bool { _, err := unix.Getpeername(int(f.theirs.Fd())); return err == nil }
	speak := func() {
		want := c.sent + 1
		f.Await("echo", func() bool {
			f.carry()
			if c.sent < want { // a long message goes piece by piece
				c.send()
			}
			c.receive()
			return c.got == want
		})
	}
	f.loss = 0
	for n := 0; !connected(); n++ {
		if n == 10000 {
			f.t.Fatal("the rank does not connect its socket")
		}
		speak()
	}
	f.theirOut.Shared().Store(1)
	if err := train.Disconnect(int(f.theirs.Fd())); err != nil {
		f.t.Fatal(err)
	}
	for range 2 * 256 { // enough to connect it again
		speak()
	}
	if connected() {
		f.t.Error("the rank has connected a socket that others need")
	}
}

// settles: a rank does not enter a barrier before its last message has arrived, and enters it when
// the other rank has ended.
func (f *far) settles(last wire.Record) {
	f.t.Helper()
	f.loss = 0
	f.pass(last)
	f.Await("answer", func() bool { _, ok := f.take(); return ok })
	f.pass(wire.Record{Handler: 3})
	f.Await("barrier", func() bool { f.poll(); return f.area.Entered().Load() == 1 })
	if f.theirOut.Position().Load() != f.theirOut.Acked().Load() {
		f.t.Error("it has entered a barrier before its messages have arrived")
	}
	f.Barrier(1)
	f.Barrier(2)
	f.Ended(0)
}
