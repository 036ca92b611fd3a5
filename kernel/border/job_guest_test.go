//go:build guest

package border

import (
	"bytes"
	"encoding/binary"
	"errors"
	"strings"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"

	"margay/ext/message/accumulate"
	"margay/ext/packet/firewall"
	"margay/internal/check"
	"margay/kernel/abi/id"
	"margay/kernel/abi/mirror"
	"margay/kernel/abi/slot"
	"margay/kernel/abi/wire"
	"margay/kernel/extension"
	"margay/kernel/extension/extensiontest"
)

// job opens the set of a job, whose messages the senders of newSender send.
func (r *rig) job(number id.Job) *extension.Set {
	r.t.Helper()
	s := r.manager.Open(number, 8<<20)
	s.Cross()
	r.t.Cleanup(func() {
		if err := s.Close(); err != nil {
			r.t.Error(err)
		}
	})
	return s
}

// add inserts an extension of a job.
func (r *rig) add(s *extension.Set, q extension.Request) *extension.Extension {
	r.t.Helper()
	x, err := s.Insert(q)
	if err != nil {
		r.t.Fatal(err)
	}
	return x
}

// say adds a message to the ring.
func (s *sender) say(handler uint16, arg uint64, payload string) {
	length := (wire.ChannelHeader + len(payload) + 7) &^ 7
	record := make([]byte, length)
	binary.LittleEndian.PutUint32(record, uint32(len(payload)))
	binary.LittleEndian.PutUint16(record[4:], 1)
	binary.LittleEndian.PutUint16(record[6:], handler)
	binary.LittleEndian.PutUint64(record[8:], arg)
	copy(record[wire.ChannelHeader:], payload)
	s.records = append(s.records, len(s.ring))
	s.ring = append(s.ring, record...)
}

// counted returns what accumulate has counted.
func counted(t *testing.T, totals, table []byte) (sums accumulate.Sums, words map[string]uint64) {
	t.Helper()
	sums, err := accumulate.ReadSums(totals)
	if err != nil {
		t.Fatal(err)
	}
	words = make(map[string]uint64)
	accumulate.Each(table, func(word []byte, n uint64) { words[string(word)] = n })
	return sums, words
}

