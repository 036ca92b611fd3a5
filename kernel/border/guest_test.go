//go:build guest

package border

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cilium/ebpf"

	"margay/ext/packet/firewall"
	"margay/internal/check"
	"margay/kernel/abi/id"
	"margay/kernel/abi/mirror"
	"margay/kernel/abi/slot"
	"margay/kernel/abi/wire"
	"margay/kernel/extension"
	"margay/kernel/extension/extensiontest"
	"margay/kernel/keep"
	"margay/nimble/engine/list"
)

// kept stands in for PID 1.
type kept struct {
	mu    sync.Mutex
	items map[string]keep.Item
}

func (k *kept) Keep(item keep.Item) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	c := item
	c.Files = nil
	for _, f := range item.Files {
		d, err := keep.Duplicate(f.Fd(), "kept")
		if err != nil {
			return err
		}
		c.Files = append(c.Files, d)
	}
	old := k.items[item.Name]
	old.CloseFiles()
	k.items[item.Name] = c
	return nil
}

func (k *kept) Drop(name string) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	for at, item := range k.items {
		if at == name || len(at) > len(name) && at[:len(name)+1] == name+"/" {
			item.CloseFiles()
			delete(k.items, at)
		}
	}
	return nil
}

// rig is a border on the loopback interface, and the machine's extensions.
type rig struct {
	*Border
	t       *testing.T
	kept    *kept
	manager *extension.Manager
	started bool
	changed atomic.Int32
	program *ebpf.Program // the attached one
	number  ebpf.ProgramID
}

func newRig(t *testing.T) *rig {
	t.Helper()
	r := &rig{t: t, kept: &kept{items: make(map[string]keep.Item)}}
	r.open()
	t.Cleanup(func() {
		if r.program != nil {
			r.program.Close()
		}
		if err := r.manager.Machine().Close(); err != nil {
			t.Error(err)
		}
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	})
	return r
}

// open makes a border and a manager, as a new node kernel does.
func (r *rig) open() {
	r.t.Helper()
	m, err := extension.NewManager(list.Automatic(), 2, r.t.Logf)
	if err != nil {
		r.t.Fatal(err)
	}
	b := New(Config{
		Interface: func() (string, int, error) {
			lo, err := net.InterfaceByName("lo")
			if err != nil {
				return "", 0, err
			}
			return lo.Name, lo.Index, nil
		},
		Chain:   m.OnInterface,
		Jobs:    true,
		Changed: func() { r.changed.Add(1) },
		Keeper:  r.kept, Log: r.t.Logf,
	})
	for _, name := range []slot.Name{slot.Packet, slot.Message} {
		m.Watch(name, func(id.Job) { b.Follow() })
	}
	r.Border, r.manager, r.started = b, m, false
}

// start starts the border, unless it was started.
func (r *rig) start() {
	if !r.started {
		r.started = true
		r.Start()
	}
}

// patience is for Linux, whose verifier takes seconds on an emulated processor.
const patience = 2 * time.Minute

// reopen makes a border and a manager, as a new node kernel does that finds these items.
func (r *rig) reopen(names ...string) {
	r.t.Helper()
	items := r.kept.items
	r.kept.items = make(map[string]keep.Item)
	r.open()
	for _, name := range names {
		item, ok := items[name]
		if !ok {
			r.t.Fatalf("%s is not kept", name)
		}
		if err := r.kept.Keep(item); err != nil {
			r.t.Fatal(err)
		}
		if err := r.Adopt(&item); err != nil {
			r.t.Fatal(err)
		}
	}
}

// judges reports whether the program asks all extensions.
func (r *rig) judges() bool { return r.Judges(r.manager.OnInterface()) }

// judging starts the border, and waits until the program judges messages. Linux verifies one
// program with all extensions that there are by then.
func (r *rig) judging() {
	r.t.Helper()
	begin := time.Now()
	r.start()
	check.AwaitFor(r.t, patience, "program with the extensions", r.judges)
	r.t.Logf("the program is there after %v", time.Since(begin).Round(time.Millisecond))
	r.states.is.setBudget(time.Hour) // the host may stop the guest during a run
}

