package onesided

import (
	"bytes"
	"encoding/binary"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"margay/internal/check"
	"margay/kernel/abi/wire"
)

// The window of the model: a word that all count in, and a part for each rank.
const (
	sources = 2
	part    = 64
	offset  = 8
	size    = offset + sources*part
)

// op is what a rank has asked for.
type op struct {
	kind   wire.RemoteKind
	status wire.RemoteStatus
	want   []byte // of a get
}

// source is a rank that asks.
type source struct {
	r        *Requester
	key      uint64
	mine     []byte // what its part of the window must hold
	asked    map[uint64]op
	started  int
	finished int
}

// killed is the panic of a node kernel that is killed.
type killed struct{}

// The servers as targets of datagrams.
const (
	toKernel = -1
	toRank   = -2
)

// onWay is a datagram on its way.
type onWay struct {
	from, to int // source, or a server
	at       time.Duration
	b        []byte
}

// model is ranks that ask, the rank of a window, its node kernel, and a network that loses, repeats
// and reorders.
type model struct {
	t        testing.TB
	random   *rand.Rand
	sources  []*source
	memory   []byte // of the journals
	journals []*Journal
	rank     []*Journal // of the window's rank
	computes int        // steps in which that rank does not poll
	atWork   bool       // it has come in between
	served   map[Server]int
	window   []byte
	network  []onWay
	now      time.Duration
	lossy    bool
	kills    bool
	killed   int
	ends     bool // the window's rank may end
	ended    bool
	over     bool     // the job must end
	olds     []uint64 // what atomic accesses have found
}

func newModel(t testing.TB, random *rand.Rand) *model {
	m := &model{t: t, random: random, lossy: true, window: make([]byte, size), memory: make([]byte, sources*JournalSize), served: make(map[Server]int)}
	for i := range sources {
		p := Peer{Pair: Pair{uint32(i), 7}, Key: random.Uint64(), Largest: []int{1088, 1372, 9000}[random.IntN(3)]}
		m.sources = append(m.sources, &source{r: NewRequester(p), key: random.Uint64(), mine: make([]byte, part), asked: make(map[uint64]op)})
	}
	m.start()
	for i := range sources {
		m.rank = append(m.rank, m.open(i, ByRank))
	}
	return m
}

// open opens a journal for a server. The other server may come in between any two changes.
func (m *model) open(i int, server Server) *Journal {
	j, err := OpenJournal(m.memory[i*JournalSize:][:JournalSize], server)
	if err != nil {
		m.t.Fatal(err)
	}
	j.step = func() {
		if server == ByKernel && m.kills && m.random.IntN(300) == 0 || server == ByRank && m.ends && m.random.IntN(300) == 0 {
			panic(killed{})
		}
		if n := len(m.network); n > 0 && !m.atWork && m.random.IntN(4) == 0 {
			m.atWork = true
			defer func() { m.atWork = false }()
			if w := m.network[m.random.IntN(n)]; w.to < 0 {
				m.over = !m.serve(ByKernel+ByRank-server, w.b) || m.over
			}
		}
	}
	return j
}

// start starts the node kernel, and reports whether the job may go on.
func (m *model) start() bool {
	m.journals = nil
	sure := true
	for i := range sources {
		j := m.open(i, ByKernel)
		sure = j.TakeUp() && sure
		m.journals = append(m.journals, j)
	}
	return sure
}

// abandon has the node kernel take the journals from the rank that has ended, and reports whether
// the job may go on.
func (m *model) abandon() bool {
	sure := true
	for _, j := range m.journals {
		sure = j.Abandon() && sure
	}
	return sure
}

