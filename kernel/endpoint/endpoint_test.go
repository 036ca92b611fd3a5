package endpoint

import (
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"margay/internal/check"
	"margay/internal/rights"
	"margay/kernel/abi/frame"
	"margay/kernel/abi/id"
	"margay/kernel/abi/wire"
	"margay/kernel/flow"
	"margay/kernel/keep"
	"margay/kernel/record"
	"margay/kernel/task"
)

// keeper keeps items in memory.
type keeper map[string]*keep.Item

func (k keeper) Keep(item keep.Item) error {
	again := &keep.Item{Name: item.Name}
	for _, f := range item.Files {
		d, err := keep.Duplicate(f.Fd(), f.Name())
		if err != nil {
			return err
		}
		again.Files = append(again.Files, d)
	}
	k[item.Name] = again
	return nil
}

func (k keeper) Drop(string) error { return nil }

// notes is an Owner and a Taker that remembers.
type notes struct {
	faults []string
	woken  int
	held   map[id.Rank]int // messages that wait for room, by source
	taken  []flow.Origin
}

func (n *notes) Fault(err error) { n.faults = append(n.faults, err.Error()) }
func (n *notes) Woken(id.Rank)   { n.woken++ }
func (n *notes) Held(source id.Rank) {
	if n.held == nil {
		n.held = make(map[id.Rank]int)
	}
	n.held[source]++
}
func (n *notes) Placed(source id.Rank) {
	if n.held[source]--; n.held[source] == 0 {
		delete(n.held, source)
	}
}
func (n *notes) Take(o flow.Origin) { n.taken = append(n.taken, o) }

// side is an endpoint and the rank's side of it.
type side struct {
	*Endpoint
	notes
	kept       keeper
	waiting    uint64
	area       *wire.Area
	doorbell   *os.File
	upcallBell *os.File
	receive    *wire.Consumer
	upcalls    *wire.Consumer
}

// config describes rank 1 of 3, on node 5.
func (s *side) config() Config {
	return Config{
		Header: wire.Header{Job: 7, Rank: 1, Size: 3, Node: 5, LocalSize: 1, Nodes: 2}, Nodes: []id.Node{4, 5, 4},
		Waiting: &s.waiting, Owner: &s.notes, Recorder: record.New(1),
	}
}

func open(t *testing.T) *side {
	t.Helper()
	check.Leaks(t)
	s := &side{kept: make(keeper)}
	var err error
	if s.Endpoint, err = Create(s.config(), s.kept); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		s.Endpoint.Close()
		for _, item := range s.kept {
			item.CloseFiles()
		}
	})
	files, err := s.Openings()
	if err != nil || len(files) != 3 {
		t.Fatal(files, err)
	}
	size := wire.AreaSize(3)
	mem, err := unix.Mmap(int(files[0].Fd()), 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		unix.Munmap(mem)
		rights.Close(files)
	})
	if s.area, _, err = wire.OpenArea(mem); err != nil {
		t.Fatal(err)
	}
	s.doorbell, s.upcallBell = files[1], files[2]
	s.receive, s.upcalls = s.area.ReceiveConsumer(), s.area.UpcallConsumer()
	return s
}

// post gives the rank a message with a number, of so many bytes, from rank 2.
func (s *side) post(to Inbox, number uint64, size int) {
	o := flow.Origin{Number: number, Cost: uint64(size)}
	s.Deliver(to, &frame.Message{Source: 2, Target: 1, Handler: 3, Args: [2]uint64{number}, Payload: make([]byte, size)}, o, &s.notes)
}

// next takes a message out of a ring.
func (s *side) next(t *testing.T, ring *wire.Consumer) (number uint64, ok bool) {
	t.Helper()
	r, ok, err := ring.Next()
	if err != nil {
		t.Fatal(err)
	}
	if !ok {
		return 0, false
	}
	if r.Peer != 2 || r.Node != 4 || r.Handler != 3 {
		t.Fatalf("it came as %+v", r)
	}
	number = r.Args[0]
	ring.Release()
	return number, true
}

