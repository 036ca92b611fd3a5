package subroutine

import (
	"bytes"
	"os"
	"sync"
	"testing"
)

// TestArena fills more than a block, with what fits and with what does not, and
// takes it back.
func TestArena(t *testing.T) {
	var a arena
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
	first := addressOf(a.blocks[0].memory)
	memory, err := a.add([]byte{1})
	if err != nil || addressOf(memory) != first {
		t.Errorf("free pages were not used: %v", err)
	}
	if err := a.remove(make([]byte, 1)); err == nil {
		t.Error("memory from elsewhere was taken back")
	}
}

// TestArenaIsShared adds and removes from many goroutines.
func TestArenaIsShared(t *testing.T) {
	var a arena
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