// ask starts a random request of a rank if there is room.
func (m *model) ask(i int) {
	s := m.sources[i]
	q := Request{Kind: wire.RemoteKind(1 + m.random.IntN(4))}
	if q.Kind == wire.RemoteGet && m.random.IntN(4) > 0 { // after which only gets have room
		return
	}
	if !s.r.Room(q.Kind) {
		return
	}
	var data []byte
	o := op{kind: q.Kind}
	at := m.random.IntN(part)
	refused := m.random.IntN(12)
	switch q.Kind {
	case wire.RemotePut, wire.RemoteGet:
		q.Offset, q.Length = uint64(offset+i*part+at), uint16(1+m.random.IntN(part-at))
		if q.Kind == wire.RemoteGet {
			o.want = slices.Clone(s.mine[at:][:q.Length])
			break
		}
		for range q.Length {
			data = append(data, byte(m.random.Uint32()))
		}
		if refused > 1 {
			copy(s.mine[at:], data)
		}
	case wire.RemoteAdd:
		data = binary.LittleEndian.AppendUint64(nil, 1)
		q.Length = 8
	case wire.RemoteSwap: // of a word that is never there
		data = binary.LittleEndian.AppendUint64(binary.LittleEndian.AppendUint64(nil, 1<<63), 5)
		q.Length = 16
	}
	switch refused {
	case 0:
		q.Window, o.status = 1, wire.RemoteNoWindow
	case 1:
		q.Offset, o.status = size+8, wire.RemoteOutside
	}
	s.asked[s.r.Add(q, data)] = o
	s.started++
}

// transmit sends a datagram.
func (m *model) transmit(from, to int, b []byte) {
	if len(b) > Most {
		m.t.Fatalf("a datagram has %d bytes", len(b))
	}
	for _, delay := range check.Delays(m.random, m.lossy) {
		m.network = append(m.network, onWay{from, to, m.now + delay, bytes.Clone(b)})
	}
}

// serve gives a server a request. It reports false if the job must end.
func (m *model) serve(server Server, b []byte) (goOn bool) {
	defer func() {
		if p := recover(); p != nil {
			if _, ok := p.(killed); !ok {
				panic(p)
			}
			if server == ByRank {
				m.ended = true
				goOn = m.abandon()
				return
			}
			m.killed++
			goOn = m.start()
		}
	}()
	if server == ByKernel || !m.ended {
		m.carry(server, b)
	}
	return !m.over
}

// carry carries out a request by a server.
func (m *model) carry(server Server, b []byte) {
	q, data, err := ParseRequest(b)
	if err != nil {
		m.t.Fatal(err)
	}
	j := m.journals[q.Source]
	if server == ByRank {
		j = m.rank[q.Source]
	}
	answer, _ := j.Carry(nil, &q, data, m.sources[q.Source].key, func(window uint8) []byte {
		if window > 0 {
			return nil
		}
		return m.window
	})
	if len(answer) > 0 {
		m.transmit(map[Server]int{ByKernel: toKernel, ByRank: toRank}[server], int(q.Source), answer)
		m.served[server]++
	}
}

// complete takes the outcome of a request.
func (m *model) complete(i int) func(uint64, wire.RemoteStatus, []byte) {
	s := m.sources[i]
	return func(number uint64, status wire.RemoteStatus, data []byte) {
		o, ok := s.asked[number]
		delete(s.asked, number)
		switch {
		case !ok:
			m.t.Fatalf("request %d of rank %d is answered twice", number, i)
		case status != o.status:
			m.t.Fatalf("request %d of rank %d has status %d, not %d", number, i, status, o.status)
		case status == wire.RemoteOK && o.kind == wire.RemoteGet && !bytes.Equal(data, o.want):
			m.t.Fatalf("rank %d gets %x, not %x", i, data, o.want)
		case status == wire.RemoteOK && o.kind == wire.RemoteAdd:
			m.olds = append(m.olds, binary.LittleEndian.Uint64(data))
		}
		s.finished++
	}
}

