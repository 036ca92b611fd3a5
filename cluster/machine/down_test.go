package machine

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"margay/internal/check"
)

// endingOf begins the end of a machine, as Down does.
func endingOf(t *testing.T, d Dir) *ending {
	t.Helper()
	making, err := os.Open(d.makingFile())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { making.Close() })
	return &ending{Dir: d, making: making, notice: t.Logf}
}

// A machine that could not be made, for instance because the disk is full, is removed, and its
// damaged store is reported.
func TestUndo(t *testing.T) {
	base(t)
	d, err := DirOf("m")
	if err != nil {
		t.Fatal(err)
	}
	claimed, err := claim(d, t.Logf)
	if err != nil {
		t.Fatal(err)
	}
	defer claimed.Close()
	if err := d.writeSpec(Spec{Name: "m", History: t.TempDir(), HistoryMiB: 1}); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(string(d), "state.db"), []byte("cut"), 0o600); err != nil {
		t.Fatal(err)
	}
	var told string
	if err := undo(t.Context(), d, claimed, func(format string, args ...any) { told = fmt.Sprintf(format, args...) }); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(string(d)); !errors.Is(err, fs.ErrNotExist) || !strings.Contains(told, "the history of machine m may lack jobs") {
		t.Errorf("its folder: %v, and it said %q", err, told)
	}
}

// The end of a machine leaves alone another one that was made in its place, in any state.
func TestDownOfAnother(t *testing.T) {
	base(t)
	d := created(t, "m")
	e := endingOf(t, d)
	claimed, err := claim(d, t.Logf)
	if err != nil {
		t.Fatal(err)
	}
	defer claimed.Close()
	if err := writeFile(d.keyFile(), nil); err != nil {
		t.Fatal(err)
	}
	holder := hold(t, d)
	for _, state := range []string{"with a holder", "without one"} {
		if err := e.run(t.Context()); err != nil {
			t.Errorf("%s: %v", state, err)
		}
		if _, err := os.Stat(d.keyFile()); err != nil {
			t.Errorf("%s: %v", state, err)
		}
		if _, alive := d.Holder(); alive != (state == "with a holder") {
			t.Errorf("%s: its holder lives: %v", state, alive)
		}
		if err := holder.Process.Kill(); err == nil {
			check.Await(t, "end of the holder", func() bool { _, alive := d.Holder(); return !alive })
		}
	}
	// It is still being made, and has no holder.
	if err := Down(t.Context(), d, t.Logf); !errors.Is(err, errBeingMade) {
		t.Errorf("the end of a machine that is being made: %v", err)
	}
	if _, err := os.Stat(d.keyFile()); err != nil {
		t.Error(err)
	}
}

// Machines of one name that are made and ended at the same time are whole or gone.
func TestDownAndUp(t *testing.T) {
	base(t)
	d, err := DirOf("m")
	if err != nil {
		t.Fatal(err)
	}
	var all sync.WaitGroup
	made := 0
	for i := range 3 {
		all.Go(func() {
			for n := range 100 {
				pause := time.Duration(rand.IntN(int(time.Millisecond)))
				if i > 0 {
					if err := Down(context.Background(), d, t.Logf); err != nil && !errors.Is(err, ErrNoMachine) && !errors.Is(err, errBeingMade) {
						t.Errorf("down %d: %v", n, err)
					}
					time.Sleep(pause)
					continue
				}
				claimed, err := claim(d, func(string, ...any) {})
				if err != nil {
					t.Errorf("up %d: %v", n, err)
					continue
				}
				time.Sleep(pause)
				if err := errors.Join(writeFile(d.keyFile(), nil), writeFile(d.specFile(), nil), claimed.Close()); err != nil {
					t.Errorf("up %d: %v", n, err)
				}
				made++
			}
		})
	}
	all.Wait()
	if err := Down(t.Context(), d, t.Logf); err != nil && !errors.Is(err, ErrNoMachine) {
		t.Error(err)
	}
	if _, err := os.Stat(string(d)); !errors.Is(err, os.ErrNotExist) || made != 100 {
		t.Error(fmt.Errorf("%d machines were made; what is left: %w", made, err))
	}
}

// The end of a machine may take longer the more nodes it has.
func TestDownBound(t *testing.T) {
	base(t)
	d := created(t, "m")
	for _, nodes := range []int{1, 1000} {
		if err := d.writeSpec(Spec{Name: "m", Nodes: nodes}); err != nil {
			t.Fatal(err)
		}
		if got, want := d.downBound(), downWait+time.Duration(nodes)*downEach; got != want {
			t.Errorf("%d nodes: %v, want %v", nodes, got, want)
		}
	}
	rack := filepath.Join(t.TempDir(), "machine.yaml")
	text := "power: [{nodes: 3, driver: command, command: [x], timeout: 1m}, {nodes: 4, driver: command, command: [x]}]\n"
	if err := errors.Join(os.WriteFile(rack, []byte(text), 0o600), d.writeSpec(Spec{Name: "m", Nodes: 2, Metal: MetalSpec{File: rack}})); err != nil {
		t.Fatal(err)
	}
	if got, want := d.downBound(), downWait+2*downEach+2*time.Minute+stopWait; got != want {
		t.Errorf("nodes that are switched off: %v, want %v", got, want)
	}
}