// A job's extension in slot message handles the messages of its own job, on the interface and in
// the node kernel, in the memory that a rank has mapped before it came to the interface. It sees
// neither other jobs' messages nor the libraries'. The next node kernel goes on so. With the end of
// the job the program loses it.
func TestJob(t *testing.T) {
	r := newRig(t)
	mine, other := newSender(), newSender()
	other.pair.Number, other.pair.Job = 2, 6
	request := extension.Request{Object: accumulate.Object, Settings: []extension.Setting{
		{Name: accumulate.Handler, Value: 3}, {Name: accumulate.Capacity, Value: 64}, {Name: accumulate.Table, Value: 64, Entries: true},
	}}
	set := r.job(5)
	x := r.add(set, request)
	var mapped [2][]byte
	for i, name := range []string{accumulate.Totals, accumulate.Table} {
		m := x.Map(name).Memory()
		fd, _ := m.FD()
		b, err := unix.Mmap(fd, 0, len(m.Bytes()), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
		if err != nil {
			t.Fatal(err)
		}
		defer unix.Munmap(b)
		mapped[i] = b
	}
	here := func(x *extension.Extension, word string, n uint64) {
		t.Helper()
		c := slot.MessageContext{Job: 5, Handler: 3, Length: uint32(len(word)), Args: [2]uint64{n}, Total: uint64(len(word))}
		copy(c.Data[:], word)
		if d, err := r.manager.Decide(5, slot.Message, &c); err != nil || d.Verdict != slot.Consume || d.By != x {
			t.Errorf("%+v, %v", d, err)
		}
	}
	here(x, "before", 1)
	r.judging()
	if engine, why := r.at(x); !strings.HasSuffix(engine, "+lo") {
		t.Fatalf("it runs on %s: %s", engine, why)
	}
	seals := [2]uint64{r.admit(mine, 0, 0), r.admit(other, 0, 0)}
	for i, s := range []*sender{mine, other} {
		s.say(3, 10, "word")
		s.say(2, 10, "word")
		s.say(wire.MaxHandlers, 10, "word")
		s.say(3, 5, "another")
		s.say(3, 7, strings.Repeat("long", 30))
		for range 2 { // the second time it comes again
			if f := r.run(s.datagram(0)); !s.sealed(f, seals[i]) {
				t.Errorf("the frame of job %d is not judged", s.pair.Job)
			} else if stopped := bytes.Count(f, []byte{1, 0, wire.HandlerStopped & 255, wire.HandlerStopped >> 8}); stopped != 3*(1-i) {
				t.Errorf("%d messages of job %d are stopped", stopped, s.pair.Job)
			}
		}
	}
	here(x, "word", 100)
	sums, words := counted(t, mapped[0], mapped[1])
	if (sums != accumulate.Sums{Handled: 4, Sum: 116, Refused: 1}) || len(words) != 3 || words["word"] != 110 || words["another"] != 5 || words["before"] != 1 {
		t.Errorf("%+v, %v", sums, words)
	}
	if r.Report(); x.Stats().Runs != 6 { // and for handler 2
		t.Errorf("%+v", x.Stats())
	}

	run := func(s *sender, i int) bool { return s.sealed(r.run(s.datagram(len(s.records)-1)), seals[i]) }
	due, clock := &r.states.is.Due[5], unix.Timespec{}
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &clock); err != nil {
		t.Fatal(err)
	}
	ahead, before := uint64(clock.Nano())+50_000_000, r.members[0].tally.is.read().Time
	atomic.StoreUint64(due, ahead)
	mine.say(2, 10, "word")
	if took := r.members[0].tally.is.read; !run(mine, 0) || atomic.LoadUint64(due) < ahead+2*(took().Time-before) || took().Time == before {
		t.Error("a run does not count against the share of its job")
	}
	atomic.StoreUint64(due, 1<<62)
	if run(mine, 0) || !run(other, 1) {
		t.Error("a job whose extensions have had their share is judged, or the other is not")
	}
	atomic.StoreUint64(due, 0)

	word := turn{r.Border, 5}
	word.Lock() // of a run in the node kernel, which is killed
	mine.say(3, 1, "word")
	if run(mine, 0) || !run(other, 1) {
		t.Error("a run of one job keeps the other's frames from being judged, or not its own")
	}
	old, oldManager, number := r.Border, r.manager, r.number
	r.reopen(keptBorder, memberItem(x.Handle()))
	for i, s := range []*sender{mine, other} {
		r.admit(s, seals[i], 0)
	}
	set = r.job(5)
	request.Handle = x.Handle()
	y := r.add(set, request)
	r.start()
	if !r.judges() || !run(mine, 0) || r.number != number {
		t.Error("the next node kernel does not go on")
	}
	here(y, "word", 1000)
	if sums, words = counted(t, mapped[0], mapped[1]); sums.Handled != 6 || words["word"] != 1111 {
		t.Errorf("%+v, %v", sums, words)
	}
	word.Unlock()
	if err := errors.Join(oldManager.Set(5).Close(), oldManager.Machine().Close(), old.Close()); err != nil {
		t.Error(err)
	}
	if err := set.Close(); err != nil {
		t.Error(err)
	}
	check.AwaitFor(t, patience, "program without it", func() bool {
		r.mu.Lock()
		defer r.mu.Unlock()
		return len(r.loaded) == 0 && r.link != nil
	})
	mine.say(3, 1, "word")
	if !run(mine, 0) {
		t.Error("channels with a seal are not judged any more")
	}
	if sums, _ = counted(t, mapped[0], mapped[1]); sums.Handled != 6 {
		t.Errorf("%+v", sums)
	}
	for _, s := range []*sender{mine, other} {
		r.Leave(s.pair)
	}
}