// step passes some time. It reports false if the job must end.
func (m *model) step(asks bool) bool {
	m.now += time.Duration(m.random.IntN(200)) * time.Microsecond
	slices.SortStableFunc(m.network, func(a, b onWay) int { return int(a.at - b.at) })
	if m.computes--; m.computes < 0 && m.random.IntN(20) == 0 {
		m.computes = m.random.IntN(100)
	}
	due := m.network
	if i := slices.IndexFunc(due, func(w onWay) bool { return w.at > m.now }); i >= 0 {
		due = due[:i]
	}
	m.network = slices.Clone(m.network[len(due):])
	for _, w := range due {
		if w.to == toRank && m.computes > 0 {
			m.network = append(m.network, w)
			if m.random.IntN(100) == 0 && !m.serve(ByKernel, w.b) { // which finds it in the rank's socket
				return false
			}
			continue
		}
		if w.to < 0 {
			if !m.serve(map[int]Server{toKernel: ByKernel, toRank: ByRank}[w.to], w.b) {
				return false
			}
			continue
		}
		a, data, err := ParseAnswer(w.b)
		if err != nil || a.Key != m.sources[w.to].key {
			m.t.Fatal(a, err)
		}
		m.sources[w.to].r.Arrive(&a, data, w.from == toRank, m.now, m.complete(w.to))
	}
	for i, s := range m.sources {
		for n := m.random.IntN(5); asks && n > 0; n-- {
			m.ask(i)
		}
		for train := s.r.Emit(m.now); len(train) > 0; train = s.r.Emit(m.now) {
			for k, b := range train {
				if len(b) > len(train[0]) || k+1 < len(train) && len(b) < len(train[0]) {
					m.t.Fatalf("datagram %d of a train has %d bytes, the first %d", k, len(b), len(train[0]))
				}
				to := toRank
				if s.r.ToKernel() {
					to = toKernel
				}
				m.transmit(i, to, b)
			}
		}
	}
	return true
}

// Each request takes effect once and in order, and is answered once, whatever the network does,
// whichever server carries it out, and wherever the node kernel is killed or the window's rank
// ends. The job ends only when that happens in an atomic access.
func TestRequestModel(t *testing.T) {
	seed := check.Seed(t)
	finished, doubtful, kills, ends := 0, 0, 0, 0
	served := make(map[Server]int)
	seen := func() bool { return served[ByKernel] >= 1000 && served[ByRank] >= 1000 && ends > 0 }
	for round := range uint64(1000) {
		if round >= 50 && seen() {
			break
		}
		m := newModel(t, rand.New(rand.NewPCG(seed, round)))
		m.kills, m.ends = round%2 == 0, round%3 == 0
		goOn := true
		for n := 0; n < 4000 && goOn; n++ {
			goOn = m.step(true)
		}
		if kills += m.killed; m.ended {
			ends++
		}
		if !goOn {
			doubtful++
			if m.killed == 0 && !m.ended {
				t.Fatal("the job ends although no server was killed")
			}
			continue
		}
		m.lossy, m.kills, m.ends = false, false, false
		for steps := 0; slices.ContainsFunc(m.sources, func(s *source) bool { return !s.r.Idle() }); steps++ {
			if m.step(false); steps > 20000 {
				t.Fatalf("round %d: requests are not answered", round)
			}
		}
		m.agree(round)
		finished++
		for server, n := range m.served {
			served[server] += n
		}
	}
	if !seen() {
		t.Errorf("the servers have answered %v requests, the rank has ended %d times", served, ends)
	}
	t.Logf("%d rounds to the end, %d ended by doubt, %d kills, %d ends, answered %v", finished, doubtful, kills, ends, served)
}

// Wherever a node kernel is killed in a request, or the window's rank ends, the next one or the
// node kernel carries out what was not, and knows when it does not know.
func TestKilledAtEachStep(t *testing.T) {
	for _, server := range []Server{ByKernel, ByRank} {
		killAtEachStep(t, server)
	}
}