// run gives the attached program a frame, and returns what it passes on.
func (r *rig) run(frame []byte) []byte {
	r.t.Helper()
	r.mu.Lock()
	info, err := r.link.Info()
	r.mu.Unlock()
	if err != nil {
		r.t.Fatal(err)
	}
	if r.program == nil || r.number != info.Program {
		if r.program != nil {
			r.program.Close()
		}
		if r.program, err = ebpf.NewProgramFromID(info.Program); err != nil {
			r.t.Fatal(err)
		}
		r.number = info.Program
	}
	out := make([]byte, len(frame)+64)
	verdict, err := r.program.Run(&ebpf.RunOptions{Data: frame, DataOut: out})
	if err != nil || verdict != 2 {
		r.t.Fatalf("verdict %d, %v", verdict, err)
	}
	return out[:len(frame)]
}

func (r *rig) insert(q extension.Request) *extension.Extension {
	r.t.Helper()
	x, err := r.manager.Machine().Insert(q)
	if err != nil {
		r.t.Fatal(err)
	}
	return x
}

// at returns what the list says about where an extension runs, and why it does not.
func (r *rig) at(x *extension.Extension) (engine, why string) {
	r.t.Helper()
	r.Report()
	for _, i := range r.manager.List() {
		if i.Handle == x.Handle() {
			return i.Engine, i.Passed
		}
	}
	r.t.Fatal("it is not in the list")
	return "", ""
}

// hasher stops messages by a hash over its context, about one in four, and none of the libraries.
// It takes one of hashStep words, because Linux verifies it on all ways there.
var hasher = extensiontest.Program{Section: "packet", Name: "hasher", Code: []string{
	"ldxw r8, [r1+16]", "mov r0, 0", "jge r8, 256, +15", "mov r3, 0", "mov r5, 27",
	"ldxdw r6, [r1+0]", "xor r3, r6", "mov r7, 0x1e3779b1", "mul r3, r7", "add r1, 40", "sub r5, 1", "jne r5, 0, -7",
	"rsh r3, 61", "mov r0, 2", "jeq r3, 0, +3", "mov r0, 1", "jeq r3, 1, +1", "mov r0, 0", "exit",
}}

const hashStep = 5 // the context has 27 times as many words

func hash(c *slot.PacketContext) slot.Verdict {
	if c.Message.Handler >= wire.MaxHandlers {
		return slot.Pass
	}
	b, _ := binary.Append(nil, binary.LittleEndian, c)
	var h uint64
	for ; len(b) > 0; b = b[hashStep*8:] {
		h = (h ^ binary.LittleEndian.Uint64(b)) * 0x1e3779b1
	}
	switch h >> 61 {
	case 0:
		return slot.Drop
	case 1:
		return slot.Consume
	}
	return slot.Pass
}

// sender makes the datagrams of a pair.
type sender struct {
	*rand.Rand
	steady  bool // short messages only, and as many in a datagram as fit
	pair    Pair
	ring    []byte // all that was written, from position 0 on
	records []int  // positions of records
	long    *struct{ total, next int }
}

