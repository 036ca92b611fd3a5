package agent

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"margay/cluster/control"
	"margay/internal/check"
)

// What the firmware has kept goes to serve, and is removed only when serve has it. Until then each
// registration tries again.
func TestFirmwareLogs(t *testing.T) {
	check.Leaks(t)
	dir := t.TempDir()
	for name, text := range map[string]string{
		"dmesg-erst-1": "Panic#1 Part1\n<0>[    9.0] Kernel panic - not syncing: no init\n", "dmesg-erst-2": "Panic#1 Part2\n<6>[    1.0] x\n", "console-ramoops-0": "y\n",
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o400); err != nil {
			t.Fatal(err)
		}
	}
	files := func() (names []string) {
		entries, err := os.ReadDir(dir)
		if err != nil {
			t.Error(err)
		}
		for _, e := range entries {
			names = append(names, e.Name())
		}
		return names
	}
	s := newServe(t)
	var full atomic.Bool
	full.Store(true)
	s.keep = func() error {
		if full.Load() {
			return errors.New("the disk is full")
		}
		return nil
	}
	said := new(lines)
	a := s.agent(3, said)
	a.config.FirmwareLogs = dir
	s.live(a, new(playedKernel))
	conn := s.next()
	first[*control.FirmwareLog](t, &s.recorder)
	const stay = "logs that the firmware has kept stay there: the disk is full"
	check.AwaitFor(t, patience, stay, func() bool { return strings.Contains(said.String(), stay) })
	if all := files(); len(all) != 3 {
		t.Errorf("after a refusal there are %v", all)
	}
	full.Store(false)
	conn.Close()
	s.next()
	check.AwaitFor(t, patience, "the end of the logs", func() bool { return slices.Equal(files(), []string{"console-ramoops-0"}) })
	sent := all[*control.FirmwareLog](&s.recorder)
	if len(sent) != 2 || string(sent[0].Text) != string(sent[1].Text) || !strings.HasSuffix(string(sent[1].Text), ": Panic#1 --\n<6>[    1.0] x\n<0>[    9.0] Kernel panic - not syncing: no init\n") {
		t.Errorf("serve has got %v", fmt.Sprint(sent))
	}
}
