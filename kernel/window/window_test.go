package window

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"margay/internal/check"
	"margay/internal/train"
	"margay/kernel/abi/id"
	"margay/kernel/abi/onesided"
	"margay/kernel/abi/wire"
	"margay/kernel/keep"
)

var here = netip.AddrFrom4([4]byte{127, 0, 0, 1})

// node is a node kernel with a window of a rank, and what outlives it.
type node struct {
	t      *testing.T
	items  map[string]*keep.Item
	mu     sync.Mutex
	window map[uint8][]byte // of rank 3
	woken  int
	faults []string
	server *Server
}

func (n *node) Keep(item keep.Item) error {
	kept := keep.Item{Name: item.Name, Words: item.Words}
	for _, f := range item.Files {
		d, err := keep.Duplicate(f.Fd(), f.Name())
		if err != nil {
			return err
		}
		kept.Files = append(kept.Files, d)
	}
	n.items[item.Name] = &kept
	return nil
}

func (n *node) Drop(string) error { return nil }

func (n *node) config() Config {
	return Config{
		Self: here, Keeper: n,
		Memory: func(rank id.Rank, number uint8) []byte {
			n.mu.Lock()
			defer n.mu.Unlock()
			if rank != 3 {
				return nil
			}
			return n.window[number]
		},
		Changed: func(id.Rank) { n.mu.Lock(); defer n.mu.Unlock(); n.woken++ },
		Idle:    func(id.Rank) bool { return time.Now().UnixNano()%4096 != 0 }, // and is computing at times
		Fault: func(format string, args ...any) {
			n.mu.Lock()
			defer n.mu.Unlock()
			n.faults = append(n.faults, fmt.Sprintf(format, args...))
		},
	}
}

func newNode(t *testing.T) *node {
	t.Helper()
	check.Leaks(t)
	n := &node{t: t, items: make(map[string]*keep.Item), window: map[uint8][]byte{0: make([]byte, 1<<16)}}
	var err error
	if n.server, err = New(n.config()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		n.server.Close()
		n.items[kept].CloseFiles()
	})
	n.server.Start()
	return n
}

// restart has another node kernel take up the server.
func (n *node) restart(clients ...*asker) {
	n.t.Helper()
	n.server.Close()
	var err error
	if n.server, err = Adopt(n.config(), n.items); err != nil || n.server == nil {
		n.t.Fatal(n.server, err)
	}
	for _, a := range clients {
		n.server.Admit(a.Client)
	}
	n.server.Start()
}

// asker is a rank of another node that asks for operations on the windows of rank 3.
type asker struct {
	t *testing.T
	Client
	*onesided.Requester
	socket  int
	sender  *train.Sender
	start   time.Time
	answers map[uint64][]byte
	refused map[uint64]wire.RemoteStatus
	loss    func() bool
}

func (n *node) asker(source, target id.Rank) *asker {
	n.t.Helper()
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		n.t.Fatal(err)
	}
	n.t.Cleanup(func() { unix.Close(fd) })
	if err := unix.Bind(fd, &unix.SockaddrInet4{Addr: here.As4()}); err != nil {
		n.t.Fatal(err)
	}
	name, err := unix.Getsockname(fd)
	if err != nil {
		n.t.Fatal(err)
	}
	a := &asker{
		t: n.t, socket: fd, sender: train.NewSender(fd), start: time.Now(), loss: func() bool { return false },
		answers: make(map[uint64][]byte), refused: make(map[uint64]wire.RemoteStatus),
		Client: Client{Source: source, Target: target, Key: rand.Uint64(), ReplyKey: rand.Uint64(),
			Address: netip.AddrPortFrom(here, uint16(name.(*unix.SockaddrInet4).Port)), Journal: make([]byte, onesided.JournalSize)},
	}
	pair := onesided.Pair{Source: uint32(source), Target: uint32(target)}
	a.Requester = onesided.NewRequester(onesided.Peer{Pair: pair, Key: a.Key, Largest: 1472})
	n.server.Admit(a.Client)
	return a
}