// write adds a record to the ring.
func (s *sender) write() {
	handler, size := uint16(s.IntN(6)), s.IntN(60)
	args := [2]uint64{s.Uint64(), s.Uint64()}
	kind := s.IntN(12)
	if s.steady {
		kind = 11
	}
	switch kind {
	case 0:
		handler = wire.MaxHandlers + uint16(s.IntN(3))
	case 1:
		size = s.IntN(1300)
	case 2, 3, 4:
		if s.long == nil {
			s.long = &struct{ total, next int }{total: 1025 + s.IntN(5000)}
		}
		handler, size = wire.HandlerPiece, 1+s.IntN(1300)
		args[1] = uint64(s.pair.Target) | uint64(s.IntN(6))<<32 | uint64(s.IntN(4))<<48
		rest := s.long.total - s.long.next
		if s.long.next == 0 {
			rest += wire.PieceArgs
			size += wire.PieceArgs
		}
		size = min(size, rest)
		args[0] = uint64(s.long.total) | uint64(s.long.next)<<32
		if s.long.next += size; len(s.records) > 0 && s.long.next-size == 0 {
			s.long.next -= wire.PieceArgs
		}
		if s.long.next >= s.long.total || s.IntN(20) == 0 {
			s.long = nil
		}
	}
	length := (wire.ChannelHeader + size + 7) &^ 7
	if at := len(s.ring) % wire.ChannelRing; at+length > wire.ChannelRing {
		s.records = append(s.records, len(s.ring))
		pad := make([]byte, wire.ChannelRing-at)
		binary.LittleEndian.PutUint16(pad[4:], 2)
		s.ring = append(s.ring, pad...)
	}
	s.records = append(s.records, len(s.ring))
	record := make([]byte, length)
	for i := range record {
		record[i] = byte(s.Uint32())
	}
	binary.LittleEndian.PutUint32(record, uint32(size))
	binary.LittleEndian.PutUint16(record[4:], 1)
	binary.LittleEndian.PutUint16(record[6:], handler)
	binary.LittleEndian.PutUint64(record[8:], args[0])
	binary.LittleEndian.PutUint64(record[16:], args[1])
	s.ring = append(s.ring, record...)
}

// datagram returns a frame with records from the n-th on, not across the ring's end.
func (s *sender) datagram(n int) []byte {
	at := len(s.ring)
	if n < len(s.records) {
		at = s.records[n]
	}
	most, end := 1430, at
	if !s.steady {
		most = 1 + s.IntN(most)
	}
	for n++; ; n++ {
		next := len(s.ring)
		if n < len(s.records) {
			next = s.records[n]
		}
		if next-at > most || next == end || at%wire.ChannelRing+next-at > wire.ChannelRing {
			break
		}
		end = next
	}
	le := binary.LittleEndian
	b := le.AppendUint16(nil, 0x4d4d)
	b = append(b, 1, byte(s.IntN(2)))
	b = le.AppendUint32(b, s.pair.Number)
	b = le.AppendUint64(b, s.pair.Key)
	b = le.AppendUint64(b, uint64(at))
	b = le.AppendUint64(b, s.Uint64())
	b = le.AppendUint64(b, s.Uint64())
	return s.frame(append(b, s.ring[at:end]...))
}

// frame puts a datagram into a frame.
func (s *sender) frame(b []byte) []byte {
	be := binary.BigEndian
	f := make([]byte, 14+28, 14+28+len(b)+40)
	be.PutUint16(f[12:], 0x0800)
	ip := f[14:]
	ip[0], ip[8], ip[9] = 0x45, 64, 17
	be.PutUint16(ip[2:], uint16(28+len(b)))
	be.PutUint16(ip[6:], 0x4000)
	from := s.pair.From.Addr().As4()
	copy(ip[12:], from[:])
	copy(ip[16:], []byte{10, 0, 0, 1})
	be.PutUint16(ip[20:], s.pair.From.Port())
	be.PutUint16(ip[22:], s.pair.Port)
	be.PutUint16(ip[24:], uint16(8+len(b)))
	f = append(f, b...)
	if s.IntN(4) > 0 {
		be.PutUint16(f[14+26:], checksum(f[14:]))
	}
	return append(f, make([]byte, s.IntN(3))...) // some cards leave bytes behind the packet
}