// rings returns how many bytes wait in a socket, and takes them.
func rings(f *os.File) int {
	n, _, err := unix.Recvfrom(int(f.Fd()), make([]byte, 64), unix.MSG_DONTWAIT)
	if err != nil {
		return 0
	}
	return n
}

// Messages reach the rank in order in each inbox, none passes an upcall that was sent before it,
// and a release none of the messages before it, however full the rings are and whenever the rank
// reads. Each credit returns once, when its message is in a ring.
func TestModel(t *testing.T) {
	seed := check.Seed(t)
	for run := range uint64(20) {
		t.Run(fmt.Sprint("run ", run), func(t *testing.T) { playModel(t, rand.New(rand.NewPCG(seed, run))) })
	}
}

func playModel(t *testing.T, random *rand.Rand) {
	s := open(t)
	var sent [2][]uint64             // numbers, by inbox
	var got [2]int                   // messages read, by inbox
	releases := make(map[uint64]int) // by barrier: messages sent before
	number, barriers := uint64(0), uint64(0)
	looked, upcalls := 0, 0 // messages that are in rings, and how many of them are upcalls
	look := func() {
		released := s.area.Released().Load()
		if before := releases[released]; released > 0 && len(s.taken) < before {
			t.Fatalf("released from barrier %d, %d of %d messages are in the rings", released, len(s.taken), before)
		}
	}
	read := func() bool {
		for i, ring := range []*wire.Consumer{Ordinary: s.receive, Upcalls: s.upcalls} {
			if random.IntN(2) == 0 {
				continue
			}
			n, ok := s.next(t, ring)
			if !ok {
				continue
			}
			if n != sent[i][got[i]] {
				t.Fatalf("inbox %d: message %d came, %d was expected", i, n, sent[i][got[i]])
			}
			got[i]++
			if in := int(Upcalls); i == int(Ordinary) { // every upcall that was sent before is in its ring
				before, _ := slices.BinarySearch(sent[in], n)
				for ; looked < len(s.taken); looked++ {
					if _, upcall := slices.BinarySearch(sent[in], s.taken[looked].Number); upcall {
						upcalls++
					}
				}
				if upcalls < before {
					t.Fatalf("message %d passed an upcall", n)
				}
			}
		}
		return got[0]+got[1] < len(sent[0])+len(sent[1])
	}
	for range 3000 {
		switch choice := random.IntN(20); {
		case choice < 10:
			to := Inbox(random.IntN(8) / 7)
			sent[to] = append(sent[to], number)
			s.post(to, number, random.IntN(wire.MaxPayload+1))
			number++
		case choice < 18:
			read()
		case choice < 19:
			s.Refill(&s.notes)
		default:
			barriers++
			releases[barriers] = int(number)
			s.Release(barriers)
		}
		look()
	}
	for read() || s.area.Released().Load() < barriers {
		s.Refill(&s.notes)
		look()
	}
	numbers := make([]bool, number)
	for _, o := range s.taken {
		if numbers[o.Number] {
			t.Errorf("the credit of message %d returned twice", o.Number)
		}
		numbers[o.Number] = true
	}
	if n, bytes := s.Overflow(); n != 0 || bytes != 0 || s.waiting != 0 || len(s.held) > 0 || slices.Contains(numbers, false) || len(s.faults) > 0 {
		t.Errorf("%d messages of %d bytes wait, the counter says %d, faults %v", n, bytes, s.waiting, s.faults)
	}
}

// A rank that sleeps is woken by the doorbell, one that has armed by the upcall doorbell, once.
func TestWaking(t *testing.T) {
	s := open(t)
	s.post(Ordinary, 0, 10)
	s.post(Upcalls, 1, 10)
	if rings(s.doorbell) != 0 || rings(s.upcallBell) != 0 {
		t.Error("a rank that polls was woken")
	}
	if s.Waiting() != 2 {
		t.Errorf("%d messages wait", s.Waiting())
	}
	s.next(t, s.receive)
	s.next(t, s.upcalls)
	if s.Waiting() != 0 || !s.receive.Wait() || !s.upcalls.Wait() {
		t.Fatalf("%d messages wait", s.Waiting())
	}
	s.post(Upcalls, 2, 10)
	s.post(Upcalls, 3, 10)
	if n := rings(s.upcallBell); n != 1 || s.area.Armed().Load() != 0 {
		t.Errorf("%d bytes in the upcall doorbell", n)
	}
	rings(s.doorbell)
	s.Release(1)
	if rings(s.doorbell) != 1 || s.woken != 1 {
		t.Errorf("the release from a barrier woke the rank %d times", s.woken)
	}
	s.RouseAll()
	if rings(s.doorbell) != 1 || rings(s.upcallBell) != 1 || s.woken != 3 {
		t.Error("a rank was not woken after a restart")
	}
}