// ask adds a request when there is room.
func (a *asker) ask(n *node, kind wire.RemoteKind, window uint8, offset int, length int, data []byte) (number uint64) {
	a.t.Helper()
	check.Await(a.t, "room", func() bool { a.poll(n); return a.Room(kind) })
	return a.Add(onesided.Request{Kind: kind, Window: window, Offset: uint64(offset), Length: uint16(length)}, data)
}

// poll sends the requests that are due and takes answers.
func (a *asker) poll(n *node) {
	a.t.Helper()
	to := &unix.SockaddrInet4{Addr: here.As4(), Port: int(n.server.Port())}
	now := time.Since(a.start)
	for d := a.Emit(now); len(d) > 0; d = a.Emit(now) {
		if a.ToKernel() && !a.loss() {
			a.sender.Send(d, to)
		}
	}
	b := make([]byte, onesided.Most+1)
	for {
		size, _, err := unix.Recvfrom(a.socket, b, unix.MSG_DONTWAIT)
		if err != nil {
			return
		}
		answer, data, err := onesided.ParseAnswer(b[:size])
		if err != nil || answer.Key != a.ReplyKey {
			a.t.Fatalf("%+v: %v", answer, err)
		}
		if !a.loss() {
			a.Arrive(&answer, data, false, time.Since(a.start), a.complete)
		}
	}
}

func (a *asker) complete(number uint64, status wire.RemoteStatus, data []byte) {
	a.answers[number] = bytes.Clone(data)
	if status != wire.RemoteOK {
		a.refused[number] = status
	}
}

// finish waits until all is answered.
func (a *asker) finish(n *node) {
	a.t.Helper()
	check.Await(a.t, "answers", func() bool { a.poll(n); return a.Idle() })
}

// Long puts and gets are whole, counts are exact, and each counting wakes, while datagrams are lost
// and the node kernel is started again.
func TestServer(t *testing.T) {
	n := newNode(t)
	a, b := n.asker(1, 3), n.asker(2, 3)
	random := rand.New(rand.NewPCG(check.Seed(t), 1))
	lossy := func() bool { return random.IntN(20) == 0 }
	a.loss, b.loss = lossy, lossy
	want := make([]byte, 50000)
	for i := range want {
		want[i] = byte(random.Uint32())
	}
	olds := make(map[uint64]bool)
	const rounds = 4
	for range rounds {
		for at := 0; at < len(want); at += a.Piece() {
			part := want[at:min(at+a.Piece(), len(want))]
			a.ask(n, wire.RemotePut, 0, 8+at, len(part), part)
		}
		for range 20 {
			old := b.ask(n, wire.RemoteAdd, 0, 0, 8, []byte{7: 0, 0: 1})
			b.finish(n)
			olds[binary.LittleEndian.Uint64(b.answers[old])] = true
		}
		n.restart(a, b)
	}
	a.finish(n)
	got := make(map[int]uint64)
	for at := 0; at < len(want); at += a.Piece() {
		got[at] = a.ask(n, wire.RemoteGet, 0, 8+at, min(a.Piece(), len(want)-at), nil)
	}
	a.finish(n)
	for at, number := range got {
		if part := a.answers[number]; !bytes.Equal(part, want[at:min(at+a.Piece(), len(want))]) {
			t.Errorf("the %d bytes at %d are others", len(part), at)
		}
	}
	n.restart()
	n.mu.Lock()
	defer n.mu.Unlock()
	if count := binary.LittleEndian.Uint64(n.window[0]); count != rounds*20 || len(olds) != rounds*20 || n.woken < rounds*20 || len(n.faults) > 0 {
		t.Errorf("the count is %d, %d were seen, %d times woken, faults %v", count, len(olds), n.woken, n.faults)
	}
}

