package pstore

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// leave makes a file as pstore shows it.
func leave(t testing.TB, dir, name, text string, at time.Time) {
	t.Helper()
	path := filepath.Join(dir, name)
	if err := os.WriteFile(path, []byte(text), 0o444); err != nil {
		t.Fatal(err)
	}
	if err := os.Chtimes(path, at, at); err != nil {
		t.Fatal(err)
	}
}

// The logs come in order, and so do their pieces, which are numbered from the end. Only files that
// were read are removed.
func TestRead(t *testing.T) {
	dir := t.TempDir()
	if r, err := Read(filepath.Join(dir, "none")); r.Files != nil || err != nil {
		t.Errorf("without pstore: %v, %v", r, err)
	}
	old, new := time.Date(2026, 11, 26, 10, 0, 0, 0, time.UTC), time.Date(2026, 11, 27, 10, 0, 0, 0, time.UTC)
	leave(t, dir, "dmesg-erst-4", "Panic#1 Part2\n<6>[    1.0] x\n", new)
	leave(t, dir, "dmesg-erst-3", "Panic#1 Part1\n<0>[    9.0] Kernel panic - not syncing: no init", new)
	leave(t, dir, "dmesg-erst-2", "Panic#2 Part1\n<0>[    8.2] Kernel panic\n", old)
	leave(t, dir, "dmesg-erst-1", "Oops#1 Part1\n<0>[    8.1] BUG\n", old.Add(-time.Second))
	leave(t, dir, "dmesg-efi_pstore-5.enc.z", "?????", new.Add(time.Second))
	leave(t, dir, "console-ramoops-0", "not ours\n", new)
	if err := os.Mkdir(filepath.Join(dir, "dmesg-folder"), 0o700); err != nil {
		t.Fatal(err)
	}
	r, err := Read(dir)
	if err == nil || !strings.Contains(err.Error(), "dmesg-folder is not a regular file") {
		t.Errorf("error %v", err)
	}
	const want = `-- left by an earlier boot, 2026-11-26 09:59:59 UTC: Oops#1 --
<0>[    8.1] BUG
-- left by an earlier boot, 2026-11-26 10:00:00 UTC: Panic#2 --
<0>[    8.2] Kernel panic
-- left by an earlier boot, 2026-11-27 10:00:00 UTC: Panic#1 --
<6>[    1.0] x
<0>[    9.0] Kernel panic - not syncing: no init
-- left by an earlier boot, 2026-11-27 10:00:01 UTC: a log --
-- missing: 5 bytes that Linux could not decompress --
`
	if string(r.Text) != want {
		t.Errorf("%s", r.Text)
	}
	leave(t, dir, "dmesg-erst-9", "Panic#1 Part1\nlater\n", new)
	if err := Remove(dir, append(r.Files, "../"+filepath.Base(dir)+"/none")); err != nil {
		t.Error(err)
	}
	var names []string
	entries, _ := os.ReadDir(dir)
	for _, e := range entries {
		names = append(names, e.Name())
	}
	if !slices.Equal(names, []string{"console-ramoops-0", "dmesg-erst-9", "dmesg-folder"}) {
		t.Errorf("there remain %v", names)
	}
}

// More than the bounds comes in several readings.
func TestReadIsBounded(t *testing.T) {
	dir := t.TempDir()
	text := strings.Repeat("x", MostText/4)
	for i := range 8 {
		leave(t, dir, fmt.Sprintf("dmesg-erst-%d", i), text, time.Now())
	}
	leave(t, dir, "dmesg-erst-0-large", strings.Repeat("x", MostText+1), time.Now())
	for reading := 0; ; reading++ {
		r, err := Read(dir)
		if err == nil || !strings.Contains(err.Error(), "dmesg-erst-0-large has more than 262144 bytes") || len(r.Text) > MostText+mostFiles*100 {
			t.Fatalf("%d bytes, %v", len(r.Text), err)
		}
		if len(r.Files) == 0 {
			if reading != 2 {
				t.Errorf("%d readings", reading)
			}
			return
		}
		if err := Remove(dir, r.Files); err != nil {
			t.Fatal(err)
		}
	}
}

// A long first line is not a head: heads do not count as text.
func TestLongHead(t *testing.T) {
	long := []byte(strings.Repeat("x", mostHead) + " Part1\ny\n")
	if head, part, rest := cutHead(long); head != "" || part != 0 || !bytes.Equal(rest, long) {
		t.Errorf("%q, %d, %q", head, part, rest)
	}
}

// FuzzPieces: whatever was left, each piece is in the text, once.
func FuzzPieces(f *testing.F) {
	f.Add([]byte("Panic#1 Part1\nabc\n"), []byte("Panic#1 Part2\ndef"))
	f.Add([]byte("Panic#1 Part-1\n"), []byte("Part99999999999999999999"))
	f.Fuzz(func(t *testing.T, first, second []byte) {
		var pieces []piece
		want := 0
		for i, text := range [][]byte{first, second} {
			p := piece{name: fmt.Sprint(i)}
			p.head, p.part, p.text = cutHead(text)
			pieces, want = append(pieces, p), want+len(p.text)
		}
		r := assemble(slices.Clone(pieces))
		if len(r.Files) != 2 || !bytes.Contains(r.Text, pieces[0].text) || !bytes.Contains(r.Text, pieces[1].text) || len(r.Text) < want {
			t.Errorf("%q and %q became %q", first, second, r.Text)
		}
	})
}