// Messages to a rank that has ended, and messages that wait when it ends, are faults.
func TestLeave(t *testing.T) {
	s := open(t)
	for n := uint64(0); s.waiting == 0; n++ {
		s.post(Ordinary, n, wire.MaxPayload)
	}
	if s.Left() {
		t.Error("it has left")
	}
	s.Leave()
	s.post(Upcalls, 0, 0)
	want := "rank 2 has sent a message to rank 1 on node5, which has ended"
	if !s.Left() || !slices.Equal(s.faults, []string{want, want}) {
		t.Errorf("%q", s.faults)
	}
	taken := len(s.taken)
	s.Deliver(Ordinary, &frame.Message{Source: 2, Target: 1, Handler: wire.HandlerBarrier}, flow.Origin{Number: 9}, &s.notes)
	if len(s.faults) != 2 || len(s.taken) != taken+1 {
		t.Errorf("a note about a barrier: %q, %d taken", s.faults, len(s.taken)-taken)
	}
}

// What a rank writes over its area is reported, and nothing else happens.
func TestNonsense(t *testing.T) {
	s := open(t)
	s.memory.Bytes()[512+64+5] = 0xff // head of the receive ring (package wire)
	s.post(Ordinary, 1, 10)
	if len(s.faults) == 0 || !strings.Contains(s.faults[0], "rank 1 on node5: "+wire.ErrCorrupt.Error()) {
		t.Errorf("%q", s.faults)
	}
}

// The next node kernel continues with the same area, rings and sockets.
func TestAdopt(t *testing.T) {
	s := open(t)
	s.post(Ordinary, 0, 10)
	if item := s.kept[task.AppFile(1)]; item == nil || len(item.Files) != 1 {
		t.Errorf("the rank's end of its socket is kept as %+v", item)
	}
	replay := func() *keep.Item {
		again := make(keeper)
		if err := again.Keep(*s.kept[Item(1)]); err != nil {
			t.Fatal(err)
		}
		return again[Item(1)]
	}
	item := replay()
	next, err := Adopt(s.config(), item)
	item.CloseFiles()
	if err != nil {
		t.Fatal(err)
	}
	s.Endpoint.Close()
	s.Endpoint = next
	s.post(Ordinary, 1, 10)
	for want := range uint64(2) {
		if n, ok := s.next(t, s.receive); !ok || n != want {
			t.Errorf("message %d came as %d, %v", want, n, ok)
		}
	}
	rung := make(chan bool, 1)
	go next.Listen(func() { rung <- true })
	unix.Send(int(s.doorbell.Fd()), []byte{1}, unix.MSG_NOSIGNAL)
	<-rung
	held := next.Hold()
	if len(held) != 3 {
		t.Errorf("%d sockets are held", len(held))
	}
	rights.Close(held)

	before := check.Descriptors(t)
	for name, spoil := range map[string]func(*keep.Item){
		"no file":     func(item *keep.Item) { item.CloseFiles(); item.Files = nil },
		"wrong order": func(item *keep.Item) { slices.Reverse(item.Files) },
		"no socket":   func(item *keep.Item) { item.Files[0], item.Files[1] = item.Files[1], item.Files[0] },
	} {
		item := replay()
		spoil(item)
		if _, err := Adopt(s.config(), item); err == nil {
			t.Errorf("%s: adopted", name)
		}
		item.CloseFiles()
	}
	if _, err := Adopt(s.config(), nil); err == nil {
		t.Error("nothing was adopted")
	}
	if after := check.Descriptors(t); after > before {
		t.Errorf("%d descriptors are open, %d were", after, before)
	}
}
