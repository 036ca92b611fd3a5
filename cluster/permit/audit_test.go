package permit

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func openAudit(t testing.TB, path string) *Audit {
	t.Helper()
	a, err := OpenAudit(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { a.Close() })
	return a
}

func read(t testing.TB, a *Audit) []Entry {
	t.Helper()
	entries, err := a.Read(noon)
	if err != nil {
		t.Fatal(err)
	}
	return entries
}

var noon = time.Date(2030, 1, 1, 12, 0, 0, 0, time.UTC)

// Refusals have a line each, also after a restart. If a user makes too many, the rest are counted,
// and other users' lines stay.
func TestAudit(t *testing.T) {
	path := filepath.Join(t.TempDir(), "audit.log")
	a := openAudit(t, path)
	ann, bob := Caller{UID: 1001, Name: "ann", Role: User}, Caller{UID: 1002, Name: "bob", Role: User}
	refuse := func(at time.Time, c Caller, object string) {
		t.Helper()
		if err := a.Add(at, c, "Kill", object); err != nil {
			t.Fatal(err)
		}
	}
	for i := range auditBurst + 7 {
		refuse(noon, ann, fmt.Sprint("job ", i))
	}
	refuse(noon, bob, "job 1")
	entries := read(t, a)
	if len(entries) != auditBurst+2 {
		t.Fatalf("%d lines: %v", len(entries), entries)
	}
	if want := (Entry{noon, 1001, "ann", "Kill", "job 0", 0}); entries[0] != want {
		t.Errorf("%v, not %v", entries[0], want)
	}
	if want := (Entry{noon, 1002, "bob", "Kill", "job 1", 0}); entries[auditBurst] != want {
		t.Errorf("%v, not %v", entries[auditBurst], want)
	}
	if last := entries[auditBurst+1]; last.UID != 1001 || last.Omitted != 7 || last.Request != "" {
		t.Errorf("%v counts the others", last)
	}
	refuse(noon.Add(2*time.Second), ann, "job 9")
	a.Close()
	a = openAudit(t, path)
	entries = read(t, a)
	if last := entries[len(entries)-1]; last.Object != "job 9" || last.Omitted != 7 {
		t.Errorf("after a restart the last line is %v", last)
	}
	if info, err := os.Stat(path); err != nil || info.Mode() != 0o600 {
		t.Errorf("the file: %v, %v", info.Mode(), err)
	}
}

// Two files of a bounded size have the last refusals. A line that a full disk has cut is left out.
func TestAuditRotates(t *testing.T) {
	path := filepath.Join(t.TempDir(), "audit.log")
	if err := os.WriteFile(path, []byte(`{"time":"20`), 0o600); err != nil {
		t.Fatal(err)
	}
	a := openAudit(t, path)
	a.failed = os.ErrClosed // that is how the line was cut
	object := strings.Repeat("x", 2*mostText)
	const lines = 2 * auditSize / mostText
	for i := range lines {
		if err := a.Add(noon.Add(time.Duration(i)*time.Second), Caller{UID: 1001, Name: fmt.Sprint(i), Role: User}, "Kill", object); err != nil {
			t.Fatal(err)
		}
	}
	entries := read(t, a)
	for i, e := range entries {
		if want := fmt.Sprint(lines - len(entries) + i); e.User != want || len(e.Object) != mostText {
			t.Fatalf("line %d of %d is %v, not that of %s", i, len(entries), e, want)
		}
	}
	if len(entries) < auditSize/(2*mostText) || len(entries) >= lines {
		t.Errorf("%d lines of %d are left", len(entries), lines)
	}
	// If there is no new file after the old one was moved, as without a free descriptor, a later
	// line makes one.
	a.file.Close()
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	a.size = auditSize
	if err := a.Add(noon.Add(lines*time.Second), Caller{UID: 1001, Name: "last", Role: User}, "Kill", object); err != nil {
		t.Error(err)
	}
	if entries = read(t, a); entries[len(entries)-1].User != "last" {
		t.Errorf("the last line is %v", entries[len(entries)-1])
	}
	for _, path := range []string{path, a.old()} {
		if info, err := os.Stat(path); err != nil || info.Size() > auditSize {
			t.Errorf("%v, %v", info, err)
		}
	}
	if _, err := OpenAudit(filepath.Join(path, "nowhere")); err == nil {
		t.Error("a log is opened where there can be none")
	}
}

// Many users are counted together.
func TestAuditOfManyUsers(t *testing.T) {
	a := openAudit(t, filepath.Join(t.TempDir(), "audit.log"))
	for uid := range uint32(auditUsers + 3*auditBurst) {
		if err := a.Add(noon, Caller{UID: uid, Name: "x", Role: Stranger}, "connect", "machine"); err != nil {
			t.Fatal(err)
		}
	}
	if len(a.users) != auditUsers+1 {
		t.Errorf("%d users are counted", len(a.users))
	}
	entries := read(t, a)
	if last := entries[len(entries)-1]; last.Omitted != 2*auditBurst || len(entries) != auditUsers+auditBurst+1 {
		t.Errorf("%d lines, the last is %v", len(entries), last)
	}
}
