package extension

import (
	"encoding/binary"
	"testing"
	"time"

	"margay/kernel/abi/id"
	"margay/kernel/abi/slot"
	"margay/kernel/extension/extensiontest"
)

// The first answer that is not the default decides; a fault does not.
func TestDecide(t *testing.T) {
	m := newManager(t)
	end := func(name string, code ...string) *Extension {
		return insert(t, open(t, m, id.Job(len(name))), extensiontest.Program{Section: "exit", Name: name, Code: code})
	}
	exit := func(name string, job id.Job) Decision {
		t.Helper()
		d, err := m.Decide(job, slot.Exit, slot.ExitContext{Job: uint32(job), Code: 3, Left: 2})
		if err != nil {
			t.Fatal(err)
		}
		return d
	}
	if d := exit("nobody", 1); d != (Decision{}) {
		t.Errorf("without an extension: %+v", d)
	}
	end("a", "ldxdw r0, [r1+40]", "exit")
	if d := exit("a fault", 1); d != (Decision{}) {
		t.Errorf("after a fault: %+v", d)
	}
	x := end("bb", "ldxw r0, [r1+16]", "ldxw r2, [r1+24]", "sub r0, r2", "exit") // code - left
	if d := exit("an answer", 2); d != (Decision{slot.End, x}) {
		t.Errorf("verdict %+v, want that of %v", d, x.Label())
	}
	if d := exit("another job", 1); d != (Decision{}) {
		t.Errorf("another job's extension has decided: %+v", d)
	}
	y, err := m.Machine().Insert(Request{Trusted: true, Object: extensiontest.Object(t, extensiontest.Program{Section: "exit", Name: "all", Code: []string{"mov r0, 1", "exit"}})})
	if err != nil {
		t.Fatal(err)
	}
	for job := range id.Job(3) {
		if d := exit("the machine's", job); d != (Decision{slot.End, y}) {
			t.Errorf("job %d: %+v", job, d)
		}
	}
	if !y.Trusted() || x.Trusted() {
		t.Errorf("trusted: the machine's %v, a job's %v", y.Trusted(), x.Trusted())
	}
	if err := m.Machine().Close(); err != nil {
		t.Error(err)
	}
	if _, err := m.Decide(1, slot.Trap, nil); err == nil {
		t.Error("a slot that is not there was asked")
	}
	end("ccc", "mov r0, 0", "exit")
	if _, err := m.Decide(3, slot.Exit, slot.TimerContext{}.Node); err == nil {
		t.Error("a context that is none was taken")
	}
	if binary.Size(slot.ExitContext{}) != slot.ExitSize {
		t.Errorf("the context of slot exit is encoded as %d bytes", binary.Size(slot.ExitContext{}))
	}
}

// Notes have sequence numbers that continue in the next node kernel, and the last are remembered.
func TestHistory(t *testing.T) {
	h := newHistory()
	began := h.last
	if got := h.after(0); len(got) != 0 {
		t.Errorf("before the first: %v", got)
	}
	for i := range keptNotes + 10 {
		h.add(Note{Handle: id.Handle(i)})
	}
	if got := h.after(0); len(got) != keptNotes || got[0].Seq != began+11 || got[0].Handle != 10 {
		t.Errorf("%d notes, the first is %+v", len(got), got[0])
	}
	if got := h.after(began + keptNotes + 8); len(got) != 2 || got[0].Seq != began+keptNotes+9 {
		t.Errorf("the last two: %v", got)
	}
	if got := h.after(began + keptNotes + 10); len(got) != 0 {
		t.Errorf("after the last: %v", got)
	}
	if got := h.after(began + keptNotes + 11); len(got) != keptNotes {
		t.Errorf("after one that is not there yet: %d notes", len(got))
	}
	earlier := h.last
	time.Sleep(2 * time.Millisecond) // a node kernel takes longer for so many
	h = newHistory()
	h.add(Note{})
	if got := h.after(earlier); len(got) != 1 {
		t.Errorf("the next node kernel has %d new notes", len(got))
	}
}
