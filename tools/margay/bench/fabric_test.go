package bench

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"margay/tools/margay/command"
)

// The clock is read when the complete lines begin and end arrive, in whatever pieces.
func TestStopwatch(t *testing.T) {
	now := time.Duration(0)
	w := &stopwatch{read: func() time.Duration { now += 5; return now }}
	for _, piece := range []string{"hello\nbeg", "in", "\nnot the end\n", "end", "\n{}\nend of it\n"} {
		if n, err := fmt.Fprint(w, piece); n != len(piece) || err != nil {
			t.Errorf("%q: %d, %v", piece, n, err)
		}
	}
	if w.took != 5 || now != 10 {
		t.Errorf("it took %d, and the clock was read at %d", w.took, now)
	}
	if got := w.output.String(); got != "hello\nbegin\nnot the end\nend\n{}\nend of it\n" {
		t.Errorf("the output is %q", got)
	}
}

// The clock of this process's processor time advances.
func TestProcessorTime(t *testing.T) {
	self := nodeKernels{os.Getpid()}
	before := self.processorTime()
	for deadline := time.Now().Add(time.Minute); self.processorTime() == before; {
		if time.Now().After(deadline) {
			t.Fatalf("the processor time stays %v", before)
		}
	}
}

// A janitor that is dismissed removes nothing, and one that is not removes the folder.
func TestJanitor(t *testing.T) {
	for _, dismissed := range []bool{true, false} {
		folder := filepath.Join(t.TempDir(), "folder")
		if err := os.Mkdir(folder, 0o755); err != nil {
			t.Fatal(err)
		}
		j, err := startJanitor(folder, nil)
		if err != nil {
			t.Fatal(err)
		}
		if dismissed {
			err = j.dismiss()
		} else {
			j.lifeline.Close() // as the end of this process does
			err = j.cmd.Wait()
		}
		if err != nil {
			t.Error(err)
		}
		if _, err := os.Stat(folder); (err == nil) != dismissed {
			t.Errorf("dismissed: %t, folder: %v", dismissed, err)
		}
	}
}

// Wrong flags are refused before anything is measured.
func TestFabricFlags(t *testing.T) {
	page := filepath.Join(t.TempDir(), "page")
	if err := os.WriteFile(page, []byte("no lines for figures\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	for want, args := range map[string][]string{
		"--case ping: it is one of roundtrip-8, ":     {"--case", "barrier,ping"},
		"--place moon: it is one of same-node, ":      {"--place", "moon"},
		"--against LAM: it is one of MPICH, Open MPI": {"--against", "LAM"},
		"--rounds 0: it must be more than 0":          {"--rounds", "0"},
		"page: the page lacks the line <!-- begin":    {"--into", page},
		"no such file": {"--into", filepath.Join(t.TempDir(), "missing")},
	} {
		c := commands{new(command.App)}.benchFabricCommand()
		c.SetArgs(args)
		c.SilenceErrors, c.SilenceUsage = true, true
		if err := c.Execute(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v: %v", args, err)
		}
	}
}
