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
// small program. Its methods are safe for concurrent use.
type arena struct {
	lock   sync.Mutex
	blocks []*block

	// single has blocks mapped once, as where the system has no files in memory
	// that can be executed.
	single bool
}

// executable is where the code of this process is.
var executable arena

// blockPages is how many pages there are in a block that programs share.
const blockPages = 256

// block is memory for code. It is mapped twice: one view can be executed and not
// written, the other written and not executed, so that neither adding nor
// removing code changes a mapping. A block of an arena that is single has one
// view, whose pages change.
type block struct {
	memory  []byte // what is executed
	written []byte // the same bytes, to be written; nil: memory is written, when it is not executed
	used    []bool // by page
	free    int    // pages
}

// trap fills pages that hold no code: each byte is the instruction int3.
const trap = 0xcc

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
	b, err := a.grow(max(pages, blockPages))
	if err != nil {
		return nil, err
	}
	return b.fill(0, pages, emitted)
}

// grow maps one more block.
func (a *arena) grow(pages int) (b *block, err error) {
	size := pages * os.Getpagesize()
	b = &block{used: make([]bool, pages), free: pages}
	if !a.single {
		b.memory, b.written, err = mapTwice(size)
		a.single = err != nil
	}
	if a.single {
		b.memory, err = unix.Mmap(-1, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	}
	if err != nil {
		return nil, fmt.Errorf("map %d bytes for code: %w", size, err)
	}
	a.blocks = append(a.blocks, b)
	return b, nil
}

// mapTwice returns two views of one file in memory, of which the first can be
// executed and the second written.
func mapTwice(size int) (executed, written []byte, err error) {
	fd, err := codeFile()
	if err != nil {
		return nil, nil, err
	}
	defer unix.Close(fd)
	if err := unix.Ftruncate(fd, int64(size)); err != nil {
		return nil, nil, err
	}
	if written, err = unix.Mmap(fd, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED); err != nil {
		return nil, nil, err
	}
	if executed, err = unix.Mmap(fd, 0, size, unix.PROT_READ|unix.PROT_EXEC, unix.MAP_SHARED); err != nil {
		return nil, nil, errors.Join(err, unix.Munmap(written))
	}
	return executed, written, nil
}

// codeFile makes an empty file in memory. Linux before 6.3 does not know
// MFD_EXEC, without which later ones may refuse to execute it.
func codeFile() (fd int, err error) {
	fd, err = unix.MemfdCreate("code", unix.MFD_CLOEXEC|unix.MFD_EXEC)
	if errors.Is(err, unix.EINVAL) {
		return unix.MemfdCreate("code", unix.MFD_CLOEXEC)
	}
	return fd, err
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
		if err := b.empty(int(offset), len(memory)); err != nil {
			return err
		}
		if b.free < len(b.used) || len(a.blocks) == 1 && len(b.used) == blockPages {
			return nil
		}
		a.blocks = append(a.blocks[:n], a.blocks[n+1:]...)
		return b.unmap()
	}
	return errors.New("code that is not of this arena")
}

// empty makes pages free.
func (b *block) empty(offset, length int) error {
	written := b.written
	if written == nil {
		written = b.memory
		if err := unix.Mprotect(b.memory[offset:offset+length], unix.PROT_READ|unix.PROT_WRITE); err != nil {
			return fmt.Errorf("take pages of code back: %w", err)
		}
	}
	code := written[offset : offset+length]
	for i := range code {
		code[i] = trap
	}
	b.mark(offset/os.Getpagesize(), length/os.Getpagesize(), false)
	return nil
}

// unmap gives the memory back.
func (b *block) unmap() error {
	err := unix.Munmap(b.memory)
	if b.written != nil {
		err = errors.Join(err, unix.Munmap(b.written))
	}
	if err != nil {
		return fmt.Errorf("unmap code: %w", err)
	}
	return nil
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

// fill puts code into free pages.
func (b *block) fill(first, pages int, emitted []byte) ([]byte, error) {
	page := os.Getpagesize()
	memory := b.memory[first*page : (first+pages)*page : (first+pages)*page]
	if b.written != nil {
		copy(b.written[first*page:], emitted)
	} else {
		copy(memory, emitted)
		if err := unix.Mprotect(memory, unix.PROT_READ|unix.PROT_EXEC); err != nil {
			return nil, fmt.Errorf("make code executable: %w", err)
		}
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
