package bench

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"margay/tools/margay/bench/boots"
	"margay/tools/margay/command"
)

// TestMain makes the test program the one that margay bench boot starts.
func TestMain(m *testing.M) {
	if !slices.Equal(os.Args[1:], bootServices) {
		os.Exit(m.Run())
	}
	c := commands{&command.App{Stdout: os.Stdout}}.bootServicesCommand()
	c.SetArgs([]string{}) // and not the arguments of this program
	if err := c.Execute(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// Machines boot by each firmware, beside strangers and more of them than may fetch at the same
// time. The figures in JSON equal those on the page.
func TestBenchBoot(t *testing.T) {
	path := filepath.Join(t.TempDir(), "page.md")
	for _, firmware := range boots.Firmwares {
		text := "# Figures\n<!-- begin: written by margay bench boot -->\n<!-- end: written by margay bench boot -->\nend\n"
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		var out bytes.Buffer
		c := commands{&command.App{Stdout: &out, Stderr: io.Discard}}.benchBootCommand()
		args := []string{"--quick", "--json", "--clients", "12", "--turns", "3", "--firmware", firmware, "--into", path}
		if firmware == boots.PXE {
			args = append(args, "--strangers", "2", "--slow", "1")
		}
		c.SetArgs(args)
		if err := c.ExecuteContext(t.Context()); err != nil {
			t.Fatalf("%v\n%s", err, out.String())
		}
		var figures boots.Figures
		if err := json.Unmarshal(out.Bytes(), &figures); err != nil || len(figures.Results) != 1 {
			t.Fatalf("%v\n%s", err, out.String())
		}
		r := figures.Results[0]
		least := int64(12 * 512 << 10)
		if firmware != boots.Card {
			least += 12 * 850_000
		}
		if r.Clients != 12 || r.Booted != 12 || r.Bytes < least || r.Median <= 0 || r.Last < r.P99 || r.P99 < r.Median || r.Peak <= 0 || r.Error != "" {
			t.Errorf("%s: %+v", firmware, r)
		}
		written, err := os.ReadFile(path)
		if err != nil || !strings.Contains(string(written), fmt.Sprintf("\n| 12 | 12 | %.2f |", r.Median)) {
			t.Errorf("%v\n%s", err, written)
		}
	}
}

func TestBootFlags(t *testing.T) {
	for want, args := range map[string][]string{
		"--firmware floppy: it is one of card, pxe, http": {"--firmware", "floppy"},
		"--clients 0: it is 1 to 10000":                   {"--clients", "10,0"},
		"--turns -1: it is 0 to 10000":                    {"--turns", "-1"},
		"--image-size 0: it must be more than 0":          {"--image-size", "0"},
		"no such file":                                    {"--into", filepath.Join(t.TempDir(), "missing")},
	} {
		c := commands{new(command.App)}.benchBootCommand()
		c.SetArgs(args)
		c.SilenceErrors, c.SilenceUsage = true, true
		if err := c.Execute(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v: %v", args, err)
		}
	}
}
