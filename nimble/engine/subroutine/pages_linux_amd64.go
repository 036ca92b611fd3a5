package subroutine

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"sync"

	"golang.org/x/sys/unix"
)

// arena is memory for emitted code. Programs get whole pages of blocks that stay
// mapped, because mapping and unmapping takes longer than threading a small
// program. add, bounds and remove are safe for concurrent use; the other methods
// need lock.
type arena struct {
	lock   sync.Mutex
	blocks []*block

	// Executable memory is in one reserved range, so that the signal handler can
	// recognize emitted code by two numbers that never change.
	reserved []byte
	taken    []bool // for each blockPages of reserved

	// single makes blocks with one view only, for systems without executable
	// memfds.
	single bool
}

// executable holds the emitted code of this process.
var executable arena

const (
	// blockPages is the size of a block that programs share, in pages.
	blockPages = 256

	// reservedBlocks is the size of the reserved range in blockPages: 1 GiB of
	// address space, without memory until it is used.
	reservedBlocks = 1024
)

// block is memory for code. It is mapped twice: one view is executable and not
// writable, the other writable and not executable, so that neither adding nor
// removing code changes a mapping. A block of a single arena has one view, whose
// pages change their protection.
type block struct {
	memory  []byte // the executable view
	written []byte // the writable view; nil: single, and memory is writable while it is not executable
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

// bounds returns the range of executable memory. The arena must not be empty.
func (a *arena) bounds() (start, size uintptr) {
	a.lock.Lock()
	defer a.lock.Unlock()
	return addressOf(a.reserved), uintptr(len(a.reserved))
}

// grow maps one more block.
func (a *arena) grow(pages int) (*block, error) {
	memory, err := a.take(pages)
	if err != nil {
		return nil, err
	}
	b := &block{memory: memory, used: make([]bool, pages), free: pages}
	if !a.single {
		b.written, err = mapTwice(memory)
		a.single = err != nil
	}
	if a.single {
		err = mapAt(memory, -1, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("map %d bytes for code: %w", len(memory), err), a.giveBack(memory))
	}
	a.blocks = append(a.blocks, b)
	return b, nil
}

// take returns so many pages in the first free row of the reserved range.
func (a *arena) take(pages int) ([]byte, error) {
	page := os.Getpagesize()
	if a.reserved == nil {
		const size = reservedBlocks * blockPages
		reserved, err := reserve(nearText(), size*page)
		if err != nil {
			return nil, fmt.Errorf("reserve %d bytes for code: %w", size*page, err)
		}
		a.reserved, a.taken = reserved, make([]bool, reservedBlocks)
	}
	first, ok := row(a.taken, (pages+blockPages-1)/blockPages)
	if !ok {
		return nil, fmt.Errorf("no room for %d bytes of code", pages*page)
	}
	from := first * blockPages * page
	memory := a.reserved[from : from+pages*page : from+pages*page]
	a.setTaken(memory, true)
	return memory, nil
}

// nearText returns an address near the program's own code, a random one so that
// emitted code is hard to find. Processors predict a call to code a few GiB away
// sooner than one to code at the other end of the address space, where Linux would
// map it: on Zen 4 that is a quarter of a call of an extension.
func nearText() uintptr {
	const away, within = 1 << 30, 4 << 30 // bytes
	return (onFaultAddress() + away + rand.N(uintptr(within))) &^ uintptr(os.Getpagesize()-1)
}

// giveBack returns memory to the reserved range.
func (a *arena) giveBack(memory []byte) error {
	a.setTaken(memory, false)
	return mapAt(memory, -1, unix.PROT_NONE, unix.MAP_PRIVATE|unix.MAP_NORESERVE)
}

func (a *arena) setTaken(memory []byte, taken bool) {
	size := blockPages * os.Getpagesize()
	first := int(addressOf(memory)-addressOf(a.reserved)) / size
	for n := range (len(memory) + size - 1) / size {
		a.taken[first+n] = taken
	}
}

// mapTwice maps a new memfd over executed, executable, and returns a writable
// view of it.
func mapTwice(executed []byte) (written []byte, err error) {
	fd, err := codeFile()
	if err != nil {
		return nil, err
	}
	defer unix.Close(fd)
	if err := unix.Ftruncate(fd, int64(len(executed))); err != nil {
		return nil, err
	}
	if written, err = unix.Mmap(fd, 0, len(executed), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED); err != nil {
		return nil, err
	}
	if err = mapAt(executed, fd, unix.PROT_READ|unix.PROT_EXEC, unix.MAP_SHARED); err != nil {
		return nil, errors.Join(err, unix.Munmap(written))
	}
	return written, nil
}

// codeFile makes an empty memfd. Linux before 6.3 does not know MFD_EXEC; later
// versions may refuse to execute a memfd without it.
func codeFile() (fd int, err error) {
	fd, err = unix.MemfdCreate("code", unix.MFD_CLOEXEC|unix.MFD_EXEC)
	if errors.Is(err, unix.EINVAL) {
		return unix.MemfdCreate("code", unix.MFD_CLOEXEC)
	}
	return fd, err
}

// remove takes back memory that add has returned. The arena keeps one block.
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
		return errors.Join(b.unmap(), a.giveBack(b.memory))
	}
	return errors.New("code that is not of this arena")
}

// empty fills pages with traps and marks them free.
func (b *block) empty(offset, length int) error {
	written := b.written
	if written == nil {
		written = b.memory
		if err := unix.Mprotect(b.memory[offset:offset+length], unix.PROT_READ|unix.PROT_WRITE); err != nil {
			return fmt.Errorf("take pages of code back: %w", err)
		}
	}
	fillTraps(written[offset : offset+length])
	b.mark(offset/os.Getpagesize(), length/os.Getpagesize(), false)
	return nil
}

// fillTraps fills memory with traps. It copies what it has filled: a loop over bytes
// takes longer than all the rest of a removal.
func fillTraps(memory []byte) {
	memory[0] = trap
	for n := 1; n < len(memory); n *= 2 {
		copy(memory[n:], memory[:n])
	}
}

// unmap removes the writable view.
func (b *block) unmap() error {
	if b.written == nil {
		return nil
	}
	if err := unix.Munmap(b.written); err != nil {
		return fmt.Errorf("unmap code: %w", err)
	}
	return nil
}

// find returns the first of so many free pages in a row.
func (b *block) find(pages int) (first int, ok bool) {
	if pages > b.free {
		return 0, false
	}
	return row(b.used, pages)
}

// row returns the index of the first row of wanted elements that are not used.
func row(used []bool, wanted int) (first int, ok bool) {
	for n, each := range used {
		switch {
		case each:
			first = n + 1
		case n+1-first == wanted:
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

// mark records whether pages are in use.
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