// spoil changes a frame as an attacker or a bad wire would.
func (s *sender) spoil(f []byte) []byte {
	be := binary.BigEndian
	switch s.IntN(10) {
	case 0:
		f = f[:14+s.IntN(len(f)-14)]
	case 1: // an option of IP, so that the rest is elsewhere
		f = append(append(append([]byte(nil), f[:34]...), 1, 1, 1, 1), f[34:]...)
		f[14] = 0x46
		be.PutUint16(f[16:], be.Uint16(f[16:])+4)
	case 2:
		be.PutUint16(f[20:], uint16(s.IntN(1<<14)))
	case 3:
		be.PutUint16(f[16:], uint16(s.IntN(3000)))
	case 4:
		be.PutUint16(f[14+24:], uint16(s.IntN(3000)))
	case 5:
		f[s.IntN(14+28+24)] ^= 1 << s.IntN(8) // the reserved bits, too
	case 6:
		for range 1 + s.IntN(4) {
			f[s.IntN(len(f))] ^= 1 << s.IntN(8)
		}
	case 7:
		for i := range f {
			f[i] = byte(s.Uint32())
		}
	case 9: // as a wire does
		f[14+28+s.IntN(len(f)-14-28)] ^= 1 << s.IntN(8)
		return f
	case 8: // a tag of a VLAN
		f = append(append(append([]byte(nil), f[:12]...), 0x81, 0, 0, 0), f[12:]...)
	}
	if ip := f[min(14, len(f)):]; len(ip) >= 68 && int(be.Uint16(ip[2:])) <= len(ip) && be.Uint16(ip[2:]) >= 28 && be.Uint16(ip[26:]) != 0 {
		be.PutUint16(ip[26:], checksum(ip[:be.Uint16(ip[2:])]))
	}
	return f
}

// forge changes a byte of the data in a frame, with the right checksum.
func (s *sender) forge(f []byte) {
	be := binary.BigEndian
	ip := f[14 : 14+be.Uint16(f[16:])]
	if data := ip[28+mirror.HeaderSize:]; len(data) > 0 {
		data[s.IntN(len(data))] ^= 1 << s.IntN(8)
	}
	if be.Uint16(ip[26:]) != 0 {
		be.PutUint16(ip[26:], checksum(ip))
	}
}

// TestFrames gives the program random frames of some pairs, in order, again, with gaps, spoilt and
// forged, and compares it with the reference: the frames that it passes on, and what the extensions
// count.
func TestFrames(t *testing.T) {
	random := rand.New(rand.NewPCG(check.Seed(t), 0))
	r := newRig(t)
	fire := r.insert(extension.Request{Object: firewall.Object, Settings: []extension.Setting{{Name: firewall.Handler, Value: 3}}})
	last := r.insert(extension.Request{Object: extensiontest.Object(t, hasher)})
	r.judging()
	for _, x := range []*extension.Extension{fire, last} {
		check.AwaitFor(t, patience, x.Label()+" on the interface", func() bool { // each is noted after the other
			engine, _ := r.at(x)
			return strings.HasSuffix(engine, "+lo")
		})
	}
	var want [64]firewall.Count
	runs := [2]uint64{}
	ref := &reference{pairs: make(map[end]*judged), ask: func(c *slot.PacketContext) slot.Verdict {
		n := &want[c.Message.SourceNode]
		n.Messages, n.Bytes, runs[0] = n.Messages+1, n.Bytes+c.Message.Total, runs[0]+1
		if c.Message.Handler == 3 {
			n.Dropped++
			return slot.Drop
		}
		runs[1]++
		return hash(c)
	}}
	var senders []*sender
	for i := range 3 {
		s := &sender{Rand: random, pair: Pair{
			Number: uint32(i), Key: random.Uint64(), Port: uint16(40000 + i/2), From: netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, 0, byte(2 + i)}), uint16(50000+i)),
			Job: 7, Node: 5 + id.Node(i), Source: id.Rank(20 + i), Target: id.Rank(3 + i),
		}}
		seal := r.admit(s, 0, 0)
		ref.pairs[s.pair.end()] = newJudged(s, seal, 0)
		senders = append(senders, s)
	}
	sealed, spoilt := 0, 0
	const rounds = 4000
	for round := range rounds {
		s := senders[random.IntN(len(senders))]
		p := ref.pairs[s.pair.end()]
		for range 1 + random.IntN(3) {
			s.write()
		}
		n := 0 // the first record that is new
		for n = len(s.records) - 1; n > 0 && uint64(s.records[n-1]) >= p.position; n-- {
		}
		switch random.IntN(10) {
		case 0:
			n += random.IntN(4)
		case 1, 2:
			n = max(0, n-random.IntN(8))
		}
		f := s.datagram(n)
		switch random.IntN(10) {
		case 0, 1:
			f = s.spoil(f)
		case 2:
			s.forge(f)
		}
		if len(f) < 14 {
			continue
		}
		expected, judged := ref.take(f)
		out := r.run(f)
		if !bytes.Equal(out, expected) {
			t.Fatalf("round %d: the frame\n%x became\n%x, want\n%x", round, f, out, expected)
		}
		if judged {
			sealed++
		}
		if p.forged == mostForged && random.IntN(10) == 0 { // some frames were in vain
			spoilt++
			ref.pairs[s.pair.end()] = newJudged(s, r.admit(s, 0, p.position), p.position)
		}
	}
	r.Report()
	if n := [2]uint64{fire.Stats().Runs, last.Stats().Runs}; n != runs || sealed < rounds/2 || ref.stopped < 100 || spoilt == 0 {
		t.Errorf("%d runs, want %d; %d frames sealed, %d messages stopped, %d pairs spoilt", n, runs, sealed, ref.stopped, spoilt)
	}
	counts, err := firewall.Read(fire.Map(firewall.Counts).Memory().Bytes())
	if err != nil || [64]firewall.Count(counts) != want {
		t.Errorf("it counts %v, want %v", counts[:10], want[:10])
	}
	if s := r.states.is; s.Judged != uint64(sealed) || s.Met != 0 || s.Busy != free {
		t.Errorf("%+v, %d sealed", s, sealed)
	}
	t.Logf("%d frames sealed, %d messages stopped, %d runs", sealed, ref.stopped, runs[0])
}