// What a job may not do on the interface stays in the node kernel, with the reason.
func TestJobRefused(t *testing.T) {
	r := newRig(t)
	set := r.job(5)
	r.config.Jobs = false
	x := r.add(set, extension.Request{Object: accumulate.Object})
	if _, why := r.at(x); why != "not on the interface: extensions of jobs may run there only on a machine that was made with --offload" {
		t.Error(why)
	}
	if r.maps != nil {
		t.Error("it has cost maps")
	}
	if err := set.Remove(x.Handle(), "the test"); err != nil {
		t.Fatal(err)
	}
	r.config.Jobs = true
	r.start()
	if _, err := set.Region(accumulate.Totals, 4096); err != nil {
		t.Fatal(err)
	}
	for why, request := range map[string]extension.Request{
		"is a region": {Object: accumulate.Object},
		"leaks addr":  {Object: leak(t)},
	} {
		x := r.add(set, request)
		check.AwaitFor(t, patience, "refusal: "+why, func() bool {
			_, is := r.at(x)
			return strings.HasPrefix(is, "not on the interface: ") && strings.Contains(is, why)
		})
		if err := set.Remove(x.Handle(), "the test"); err != nil {
			t.Fatal(err)
		}
	}
	// The slots do not matter for the number of extensions.
	for n := range mostOfJob + 1 {
		section := slot.MessageOnInterface
		if n == mostOfJob {
			section = "packet"
		}
		x := r.add(set, extension.Request{Object: extensiontest.Object(t, extensiontest.Program{Section: section, Name: "passes", Code: []string{"mov r0, 0", "exit"}})})
		if _, why := r.at(x); strings.HasPrefix(why, "not on the interface: its job has 4") != (n == mostOfJob) {
			t.Errorf("extension %d of the job: %s", n, why)
		}
	}
}

// An extension of a job that Linux has refused works on the memory of maps. It does so after a
// restart, too, when the program has left the interface.
func TestRefusedIsKept(t *testing.T) {
	r := newRig(t)
	first := r.insert(extension.Request{Object: firewall.Object})
	r.judging()
	x := r.add(r.job(5), extension.Request{Object: leak(t)})
	check.AwaitFor(t, patience, "refusal", func() bool {
		_, why := r.at(x)
		return strings.HasPrefix(why, "not on the interface: ")
	})
	if err := r.manager.Remove(first.Handle(), "the test"); err != nil {
		t.Fatal(err)
	}
	check.AwaitFor(t, patience, "interface without a program", func() bool {
		r.mu.Lock()
		defer r.mu.Unlock()
		return r.link == nil
	})
	r.kept.mu.Lock()
	defer r.kept.mu.Unlock()
	if _, ok := r.kept.items[memberItem(x.Handle())]; !ok || len(r.kept.items) != 1 {
		t.Errorf("%d items are kept: %v", len(r.kept.items), r.kept.items)
	}
}

// leak is an extension that Linux refuses: it writes an address into its context.
func leak(t *testing.T) []byte {
	t.Helper()
	return extensiontest.Object(t, extensiontest.Program{Section: slot.MessageOnInterface, Name: "leak", Code: []string{"stxdw [r1+40], r10", "mov r0, 0", "exit"}})
}

// A job's extension with the handle of one that was removed before the node kernel was restarted is
// not taken for that, which the program still has.
func TestSameHandle(t *testing.T) {
	r := newRig(t)
	s := newSender()
	x := r.insert(extension.Request{Object: firewall.Object})
	r.judging()
	seal := r.admit(s, 0, 0) // it keeps the program there
	if err := r.manager.Remove(x.Handle(), "the test"); err != nil {
		t.Fatal(err)
	}
	old, oldManager := r.Border, r.manager
	r.reopen(keptBorder)
	r.admit(s, seal, 0)
	r.start()
	y := r.add(r.job(5), extension.Request{Object: extensiontest.Object(t, extensiontest.Program{
		Section: slot.MessageOnInterface, Name: "consumes", Code: []string{"mov r0, 1", "exit"},
	})})
	if y.Handle() != x.Handle() || r.judges() {
		t.Errorf("handle %d, of the other %d; judges %v", y.Handle(), x.Handle(), r.judges())
	}
	r.judging()
	s.say(3, 1, "word")
	f := r.run(s.datagram(0))
	if stopped := bytes.Count(f, []byte{1, 0, wire.HandlerStopped & 255, wire.HandlerStopped >> 8}); !s.sealed(f, seal) || stopped != 1 {
		t.Errorf("sealed %v, %d messages are stopped", s.sealed(f, seal), stopped)
	}
	r.Leave(s.pair)
	if err := errors.Join(oldManager.Machine().Close(), old.Close()); err != nil {
		t.Error(err)
	}
}

