package extension

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"margay/internal/check"
	"margay/internal/printable"
	"margay/kernel/abi/id"
	"margay/kernel/abi/slot"
	"margay/kernel/extension/extensiontest"
)

// A name with line breaks or escape sequences is refused, and logged without them.
func TestNamesArePrinted(t *testing.T) {
	m := newManager(t)
	var logged []string
	m.log = func(format string, args ...any) { logged = append(logged, fmt.Sprintf(format, args...)) }
	s := open(t, m, 7)
	object := extensiontest.Object(t, deliver)
	for _, name := range []string{"two\nlines", "screen\x1b[2J", "no\xfftext", "right\u202eleft"} {
		if _, err := s.Insert(Request{Name: name, Object: object}); !errors.Is(err, ErrRefused) {
			t.Errorf("%q: %v", name, err)
		}
	}
	if _, err := s.Insert(Request{Object: extensiontest.Object(t, extensiontest.Answer("sym\nbol", "0"))}); !errors.Is(err, ErrRefused) {
		t.Errorf("a name in the object: %v", err)
	}
	if _, err := s.Insert(Request{Name: "größe µ", Object: object}); err != nil {
		t.Error(err)
	}
	s.Refuse(3, errors.New("what\nit says"))
	for _, n := range m.Notes(0) {
		logged = append(logged, n.Name+n.Text)
	}
	if len(logged) != 14 {
		t.Errorf("%d lines, want 7 in the log and 7 notes", len(logged))
	}
	for _, line := range logged {
		if printable.Line(line) != line {
			t.Errorf("line %q", line)
		}
	}
}

// A job that causes many notes does not displace the notes of others, and the log says that notes
// are missing.
func TestNotesAreBounded(t *testing.T) {
	m := newManager(t)
	open(t, m, 1).Refuse(0, errors.New("victim"))
	s := open(t, m, 7)
	const tries = 10 * keptNotes
	for range tries {
		s.Refuse(0, errors.New("again"))
	}
	notes := m.Notes(0)
	if notes[0].Text != "rank 0 is refused: victim" {
		t.Errorf("the oldest note is %+v", notes[0])
	}
	omitted, told := 0, 0
	for _, n := range m.Notes(0) {
		var left int
		if k, _ := fmt.Sscanf(n.Text, "%d notes before this were left out", &left); k == 1 {
			omitted += left
		} else if strings.HasSuffix(n.Text, "again") {
			told++
		}
	}
	if told < notesAtOnce || told+omitted+s.pace.omitted != tries {
		t.Errorf("%d told, %d said to be left out, %d to be said, of %d", told, omitted, s.pace.omitted, tries)
	}
	s.pace = newPace() // time has passed
	s.pace.omitted = 5
	s.Refuse(0, errors.New("later"))
	if notes = m.Notes(0); !strings.HasPrefix(notes[len(notes)-2].Text, "5 notes before this were left out") {
		t.Errorf("the last notes are %+v", notes[len(notes)-2:])
	}
}

// A handle that cannot have been a job's own is distinguished from a removed one.
func TestStray(t *testing.T) {
	m := newManager(t)
	mine, other := open(t, m, 7), open(t, m, 8)
	theirs := insert(t, other, deliver)
	own := insert(t, mine, deliver)
	operators := insert(t, m.Machine(), deliver)
	if err := mine.Remove(own.Handle(), "a rank has removed it"); err != nil {
		t.Fatal(err)
	}
	for handle, want := range map[id.Handle]string{
		own.Handle(): "", theirs.Handle(): "is one of job 8", operators.Handle(): "is one of machine",
		0: "has never been", operators.Handle() + 1: "has never been", 1<<32 - 1: "has never been",
	} {
		if err := mine.Stray(handle); (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("handle %d: %v", handle, err)
		}
	}
	if err := m.Machine().Remove(operators.Handle(), "test"); err != nil {
		t.Error(err)
	}
}

// In every slot, an extension that faults at each event does not decide, has its faults counted,
// and is removed at the limit.
func TestFaultsInEachSlot(t *testing.T) {
	cases := map[string][]string{
		"reads outside": {"ldxdw r0, [r1-8]", "exit"}, "never ends": {"ja -1"}, "gives no answer": {"mov r0, -4242", "exit"},
	}
	for _, row := range slot.Table {
		for what, code := range cases {
			trusted := row.Name == slot.Boot
			if !row.Ready || trusted && what == "reads outside" { // trusted: access is unchecked
				continue
			}
			t.Run(fmt.Sprint(row.Name, " ", what), func(t *testing.T) {
				m := newManager(t)
				m.serve = row.Serve
				object := extensiontest.Object(t, extensiontest.Program{Section: string(row.Name), Name: "faulty", Code: code})
				if _, err := m.Machine().Insert(Request{Object: object, Trusted: trusted}); err != nil {
					t.Fatal(err)
				}
				for n := range slot.FaultLimit {
					if got := len(m.Chain(Machine, row.Name)); got != 1 {
						t.Fatalf("%d extensions in the slot after %d faults", got, n)
					}
					if d, err := m.Decide(Machine, row.Name, make([]byte, row.Context)); err != nil || d.By != nil || d.Verdict != row.Default {
						t.Fatalf("after %d faults: %+v, %v", n, d, err)
					}
				}
				check.Await(t, "its removal", func() bool { l := m.List(); return len(l) == 1 && l[0].Removed != "" })
				x := m.List()[0]
				if !strings.HasPrefix(x.Removed, fmt.Sprintf("it made %d faults", slot.FaultLimit)) || x.Stats.Faults != slot.FaultLimit {
					t.Errorf("%+v", x)
				}
				if got := len(m.Chain(Machine, row.Name)); got != 0 {
					t.Errorf("%d extensions are left in the slot", got)
				}
			})
		}
	}
}