// An extension stays in the node kernel if Linux cannot run it, with the reason, and the others
// stay on the interface. Removed, it keeps nothing from there.
func TestRefused(t *testing.T) {
	r := newRig(t)
	good := r.insert(extension.Request{Object: firewall.Object})
	r.judging()
	bad := r.insert(extension.Request{Object: firewall.Object, Settings: []extension.Setting{{Name: firewall.Handler, Value: 3}, {Name: firewall.Refuse, Value: 4}}})
	if _, why := r.at(bad); r.judges() || !strings.HasPrefix(why, "not yet on the interface") {
		t.Errorf("%s", why)
	}
	check.AwaitFor(t, patience, "refusal", func() bool {
		_, why := r.at(bad)
		return strings.HasPrefix(why, "not on the interface: ")
	})
	if engine, why := r.at(bad); r.judges() || !bytes.Contains([]byte(why), []byte("service message_reply")) && !bytes.Contains([]byte(why), []byte("not one that the kernel has")) {
		t.Errorf("it runs on %s: %s", engine, why)
	}
	if engine, why := r.at(good); engine[len(engine)-3:] != "+lo" {
		t.Errorf("it runs on %s: %s", engine, why)
	}
	if err := r.manager.Remove(bad.Handle(), "the test"); err != nil || !r.judges() {
		t.Errorf("%v, judges %v", err, r.judges())
	}
	if err := r.manager.Remove(good.Handle(), "the test"); err != nil || r.judges() {
		t.Errorf("%v, judges %v", err, r.judges())
	}
	check.AwaitFor(t, patience, "end of the program", func() bool {
		r.mu.Lock()
		defer r.mu.Unlock()
		return r.link == nil
	})
	if len(r.kept.items) > 0 || r.changed.Load() != 1 {
		t.Errorf("kept: %v; %d changes", r.kept.items, r.changed.Load())
	}
}

// Verdicts that are not allowed are faults, with the errors of the node kernel, and the last one
// removes the extension.
func TestFaults(t *testing.T) {
	r := newRig(t)
	s := newSender()
	x := r.insert(extension.Request{Object: extensiontest.Object(t, extensiontest.Program{Section: "packet", Name: "nonsense", Code: []string{"mov r0, 9", "exit"}})})
	r.judging()
	r.admit(s, 0, 0)
	for len(s.records) < 3*slot.FaultLimit {
		s.write()
	}
	for n := range s.records {
		r.run(s.datagram(n)) // and those behind it
	}
	check.Await(t, "removal", func() bool { return len(r.manager.Machine().Chain(slot.Packet)) == 0 })
	if f := x.Stats(); f.Faults != slot.FaultLimit {
		t.Errorf("%+v", f)
	}
	check.Await(t, "reason", func() bool {
		list := r.manager.List()
		return len(list) == 1 && list[0].Removed == fmt.Sprintf("it made %d faults, the last: answer 9 is not a verdict of slot packet", slot.FaultLimit)
	})
}

