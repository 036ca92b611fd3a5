package subroutine

import (
	"bytes"
	"fmt"
	"os"
	"slices"
	"sync"
	"testing"
)

// TestArena adds code that fits into a block and code that does not, in more than
// one block, and removes it.
func TestArena(t *testing.T) {
	for _, single := range []bool{false, true} {
		t.Run(fmt.Sprintf("single=%v", single), func(t *testing.T) { testArena(t, &arena{single: single}) })
	}
}

func testArena(t *testing.T, a *arena) {
	page := os.Getpagesize()
	var added [][]byte
	for n := range 100 {
		size := 1 + n%5*page
		if n == 50 {
			size = (blockPages + 1) * page
		}
		code := bytes.Repeat([]byte{byte(n)}, size)
		memory, err := a.add(code)
		if err != nil {
			t.Fatal(err)
		}
		added = append(added, memory)
	}
	for n, memory := range added {
		if memory[0] != byte(n) || memory[len(memory)-1] != byte(n) {
			t.Errorf("code %d was written over", n)
		}
	}
	if len(a.blocks) < 3 {
		t.Errorf("%d blocks for more than two", len(a.blocks))
	}
	for _, memory := range added {
		if err := a.remove(memory); err != nil {
			t.Fatal(err)
		}
	}
	if len(a.blocks) != 1 || a.blocks[0].free != blockPages {
		t.Errorf("%d blocks are left", len(a.blocks))
	}
	if single := a.blocks[0].written == nil; single != a.single {
		t.Errorf("the views are not those of an arena with single=%v", a.single)
	}
	first := addressOf(a.blocks[0].memory)
	memory, err := a.add(bytes.Repeat([]byte{1}, 3*page-7))
	if err != nil || addressOf(memory) != first {
		t.Errorf("free pages were not used: %v", err)
	}
	if err := a.remove(memory); err != nil || slices.ContainsFunc(a.blocks[0].memory[:3*page], func(b byte) bool { return b != trap }) {
		t.Errorf("code that was removed is still there: %v", err)
	}
	if err := a.remove(make([]byte, 1)); err == nil {
		t.Error("memory from elsewhere was taken back")
	}
}

// Address space that cannot be reserved is an error, so that another engine can be chosen.
func TestReserve(t *testing.T) {
	if memory, err := reserve(nearText(), 1<<60); err == nil || memory != nil {
		t.Errorf("got %d bytes, %v", len(memory), err)
	}
}

// TestArenaIsShared adds and removes from many goroutines.
func TestArenaIsShared(t *testing.T) {
	for _, single := range []bool{false, true} {
		t.Run(fmt.Sprintf("single=%v", single), func(t *testing.T) { testArenaIsShared(t, &arena{single: single}) })
	}
}

func testArenaIsShared(t *testing.T, a *arena) {
	var wait sync.WaitGroup
	for n := range 8 {
		wait.Go(func() {
			for range 200 {
				memory, err := a.add(bytes.Repeat([]byte{byte(n)}, 5000))
				if err != nil || memory[0] != byte(n) || memory[4999] != byte(n) {
					t.Errorf("got %d bytes, %v", len(memory), err)
					return
				}
				if err := a.remove(memory); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wait.Wait()
}