// Requests outside a window are refused and change nothing, and a window may come later.
func TestRefused(t *testing.T) {
	n := newNode(t)
	a := n.asker(1, 3)
	const end = 1 << 16
	want := make(map[uint64]wire.RemoteStatus)
	for _, c := range []struct {
		kind           wire.RemoteKind
		window         uint8
		offset, length int
		data           []byte
		status         wire.RemoteStatus
	}{
		{wire.RemotePut, 9, 0, 1, []byte{1}, wire.RemoteNoWindow},
		{wire.RemotePut, 0, end - 1, 2, []byte{1, 1}, wire.RemoteOutside},
		{wire.RemotePut, 0, -1, 2, []byte{1, 1}, wire.RemoteOutside},
		{wire.RemotePut, 0, -8, 8, make([]byte, 8), wire.RemoteOutside},
		{wire.RemoteAdd, 0, 4, 8, []byte{7: 1}, wire.RemoteOutside},
		{wire.RemoteAdd, 0, end, 8, []byte{7: 1}, wire.RemoteOutside},
		{wire.RemoteSwap, 0, end - 4, 16, make([]byte, 16), wire.RemoteOutside},
		{wire.RemoteGet, 0, end - 5, 6, nil, wire.RemoteOutside},
	} {
		want[a.ask(n, c.kind, c.window, c.offset, c.length, c.data)] = c.status
	}
	a.finish(n)
	for number, status := range want {
		if a.refused[number] != status {
			t.Errorf("request %d has status %d, not %d", number, a.refused[number], status)
		}
	}
	n.restart(a) // so that its thread has ended
	n.mu.Lock()
	if !bytes.Equal(n.window[0], make([]byte, end)) || n.woken > 0 {
		t.Error("the memory has changed")
	}
	n.window[9] = make([]byte, 8)
	n.mu.Unlock()
	number := a.ask(n, wire.RemotePut, 9, 0, 1, []byte{1})
	a.finish(n)
	n.restart(a)
	if a.refused[number] != wire.RemoteOK || n.window[9][0] != 1 {
		t.Errorf("a put to a new window has status %d", a.refused[number])
	}
}

// Requests that are forged, of a pair that was not admitted, from another port, or with another
// key, have neither effect nor answer, and a flood of them stops no other rank.
func TestForged(t *testing.T) {
	n := newNode(t)
	a, honest, stranger := n.asker(1, 3), n.asker(2, 3), n.asker(7, 8)
	to := &unix.SockaddrInet4{Addr: here.As4(), Port: int(n.server.Port())}
	put := func(source, target uint32, key uint64) []byte {
		q := onesided.Request{Pair: onesided.Pair{Source: source, Target: target}, Kind: wire.RemotePut, Length: 1, Key: key, Number: 1}
		return append(q.Append(nil), 1)
	}
	forge := func() {
		for _, b := range [][]byte{
			put(1, 3, a.Key), put(2, 3, honest.Key), put(1, 3, a.Key+1), put(9, 3, a.Key), put(7, 8, stranger.Key), put(1, 3, a.Key)[:20], {},
		} {
			stranger.sender.Send([][]byte{b}, to)
		}
		a.sender.Send([][]byte{put(1, 3, a.Key^1)}, to)
		a.sender.Send([][]byte{put(2, 3, honest.Key)}, to)
		a.sender.Send([][]byte{put(1, 8, a.Key)}, to)
	}
	for range 200 {
		forge()
	}
	for range 50 {
		forge()
		honest.ask(n, wire.RemoteAdd, 0, 8, 8, []byte{0: 1, 7: 0})
		honest.finish(n)
	}
	n.restart()
	n.mu.Lock()
	defer n.mu.Unlock()
	if binary.LittleEndian.Uint64(n.window[0]) != 0 || binary.LittleEndian.Uint64(n.window[0][8:]) != 50 {
		t.Errorf("the window has %x", n.window[0][:16])
	}
}

