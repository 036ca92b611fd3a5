package e2e

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"
)

func TestMachineTwice(t *testing.T) {
	m := use(t, "hosted")
	r := (&machine{t: t, name: m.name, nodes: 1, cores: 1}).up("hosted")
	if r.code != 125 || !strings.Contains(r.stderr, "machine "+m.name+": the machine is up: process ") {
		t.Error(r)
	}
	m.usable()
}

// Nothing survives the holder. The next machine of that name recognises and removes the files that
// it leaves on disk.
func TestHolderKilled(t *testing.T) {
	test := func(t *testing.T, m *machine) {
		if m == nil {
			m = up(t, "hosted", 1, 1)
		}
		c := m.start("run", "-n", "1", probe(), "sleep")
		c.awaitRanks("sleeping", 1)
		holder, serve := m.status()
		kill(t, holder)
		r := c.wait()
		if r.code != 125 || !strings.Contains(r.stderr, "holder is gone") {
			t.Error(r)
		}
		eventually(t, "end of everything", func() bool {
			return len(pids(t, "guest="+m.name+"-")) == 0 && len(pids(t, m.file("nodes"))) == 0 && unix.Kill(serve, 0) == unix.ESRCH
		}, func() string {
			return fmt.Sprint(pids(t, "guest="+m.name+"-"), pids(t, m.file("nodes")), unix.Kill(serve, 0))
		})
		if r := m.margay("machine", "status"); r.code != 125 || !strings.Contains(r.stderr, "is dead: its holder") {
			t.Error(r)
		}
		if r := m.margay("run", probe(), "hello"); r.code != 125 {
			t.Error(r)
		}
		if r := m.up("hosted"); r.code != 0 || !strings.Contains(r.stderr, "removing the remains of an earlier machine") {
			t.Error(r)
		}
		m.usable()
	}
	inTurns(t, turnOf{"hosted", expect("own"), test}, turnOf{"qemu", expect("mortal").finally(), test})
}

func TestDownEndsEverything(t *testing.T) {
	ownMachine(t, "own")
	m := up(t, "hosted", 2, 2)
	c := m.start("run", "-n", "4", probe(), "sleep")
	c.awaitRanks("sleeping", 4)
	r := m.margay("machine", "down", "-v")
	if said := "margay: machine " + m.name + " is ended; "; r.code != 0 || !strings.Contains(r.stderr, said) {
		t.Errorf("%v, want %q", r, said)
	}
	if r := c.wait(); r.code != 125 || !strings.Contains(r.stderr, "the machine goes down") {
		t.Error(r)
	}
	m.gone()
	if r := m.margay("machine", "down"); r.code != 125 || !strings.Contains(r.stderr, "there is no such machine") {
		t.Error(r)
	}
}

// Commands that watch or use a machine when it goes down end with it, print a message for people,
// and do not look for another serve.
func TestDownEndsCommands(t *testing.T) {
	ownMachine(t, "own")
	m := up(t, "hosted", 2, 2)
	job := strings.TrimSpace(m.run(0, "--detach", probe(), "sleep").stdout)
	alone, beside := filepath.Join(t.TempDir(), "trace.json"), filepath.Join(t.TempDir(), "trace.json")
	commands := map[string]*command{
		"run":           m.start("run", probe(), "sleep"),
		"record of run": m.start("record", "-o", beside, "--", filepath.Join(bin, "margay"), "run", probe(), "sleep"),
		"logs":          m.start("logs", job),
		"console":       m.start("machine", "console", "0", "--follow"),
		"record":        m.start("record", "-o", alone),
		"top":           m.start("top", "--interval", "100ms"),
		"long top":      m.start("top", "--once", "--interval", "1h"),
		"ext log":       m.start("ext", "log", "--follow"),
		"ext stats":     m.start("ext", "stats", "--interval", "1h"),
		"noise":         m.start("nodes", "--noise=1m"),
	}
	for _, name := range []string{"run", "record of run", "logs"} {
		commands[name].awaitOutput("sleeping 0\n")
	}
	commands["console"].awaitOutput("\n")
	commands["top"].awaitOutput("machine " + m.name)
	eventually(t, "trace", func() bool { parts, _ := filepath.Glob(alone + ".*.part"); return len(parts) == 1 }, commands["record"].stderr.String)
	if r := m.margay("machine", "down"); r.code != 0 {
		t.Error(r)
	}
	ends := regexp.MustCompile(`(^|\n)margay: (the machine goes down|the machine is gone|machine ` + m.name + `: there is no such machine|machine ` + m.name + ` has no holder)[^\n]*\n$`)
	wrong := regexp.MustCompile(`looking for it|asking again|does not answer|is lost|spoilt|\*control`)
	for name, c := range commands {
		if r := c.wait(); r.code != 125 || !ends.MatchString(r.stderr) || wrong.MatchString(r.stderr) {
			t.Errorf("%s: %v", name, r)
		}
	}
	for _, file := range []string{alone, beside} {
		if text, err := os.ReadFile(file); err != nil || !json.Valid(text) {
			t.Errorf("%s: %d bytes, %v", file, len(text), err)
		}
	}
}

// Two concurrent jobs, and many sequential ones, leave nothing behind.
func TestManyJobs(t *testing.T) {
	m := use(t, "hosted")
	var all sync.WaitGroup
	for range 4 {
		all.Go(func() {
			for range 10 {
				if r := m.margay("run", "-n", "2", probe(), "hello"); r.code != 0 {
					t.Error(r)
				}
			}
		})
	}
	all.Wait()
	m.awaitIdle()
}

// When two commands make a machine of the same name at once, one of them gets it.
func TestMachineTwiceAtOnce(t *testing.T) {
	ownMachine(t, "own")
	m := &machine{t: t, name: "twice", nodes: 2, cores: 1}
	var all sync.WaitGroup
	results := make([]result, 4)
	for i := range results {
		all.Go(func() { results[i] = m.up("hosted") })
	}
	all.Wait()
	made := 0
	for _, r := range results {
		switch {
		case r.code == 0:
			made++
		case !strings.Contains(r.stderr, "another margay machine up is making it") && !strings.Contains(r.stderr, "the machine is up: process"):
			t.Error(r)
		}
	}
	if made != 1 {
		t.Errorf("%d of %d have made the machine", made, len(results))
	}
	m.usable()
	if r := m.margay("machine", "down"); r.code != 0 {
		t.Error(r)
	}
	m.gone()
}

// gone requires that nothing is left of a machine.
func (m *machine) gone() {
	m.t.Helper()
	if _, err := os.Stat(m.file()); !os.IsNotExist(err) {
		m.t.Errorf("%s is left (%v)", m.file(), err)
	}
	for _, part := range []string{"holder " + m.name, "serve -m " + m.name + " ", "guest=" + m.name + "-", m.file("nodes")} {
		if left := pids(m.t, part); len(left) > 0 {
			m.t.Errorf("processes %v (%s) are left", left, part)
		}
	}
}