// killAtEachStep kills a server at each step.
func killAtEachStep(t *testing.T, server Server) {
	for _, kind := range []wire.RemoteKind{wire.RemotePut, wire.RemoteGet, wire.RemoteAdd, wire.RemoteSwap} {
		data := map[wire.RemoteKind][]byte{wire.RemotePut: make([]byte, 16), wire.RemoteAdd: {3, 7: 0}, wire.RemoteSwap: {0, 8: 3, 15: 0}}[kind]
		if kind == wire.RemotePut {
			data[0] = 3
		}
		q := Request{Kind: kind, Length: uint16(max(len(data), 8)), Number: 1}
		for at := 0; ; at++ {
			window, memory := make([]byte, 16), make([]byte, JournalSize)
			carry := func(server Server, step func()) (answer []byte) {
				j, err := OpenJournal(memory, server)
				if err != nil {
					t.Fatal(err)
				}
				if j.step = step; server == ByKernel && (!j.TakeUp() || !j.Abandon()) {
					return nil
				}
				answer, _ = j.Carry(nil, &q, data, 0, func(uint8) []byte { return window })
				return answer
			}
			left, was := at, false
			func() {
				defer func() { was = recover() != nil }()
				carry(server, func() {
					if left--; left < 0 {
						panic(killed{})
					}
				})
			}()
			j, _ := OpenJournal(memory, ByKernel)
			answer := carry(ByKernel, nil)
			if doubtful := was && kind.Atomic() && j.words[wordDone].Load() == 0; doubtful != (answer == nil) {
				t.Errorf("server %d, kind %d, killed after change %d: doubtful %v, answered %x", server, kind, at, doubtful, answer)
			}
			if answer != nil && kind != wire.RemoteGet && window[0] != 3 {
				t.Errorf("server %d, kind %d, killed after change %d: the window has %x", server, kind, at, window)
			}
			if !was {
				break
			}
		}
	}
}

// agree compares the memory with what was asked for, when all is answered.
func (m *model) agree(round uint64) {
	slices.Sort(m.olds)
	for i, old := range m.olds {
		if old != uint64(i) {
			m.t.Fatalf("round %d: atomic access %d has found %d", round, i, old)
		}
	}
	if n := binary.LittleEndian.Uint64(m.window); n != uint64(len(m.olds)) {
		m.t.Fatalf("round %d: %d is counted, %d accesses were answered", round, n, len(m.olds))
	}
	for i, s := range m.sources {
		if len(s.asked) > 0 || s.started != s.finished || s.started < 20 {
			m.t.Fatalf("round %d: rank %d has asked %d times and has %d answers", round, i, s.started, s.finished)
		}
		if !bytes.Equal(m.window[offset+i*part:][:part], s.mine) {
			m.t.Fatalf("round %d: the part of rank %d is another one", round, i)
		}
	}
}

// put is a request of one byte, and none takes an answer that answers no request.
var put = Request{Kind: wire.RemotePut, Length: 1}

func none(uint64, wire.RemoteStatus, []byte) {}

// trusted returns a requester whose rank has answered all requests before a number.
func trusted(t *testing.T) (r *Requester, number uint64) {
	t.Helper()
	r = NewRequester(Peer{Largest: 1372})
	number = r.Add(put, []byte{1})
	r.Emit(0)
	r.Arrive(&Answer{Done: number}, nil, true, 0, none)
	if !r.Idle() {
		t.Fatal("the request is not answered")
	}
	return r, number + 1
}

