package job

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func TestParseTime(t *testing.T) {
	for text, want := range map[string]time.Duration{
		"30s": 30 * time.Second, "5m": 5 * time.Minute, "1h30m": 90 * time.Minute, "1:30": 90 * time.Second, "2:00:01": 2*time.Hour + time.Second,
		"1-0": 24 * time.Hour, "1-02:03": 26*time.Hour + 3*time.Minute, "1-02:03:04": 26*time.Hour + 3*time.Minute + 4*time.Second,
	} {
		if d, err := parseTime(text); err != nil || d != want {
			t.Errorf("%s: %v, %v", text, d, err)
		}
	}
	for text, want := range map[string]string{
		"10": "no unit", "0": "no unit", "0s": "more than 0", "-5s": "more than 0", "0:00": "more than 0", "1ns": "more than 0", "": "such as",
		"soon": "such as", "1:2:3:4": "such as", "1-1:2:3:4": "such as", "-1:00": "such as", "1:-1": "such as", "99999999999:00": "such as", "9999999-0": "such as",
	} {
		if d, err := parseTime(text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, %v", text, d, err)
		}
	}
}

func TestParseWarning(t *testing.T) {
	for text, want := range map[string]time.Duration{"USR1@30s": 30 * time.Second, "10@30": 30 * time.Second, "SIGUSR1": time.Minute} {
		if sig, before, err := parseWarning(text); err != nil || sig != unix.SIGUSR1 || before != want {
			t.Errorf("%s: %v %v, %v", text, sig, before, err)
		}
	}
	for _, text := range []string{"", "FROB@3s", "USR1@", "USR1@-3s", "USR1@soon"} {
		if sig, before, err := parseWarning(text); err == nil {
			t.Errorf("%q: %v %v", text, sig, before)
		}
	}
}

func TestEnvironment(t *testing.T) {
	all := []string{"A=1", "B=2", "AB=3"}
	for _, c := range []struct {
		export string
		set    []string
		want   string // empty: refused
	}{
		{"", nil, "A=1 B=2 AB=3"},
		{"ALL", []string{"A=9"}, "B=2 AB=3 A=9"},
		{"NONE", []string{"C=4"}, "C=4"},
		{"A", nil, "A=1"},
		{"A,C=5", nil, "A=1 C=5"},
		{"ALL,A=7", nil, "B=2 AB=3 A=7"},
		{"A,A=7", []string{"A=8"}, "A=8"},
		{"B,X", nil, "B=2"},
		{"A,,B", nil, ""},
		{"=3", nil, ""},
		{"", []string{"A"}, ""},
		{"", []string{"=A"}, ""},
	} {
		got, err := environment(all, c.export, c.set)
		if (err == nil) != (c.want != "") || strings.Join(got, " ") != c.want {
			t.Errorf("--export %q, --env %q: %q, %v", c.export, c.set, got, err)
		}
	}
	if strings.Join(all, " ") != "A=1 B=2 AB=3" {
		t.Errorf("it is changed to %q", all)
	}
}

func TestThreads(t *testing.T) {
	if got := threads([]string{"A=1"}, 2); !slices.Equal(got, []string{"A=1", "OMP_NUM_THREADS=2", "OMP_PROC_BIND=true"}) {
		t.Errorf("%q", got)
	}
	if got := threads([]string{"OMP_NUM_THREADS=9", "OMP_PROC_BIND=false"}, 2); len(got) != 2 {
		t.Errorf("the variables of the user are changed: %q", got)
	}
}

func TestWorkingDir(t *testing.T) {
	here, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	if dir, err := workingDir(""); err != nil || dir != here {
		t.Errorf("%s, %v", dir, err)
	}
	if dir, err := workingDir(".."); err != nil || dir != filepath.Dir(here) {
		t.Errorf("%s, %v", dir, err)
	}
	for path, want := range map[string]string{"values.go": "not a directory", "/there/is/none": "no such file"} {
		if _, err := workingDir(path); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", path, err)
		}
	}
	gone := t.TempDir() + "/gone"
	if err := os.Mkdir(gone, 0o700); err != nil {
		t.Fatal(err)
	}
	t.Chdir(gone)
	if err := os.Remove(gone); err != nil {
		t.Fatal(err)
	}
	for chdir, want := range map[string]string{"": "getwd: no such file or directory; --chdir", "x": "getwd: no such file or directory; --chdir", "/": ""} {
		if _, err := workingDir(chdir); (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%q without a current folder: %v", chdir, err)
		}
	}
}

func TestParsePast(t *testing.T) {
	now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.Local)
	for text, want := range map[string]time.Time{
		"0s": now, "90m": now.Add(-90 * time.Minute), "1h30m": now.Add(-90 * time.Minute), "7d": time.Date(2026, 2, 22, 12, 0, 0, 0, time.Local),
		"2026-02-28": time.Date(2026, 2, 28, 0, 0, 0, 0, time.Local), "2026-02-28 13:40": time.Date(2026, 2, 28, 13, 40, 0, 0, time.Local),
		"2026-02-28 13:40:05": time.Date(2026, 2, 28, 13, 40, 5, 0, time.Local), "2026-02-28T13:40:05": time.Date(2026, 2, 28, 13, 40, 5, 0, time.Local),
		"2026-02-28T13:40:05+02:00": time.Date(2026, 2, 28, 11, 40, 5, 0, time.UTC),
	} {
		if got, err := parsePast(text, now); err != nil || !got.Equal(want) {
			t.Errorf("%s: %v, %v", text, got, err)
		}
	}
	for _, text := range []string{"", "d", "-1h", "-1d", "99999d", "7", "2026-02-30", "yesterday", "13:40"} {
		if got, err := parsePast(text, now); err == nil || !strings.Contains(err.Error(), "such as 90m, 2h or 7d") {
			t.Errorf("%q: %v, %v", text, got, err)
		}
	}
}