// An extension whose runs take long has its messages pass the node kernel, and those on their way
// are still judged. Others were inserted while it ran on the interface.
func TestSlow(t *testing.T) {
	r := newRig(t)
	s := newSender()
	passes := extension.Request{Object: extensiontest.Object(t, extensiontest.Program{Section: "packet", Name: "passes", Code: []string{"mov r0, 0", "exit"}})}
	x := r.insert(passes)
	r.judging()
	for range 2 { // the last one while Linux verifies a program with the one before
		r.insert(passes)
	}
	check.AwaitFor(t, patience, "program with all extensions", r.judges)
	seal := r.admit(s, 0, 0)
	s.write()
	r.run(s.datagram(0))
	atomic.StoreUint32(&r.members[0].tally.is.Slow, slowLimit)
	check.Await(t, "end of its judgement", func() bool { return !r.judges() })
	if _, why := r.at(x); !strings.HasPrefix(why, "no longer on the interface: more than one in 5 of its runs") {
		t.Errorf("%s", why)
	}
	s.write()
	sealed := s.sealed(r.run(s.datagram(1)), seal)
	if r.Report(); !sealed || x.Stats().Runs != 2 {
		t.Errorf("sealed %v, %d runs", sealed, x.Stats().Runs)
	}
}

// newSender returns a sender whose datagrams are always the same.
func newSender() *sender {
	return &sender{Rand: rand.New(rand.NewPCG(1, 1)), steady: true, pair: Pair{Number: 1, Key: 2, Port: 3, From: netip.MustParseAddrPort("10.0.0.9:4"), Job: 5, Node: 6}}
}

// newJudged returns what the reference knows of a pair that was admitted.
func newJudged(s *sender, seal, position uint64) *judged {
	return &judged{Pair: s.pair, seal: seal, position: position, trusted: position, records: make(map[uint64]record)}
}

// admit admits the sender's pair with a seal, 0 for a new one, at a position, and returns the seal.
func (r *rig) admit(s *sender, seal, position uint64) uint64 {
	r.t.Helper()
	if seal == 0 {
		seal = s.Uint64() | 1
	}
	ok, err := r.Admit(s.pair, seal, position)
	if err != nil || !ok {
		r.t.Fatal(ok, err)
	}
	return seal
}

// sealed reports whether the program has judged a frame.
func (s *sender) sealed(frame []byte, seal uint64) bool {
	return binary.LittleEndian.Uint64(frame[14+28+8:]) == s.pair.Key^seal
}

// While the node kernel runs an extension, frames are not judged, and are when they come again. A
// node kernel that was killed in a run, and its successor, change nothing: the program stays.
func TestTurns(t *testing.T) {
	r := newRig(t)
	s := newSender()
	x := r.insert(extension.Request{Object: firewall.Object})
	r.judging()
	seal := r.admit(s, 0, 0)
	s.write()
	run := func() bool { return s.sealed(r.run(s.datagram(len(s.records)-1)), seal) }
	messages := func(x *extension.Extension) uint64 {
		counts, err := firewall.Read(x.Map(firewall.Counts).Memory().Bytes())
		if err != nil {
			t.Fatal(err)
		}
		return counts[6].Messages
	}
	r.Lock()
	if run() {
		t.Error("it is judged while the node kernel runs an extension")
	}
	r.Unlock()
	for range 2 {
		if !run() || messages(x) != 1 {
			t.Errorf("%d messages are counted", messages(x))
		}
	}
	r.Lock() // and it is killed
	old, oldManager, number := r.Border, r.manager, r.number
	r.reopen(keptBorder, memberItem(x.Handle()))
	if again := r.admit(s, seal, 0); again != seal {
		t.Fatal(again)
	}
	y := r.insert(extension.Request{Object: firewall.Object, Handle: x.Handle()})
	r.start()
	if !r.judges() || messages(y) != 1 || !run() || messages(y) != 1 {
		t.Errorf("%d messages are counted afterwards", messages(y))
	}
	s.write()
	if !run() || messages(y) != 2 || messages(x) != 2 || r.number != number {
		t.Errorf("%d and %d messages are counted in the end", messages(y), messages(x))
	}
	old.Unlock()
	if err := errors.Join(oldManager.Machine().Close(), old.Close()); err != nil {
		t.Error(err)
	}
}