// A frame is judged in parts, as often as it comes, if the extensions have no time for it, and
// passes with the parts that were judged. An extension that takes the time of many frames has its
// messages pass the node kernel.
func TestBudget(t *testing.T) {
	r := newRig(t)
	s := newSender()
	x := r.insert(extension.Request{Object: firewall.Object})
	r.judging()
	r.states.is.setBudget(0)
	seal := r.admit(s, 0, 0)
	be := binary.BigEndian
	sum := func(b []byte) uint16 {
		n := uint32(0)
		for ; len(b) > 0; b = b[2:] {
			n += uint32(be.Uint16(b))
		}
		return uint16(n + n>>16)
	}
	for range 1 + slowLimit/slowCost {
		s.say(1, 0, "")
	}
	for n := 1; n <= len(s.records); n++ {
		f := s.datagram(0)
		ip := f[14:34]
		be.PutUint16(ip[10:], 0)
		be.PutUint16(ip[10:], ^sum(ip))
		f = r.run(f)
		ip = f[14:34]
		if total := int(be.Uint16(ip[2:])); !s.sealed(f, seal) || total != 28+mirror.HeaderSize+n*wire.ChannelHeader || int(be.Uint16(f[38:])) != total-20 {
			t.Errorf("frame %d: sealed %v, %d bytes", n, s.sealed(f, seal), total)
		}
		if n < len(s.records) && be.Uint16(f[40:]) != 0 || sum(ip) != 0xffff {
			t.Errorf("frame %d: checksums %x, sum %x", n, f[40:42], sum(ip))
		}
		if r.Report(); x.Stats().Runs != uint64(n) {
			t.Errorf("frame %d: %d runs", n, x.Stats().Runs)
		}
	}
	r.states.is.setBudget(frameTime)
	if s := r.states.is; s.Late != slowLimit/slowCost || s.Judged != s.Late+1 {
		t.Errorf("%d late, %d judged", s.Late, s.Judged)
	}
	if _, why := r.at(x); r.judges() || !strings.HasPrefix(why, "no longer on the interface: ") {
		t.Errorf("%s", why)
	}
}

// A frame with a wrong checksum is not judged, one without or one whose checksum is left to the
// interface is.
func TestChecksum(t *testing.T) {
	r := newRig(t)
	s := newSender()
	x := r.insert(extension.Request{Object: firewall.Object})
	r.judging()
	seal := r.admit(s, 0, 0)
	for len(s.ring) < 1400 {
		s.write()
	}
	f := s.datagram(0)
	for len(f) > 14+28 && binary.BigEndian.Uint16(f[14+26:]) == 0 {
		f = s.datagram(0)
	}
	end := 14 + int(binary.BigEndian.Uint16(f[16:]))
	for n := range 20 {
		bad := bytes.Clone(f)
		bad[14+28+40+n*(end-14-28-40)/20] ^= 1 << (n % 8)
		if s.sealed(r.run(bad), seal) {
			t.Errorf("spoilt frame %d is judged", n)
		}
	}
	if r.Report(); x.Stats().Runs != 0 {
		t.Errorf("%d runs", x.Stats().Runs)
	}
	pseudo := uint32(17 + end - 14 - 20)
	for i := range 4 {
		pseudo += uint32(binary.BigEndian.Uint16(f[26+2*i:]))
	}
	for pseudo>>16 != 0 {
		pseudo = pseudo&0xffff + pseudo>>16
	}
	for name, sum := range map[string]uint16{"none": 0, "of the pseudo header": uint16(pseudo), "right": binary.BigEndian.Uint16(f[14+26:])} {
		good := bytes.Clone(f)
		binary.BigEndian.PutUint16(good[14+26:], sum)
		if !s.sealed(r.run(good), seal) {
			t.Errorf("with a checksum that is %s it is not judged", name)
		}
	}
}
