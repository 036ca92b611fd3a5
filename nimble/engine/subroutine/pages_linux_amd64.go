package subroutine

import (
	"errors"
	"fmt"
	"os"
	"sync"

	"golang.org/x/sys/unix"
)

// arena is memory for emitted code. Programs get whole pages of blocks that are
// mapped once, because mapping and unmapping takes longer than threading a
// small program. Pages in use can be executed and not written, the others can be
// written and not executed. Its methods are safe for concurrent use.
type arena struct {
	lock   sync.Mutex
	blocks []*block
}

// executable is where the code of this process is.
var executable arena

// blockPages is how many pages there are in a block that programs share.
const blockPages = 256

// block is one mapping.
type block struct {
	memory []byte
	used   []bool // by page
	free   int    // pages
}

// add returns an executable copy of emitted code, with whole pages as capacity.
func (a *arena) add(emitted []byte) ([]byte, error) {
	a.lock.Lock()
	defer a.lock.Unlock()
	page := os.Getpagesize()
	pages := (len(emitted) + page - 1) / page
	for _, b := range a.blocks {
		if first, ok := b.find(pages); ok {
			return b.fill(first, pages, emitted)
		}
	}
	size := max(pages, blockPages)
	memory, err := unix.Mmap(-1, 0, size*page, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		return nil, fmt.Errorf("map %d bytes for code: %w", size*page, err)
	}
	b := &block{memory, make([]bool, size), size}
	a.blocks = append(a.blocks, b)
	return b.fill(0, pages, emitted)
}

// remove takes back what add has returned. One block is kept for the next.
func (a *arena) remove(memory []byte) error {
	memory = memory[:cap(memory)]
	a.lock.Lock()
	defer a.lock.Unlock()
	for n, b := range a.blocks {
		offset := addressOf(memory) - addressOf(b.memory)
		if offset >= uintptr(len(b.memory)) {
			continue
		}
		if err := unix.Mprotect(memory, unix.PROT_READ|unix.PROT_WRITE); err != nil {
			return fmt.Errorf("take pages of code back: %w", err)
		}
		b.mark(int(offset)/os.Getpagesize(), len(memory)/os.Getpagesize(), false)
		if b.free < len(b.used) || len(a.blocks) == 1 && len(b.used) == blockPages {
			return nil
		}
		a.blocks = append(a.blocks[:n], a.blocks[n+1:]...)
		if err := unix.Munmap(b.memory); err != nil {
			return fmt.Errorf("unmap code: %w", err)
		}
		return nil
	}
	return errors.New("code that is not of this arena")
}

// find returns the first of as many free pages in a row.
func (b *block) find(pages int) (first int, ok bool) {
	if pages > b.free {
		return 0, false
	}
	for n, used := range b.used {
		switch {
		case used:
			first = n + 1
		case n+1-first == pages:
			return first, true
		}
	}
	return 0, false
}

// fill puts code into free pages and makes them executable.
func (b *block) fill(first, pages int, emitted []byte) ([]byte, error) {
	page := os.Getpagesize()
	memory := b.memory[first*page : (first+pages)*page : (first+pages)*page]
	copy(memory, emitted)
	if err := unix.Mprotect(memory, unix.PROT_READ|unix.PROT_EXEC); err != nil {
		return nil, fmt.Errorf("make code executable: %w", err)
	}
	b.mark(first, pages, true)
	return memory[:len(emitted)], nil
}

// mark says which pages are in use.
func (b *block) mark(first, pages int, used bool) {
	for n := first; n < first+pages; n++ {
		b.used[n] = used
	}
	if used {
		b.free -= pages
	} else {
		b.free += pages
	}
}