// While the rank of the window carries out a request of a requester, the node kernel leaves alone
// what that asks for, and takes it up later.
func TestRankAtWork(t *testing.T) {
	n := newNode(t)
	a, b := n.asker(1, 3), n.asker(2, 3)
	rank, err := onesided.OpenJournal(a.Journal, onesided.ByRank)
	if err != nil {
		t.Fatal(err)
	}
	one := []byte{1, 7: 0}
	q := onesided.Request{Pair: onesided.Pair{Source: 1, Target: 3}, Kind: wire.RemoteAdd, Length: 8, Number: a.ask(n, wire.RemoteAdd, 0, 0, 8, one)}
	rank.Carry(nil, &q, one, a.ReplyKey, func(uint8) []byte {
		for range 20 {
			a.poll(n)
			b.ask(n, wire.RemoteAdd, 0, 8, 8, one)
			b.finish(n)
		}
		if a.Idle() {
			t.Error("two servers work at a time")
		}
		return n.window[0]
	})
	a.finish(n)
	n.restart(a, b)
	if n.mu.Lock(); n.window[0][0] != 1 || n.window[0][8] != 20 || len(n.faults) > 0 {
		t.Errorf("the counts are %d and %d, faults %v", n.window[0][0], n.window[0][8], n.faults)
	}
	n.mu.Unlock()
}

// When the rank of the window ends in the middle of a request, the node kernel goes on, and ends
// the job if that was an atomic access.
func TestRankEndsAtWork(t *testing.T) {
	for _, kind := range []wire.RemoteKind{wire.RemotePut, wire.RemoteAdd} {
		n := newNode(t)
		a := n.asker(1, 3)
		one := []byte{1, 7: 0}
		n.server.Ended(3) // without anything to do
		n.server.Close()
		var err error
		if n.server, err = Adopt(n.config(), n.items); err != nil {
			t.Fatal(err)
		}
		a.Journal[0] = byte(onesided.ByRank)
		if kind.Atomic() {
			a.Journal[2*8] = 1 // the intent
		}
		n.server.Admit(a.Client)
		n.server.Start()
		a.ask(n, kind, 0, 0, 8, one)
		for range 20 {
			a.poll(n)
		}
		if a.Idle() {
			t.Error("two servers work at a time")
		}
		n.server.Ended(2) // another one
		n.server.Ended(3)
		if kind.Atomic() {
			n.server.Close()
			if n.mu.Lock(); len(n.faults) != 1 || !strings.Contains(n.faults[0], "rank 1 to a window of rank 3") {
				t.Errorf("%q", n.faults)
			}
			n.mu.Unlock()
			continue
		}
		a.finish(n)
		n.server.Close()
		if n.mu.Lock(); n.window[0][0] != 1 || len(n.faults) > 0 {
			t.Errorf("the put has %d, faults %v", n.window[0][0], n.faults)
		}
		n.mu.Unlock()
	}
}

// A node kernel that was killed in an atomic access ends the job, and names the ranks.
func TestDoubt(t *testing.T) {
	n := newNode(t)
	a := n.asker(1, 3)
	a.ask(n, wire.RemoteAdd, 0, 0, 8, []byte{7: 1})
	a.finish(n)
	n.restart(a)
	if len(n.faults) > 0 {
		t.Fatalf("%q", n.faults)
	}
	n.server.Close()
	var err error
	if n.server, err = Adopt(n.config(), n.items); err != nil {
		t.Fatal(err)
	}
	a.Journal[0] = byte(onesided.ByKernel)
	binary.LittleEndian.PutUint64(a.Journal[2*8:], 2) // the intent
	n.server.Admit(a.Client)
	if len(n.faults) != 1 || !strings.Contains(n.faults[0], "rank 1 to a window of rank 3") {
		t.Errorf("%q", n.faults)
	}
	n.server.Start()
}

// No memory of a window is used when Close has returned, however many requests there are.
func TestClose(t *testing.T) {
	for range 20 {
		n := newNode(t)
		a := n.asker(1, 3)
		for range onesided.Outstanding {
			a.ask(n, wire.RemotePut, 0, 0, 1000, make([]byte, 1000))
		}
		a.poll(n)
		n.server.Close()
		n.mu.Lock()
		before := bytes.Clone(n.window[0])
		for i := range before {
			n.window[0][i] = 1
		}
		n.mu.Unlock()
		a.sender.Send([][]byte{make([]byte, 100)}, &unix.SockaddrInet4{Addr: here.As4(), Port: int(n.server.Port())})
		n.restart(a)
		a.finish(n)
	}
}