// A node kernel detaches the program of an earlier one that nothing needs any more.
func TestLeftOver(t *testing.T) {
	r := newRig(t)
	x := r.insert(extension.Request{Object: firewall.Object})
	r.judging()
	old, oldManager := r.Border, r.manager
	r.reopen(keptBorder, memberItem(x.Handle()))
	r.start()
	check.Await(t, "end of the program", func() bool {
		r.mu.Lock()
		defer r.mu.Unlock()
		return r.link == nil
	})
	if r.kept.mu.Lock(); len(r.kept.items) > 0 {
		t.Errorf("kept: %v", r.kept.items)
	}
	r.kept.mu.Unlock()
	if err := errors.Join(oldManager.Machine().Close(), old.Close()); err != nil {
		t.Error(err)
	}
}

// A datagram that an end took while it was admitted is not waited for.
func TestAdvance(t *testing.T) {
	r := newRig(t)
	s := newSender()
	r.insert(extension.Request{Object: firewall.Object})
	r.judging()
	seal := r.admit(s, 0, 0)
	for range 3 {
		s.write()
	}
	position := func(frame []byte) uint64 { return binary.LittleEndian.Uint64(frame[14+28+16:]) }
	if f := r.run(s.datagram(1)); !s.sealed(f, seal) || position(f) != ^uint64(7) {
		t.Errorf("data behind a gap are for position %d", position(f))
	}
	for _, to := range []int{1, 0} { // the second one is late
		if err := r.Advance(s.pair, uint64(s.records[to])); err != nil {
			t.Fatal(err)
		}
	}
	if f := r.run(s.datagram(1)); !s.sealed(f, seal) || position(f) != uint64(s.records[1]) {
		t.Errorf("the next data are for position %d", position(f))
	}
}

// Bytes that the extensions have not seen do not reach a rank in the place of those that they have,
// wherever in a message they begin. Nothing of a peer is judged any more that tries it often.
func TestForged(t *testing.T) {
	r := newRig(t)
	x := r.insert(extension.Request{Object: firewall.Object, Settings: []extension.Setting{{Name: firewall.Handler, Value: 3}}})
	r.judging()
	s := newSender()
	seal := r.admit(s, 0, 0)
	write := func(at, handler int) {
		binary.LittleEndian.PutUint64(s.ring[at:], uint64(len(s.ring)-at-wire.ChannelHeader)|1<<32|uint64(handler)<<48)
		s.records = []int{at}
	}
	sent := func() bool { return s.sealed(r.run(s.datagram(0)), seal) }
	s.ring = make([]byte, 120)
	honest := func(when string) {
		t.Helper()
		clear(s.ring)
		if write(0, 1); !sent() {
			t.Errorf("the message does not pass %s", when)
		}
	}
	honest("at first")
	honest("again")
	if write(0, 3); sent() {
		t.Error("a message for another handler passes")
	}
	honest("after one for another handler")
	if s.ring[100] = 1; sent() {
		t.Error("a message with another payload passes")
	}
	for _, at := range []int{8, 16, 24, 48, 96} {
		if write(at, 3); sent() {
			t.Errorf("a message within it passes at %d", at)
		}
	}
	honest("after others")
	for range mostForged {
		write(0, 3)
		sent()
	}
	clear(s.ring)
	write(0, 1)
	passes := sent()
	if r.Report(); passes || x.Stats().Runs != 1 {
		t.Errorf("a message of a peer that forges others passes, %d runs", x.Stats().Runs)
	}
}
