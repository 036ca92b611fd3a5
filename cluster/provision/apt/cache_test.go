package apt

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"margay/internal/progress"
)

func TestLockHonoursContext(t *testing.T) {
	c := Cache{Dir: t.TempDir()}
	unlock, err := c.Lock(context.Background(), nil)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	told := ""
	_, err = c.Lock(ctx, func(s progress.Step) { told = s.Text; cancel() })
	if !errors.Is(err, context.Canceled) || !strings.Contains(told, "waiting") {
		t.Errorf("error %v, told %q", err, told)
	}
	unlock()
	if again, err := c.Lock(context.Background(), nil); err != nil {
		t.Error(err)
	} else {
		again()
	}
}

// Items of the cache are complete: they have a record, and leftovers of dead fetches are neither
// visible nor kept.
func TestStore(t *testing.T) {
	c := Cache{Dir: t.TempDir(), Record: "what.json"}
	dead, err := c.Scratch()
	if err != nil {
		t.Fatal(err)
	}
	scratch, err := c.Scratch()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(dead); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("what a dead fetch left: %v", err)
	}
	if err := os.Mkdir(c.Path("half"), 0o755); err != nil {
		t.Fatal(err)
	}
	for _, value := range []string{"first", "second"} { // the second value replaces the first
		tree := filepath.Join(scratch, "tree")
		if err := os.Mkdir(tree, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := c.Store(tree, "whole", value); err != nil {
			t.Fatal(err)
		}
		var got string
		if !c.Read("whole", &got) || got != value || c.Read("half", &got) || c.Read("none", &got) {
			t.Errorf("the record is %q, want %q, and that of nothing else", got, value)
		}
	}
	if names := c.Names(); !slices.Equal(names, []string{"half", "whole"}) {
		t.Errorf("names %q", names)
	}
}