// A datagram that is lost is sent again when it is due, to the node kernel, and at once when a
// later one was seen.
func TestDue(t *testing.T) {
	r, number := trusted(t)
	if r.Due() != 0 || len(r.Emit(0)) != 0 {
		t.Errorf("due at %v, before there is anything to send", r.Due())
	}
	r.Add(put, []byte{1})
	r.Add(put, []byte{2})
	if n := len(r.Emit(0)); n != 2 || r.ToKernel() {
		t.Errorf("%d datagrams, to the node kernel: %t", n, r.ToKernel())
	}
	if due := r.Due(); due != patience || len(r.Emit(due-1)) != 0 || len(r.Emit(due)) != 2 || !r.ToKernel() {
		t.Errorf("due at %v, to the node kernel: %t", due, r.ToKernel())
	}
	now := 2 * patience // the rank gets no copy yet
	r.Arrive(&Answer{Gap: true, Done: number - 1}, nil, false, now, none)
	if n := len(r.Emit(now)); n != 2 || !r.ToKernel() {
		t.Errorf("%d datagrams after a gap", n)
	}
	r.Arrive(&Answer{Gap: true, Done: number - 1}, nil, false, now, none)
	r.Arrive(&Answer{Done: number + 2}, nil, false, now, none)
	if n := len(r.Emit(now)); n != 0 {
		t.Errorf("%d datagrams after the same gap", n)
	}
	due := r.Due()
	if due < leastTimeout || len(r.Emit(due-1)) != 1 || r.ToKernel() || len(r.Emit(due-1)) != 0 {
		t.Errorf("due at %v, and no copy for the rank before", due)
	}
	if n := len(r.Emit(due)); n != 2 || !r.ToKernel() {
		t.Errorf("%d datagrams behind a copy, to the node kernel: %t", n, r.ToKernel())
	}
}

// At first, and when the rank has not answered, the node kernel is asked, and the rank gets a copy
// of one request. It is asked when it has answered a copy soon, and all before is answered.
func TestCopies(t *testing.T) {
	r := NewRequester(Peer{Largest: 1372})
	emit := func(want int, kernel bool, now time.Duration) {
		t.Helper()
		if n := len(r.Emit(now)); n != want || n > 0 && r.ToKernel() != kernel {
			t.Errorf("at %v: %d datagrams, not %d, to the node kernel: %t", now, n, want, r.ToKernel())
		}
	}
	add := func(n int) {
		for range n {
			r.Add(put, []byte{1})
		}
	}
	now := time.Second
	add(10)
	emit(1, false, now)
	emit(10, true, now)
	emit(0, true, now)
	r.Arrive(&Answer{Done: 1}, nil, true, now+patience, none) // too late
	add(1)
	emit(1, true, now+patience)
	now = r.again
	emit(1, false, now)
	emit(0, true, now)
	r.Arrive(&Answer{Done: 2}, nil, true, now+patience-1, none)
	add(1)
	emit(1, true, now+patience)
	now = r.again
	emit(0, true, now) // the rank answers: there is nothing to find out
	r.Arrive(&Answer{Done: 12}, nil, false, now, none)
	add(3)
	emit(3, false, now)
}

// A server that finds the other one at work says so without any effect, and the requester asks once
// more at once.
func TestBusy(t *testing.T) {
	memory, window := make([]byte, JournalSize), make([]byte, 8)
	rank, _ := OpenJournal(memory, ByRank)
	kernel, _ := OpenJournal(memory, ByKernel)
	r := NewRequester(Peer{Largest: 1372})
	q := put
	q.Number = r.Add(put, []byte{1})
	r.Emit(1)
	r.Emit(1) // behind a copy
	arrive := func(b []byte) int {
		a, _, err := ParseAnswer(b)
		if err != nil {
			t.Fatal(err)
		}
		r.Arrive(&a, nil, false, 2, none)
		return len(r.Emit(3))
	}
	rank.Carry(nil, &q, []byte{1}, 0, func(uint8) []byte {
		for i := range 2 {
			answer, changed := kernel.Carry(nil, &q, []byte{1}, 0, func(uint8) []byte { return window })
			if n := arrive(answer); n != 1-i || changed || window[0] != 0 {
				t.Errorf("the requester sends %d datagrams, changed %t, window %x", n, changed, window)
			}
		}
		return window
	})
	if window[0] != 1 {
		t.Error("the rank does not carry it out")
	}
}

// A rank that does not answer gets a copy more and more rarely, and each request again once it has
// answered one.
func TestWhoIsAsked(t *testing.T) {
	r := NewRequester(Peer{Largest: 1372})
	now := time.Duration(0)
	// ask makes a request, and reports whether the rank gets it. The rank answers, or the node
	// kernel.
	ask := func(answers bool) (asked bool) {
		number := r.Add(put, []byte{1})
		kernel := false
		for range 3 {
			for len(r.Emit(now)) > 0 {
				asked, kernel = asked || !r.ToKernel(), kernel || r.ToKernel()
			}
			if asked && answers || kernel {
				break
			}
			now = r.Due()
		}
		now += 20 * time.Microsecond
		r.Arrive(&Answer{Done: number}, nil, asked && answers, now, none)
		if !r.Idle() {
			t.Fatal("the request is not answered")
		}
		return asked
	}
	// count returns how often the rank is asked in a second.
	count := func(answers bool) (n int) {
		for end := now + time.Second; now < end; now += 100 * time.Microsecond {
			if ask(answers) {
				n++
			}
		}
		return n
	}
	if n := count(false); n < 10 || n > 20 {
		t.Errorf("a rank that computes was asked %d times in a second", n)
	}
	now += mostPause
	if n := count(true); n < 8000 {
		t.Errorf("a rank that answers was asked %d times in a second", n)
	}
	if !ask(false) || ask(false) {
		t.Error("the rank is not left alone when it does not answer")
	}
	if now += leastPause; !ask(false) {
		t.Error("the rank is not asked again soon")
	}
}

// Numbers, memory and a journal of a hostile rank are no more than its own.
func FuzzRequest(f *testing.F) {
	q := Request{Kind: wire.RemoteGet, Length: MaxData, Number: 1, Offset: 1<<64 - 1}
	f.Add(q.Append(nil), uint64(0))
	q.Kind, q.Length = wire.RemoteAdd, 8
	f.Add(append(q.Append(nil), make([]byte, 8)...), uint64(1)<<63)
	q.Kind, q.Length, q.Number, q.Offset = wire.RemotePut, 3, 1<<64-1, 6
	f.Add(append(q.Append(nil), 1, 2, 3), uint64(1<<64-1))
	f.Fuzz(func(t *testing.T, b []byte, done uint64) {
		q, data, err := ParseRequest(b)
		if err != nil {
			return
		}
		if again := append(q.Append(nil), data...); !bytes.Equal(again, b) {
			t.Fatalf("%x becomes %x", b, again)
		}
		j, err := OpenJournal(make([]byte, JournalSize), ByKernel)
		if err != nil {
			t.Fatal(err)
		}
		j.words[wordDone].Store(done)
		for range 2 {
			answer, _ := j.Carry(nil, &q, data, 1, func(window uint8) []byte { return make([]byte, window) })
			if len(answer) == 0 {
				continue
			}
			if a, _, err := ParseAnswer(answer); err != nil || a.Pair != q.Pair || a.Key != 1 {
				t.Fatal(a, err)
			}
		}
	})
}

// A requester takes any answer, as a hostile node sends it, and completes nothing twice.
func FuzzAnswer(f *testing.F) {
	a := Answer{Gap: true, Number: 2, Done: 3, NoWindow: 1 << 63, Outside: 4}
	f.Add(a.Append(nil, make([]byte, 8)))
	f.Add((&Answer{Done: 1<<64 - 1}).Append(nil, nil))
	f.Fuzz(func(t *testing.T, b []byte) {
		a, data, err := ParseAnswer(b)
		if err != nil {
			return
		}
		if again := a.Append(nil, data); !bytes.Equal(again, b) {
			t.Fatalf("%x becomes %x", b, again)
		}
		r := NewRequester(Peer{Largest: 1088})
		r.Add(put, []byte{1})
		r.Add(Request{Kind: wire.RemoteAdd, Length: 8}, make([]byte, 8))
		r.Emit(0)
		r.Emit(0) // behind a copy
		seen := make(map[uint64]bool)
		for range 2 {
			r.Arrive(&a, data, true, 1, func(number uint64, _ wire.RemoteStatus, data []byte) {
				if seen[number] || number == 0 || number > 2 {
					t.Fatalf("request %d is answered", number)
				}
				seen[number] = true
			})
		}
		r.Emit(time.Second)
	})
}
