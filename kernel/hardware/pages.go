package hardware

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
)

// hugePages is the folder of Linux's settings of huge pages (admin-guide/mm/transhuge).
const hugePages = "/sys/kernel/mm/transparent_hugepage"

// hugePage is how large a huge page is on the processors that Margay knows, in bytes.
const hugePage = 2 << 20

// HugePages reports whether Linux gives huge pages to programs that do not ask for them. It tries,
// since what Linux says about it cannot be read everywhere.
func HugePages() (bool, error) {
	before, err := inHugePages()
	if err != nil {
		return false, err
	}
	memory, err := unix.Mmap(-1, 0, 2*hugePage, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		return false, fmt.Errorf("hardware: huge pages: %w", err)
	}
	defer unix.Munmap(memory)
	// Wherever the memory begins, this byte is in the one huge page that is surely all in it. A
	// host may have a thousand nodes, and faults for all small pages take 20 ms of a processor.
	memory[hugePage-1] = 1
	after, err := inHugePages()
	return after > before, err
}

// inHugePages returns how much of this process's memory is in huge pages, in KiB.
func inHugePages() (int, error) {
	text, err := os.ReadFile("/proc/self/smaps_rollup")
	if err != nil {
		return 0, fmt.Errorf("hardware: huge pages: %w", err)
	}
	for line := range strings.Lines(string(text)) {
		if value, ok := strings.CutPrefix(line, "AnonHugePages:"); ok {
			return strconv.Atoi(strings.TrimSpace(strings.TrimSuffix(strings.TrimSpace(value), "kB")))
		}
	}
	return 0, errors.New("hardware: huge pages: this Linux does not have any")
}

// OfferHugePages enables huge pages for every process that has not declined them
// (DeclineHugePages), on the first touch of memory and not later: the kernel thread that collects
// small pages into huge ones disturbs computation. It is for nodes with their own Linux kernel.
//
// Linux then raises its reserve of free memory, by up to a tenth of a small node's memory, to find
// huge pages sooner. Jobs get that memory instead, and may wait for huge pages.
func OfferHugePages() error {
	reserve, err := os.ReadFile(freeReserve)
	if err != nil {
		return fmt.Errorf("hardware: huge pages: %w", err)
	}
	for _, setting := range []struct{ file, value string }{
		{"khugepaged/scan_sleep_millisecs", "4294967295"},
		{"defrag", "always"}, // a program that asks for them waits for them
		{"enabled", "always"},
	} {
		if err := os.WriteFile(filepath.Join(hugePages, setting.file), []byte(setting.value), 0); err != nil {
			return fmt.Errorf("hardware: huge pages: %w", err)
		}
	}
	if err := os.WriteFile(freeReserve, reserve, 0); err != nil {
		return fmt.Errorf("hardware: huge pages: %w", err)
	}
	return nil
}

// freeReserve is how much memory Linux keeps free, in KiB.
const freeReserve = "/proc/sys/vm/min_free_kbytes"

// exceptAdvised is PR_THP_DISABLE_EXCEPT_ADVISED (Linux 6.18): memory that a program requests them
// for still gets them.
const exceptAdvised = 1 << 1

// completely is what Linux reports for a process that has declined huge pages without an exception.
const completely = 1

// DeclineHugePages declines huge pages for this process and its later children, except, if the
// kernel supports it, for memory that a program requests them for. Pages that are declined without
// an exception stay so.
func DeclineHugePages() error {
	if declined, err := unix.PrctlRetInt(unix.PR_GET_THP_DISABLE, 0, 0, 0, 0); err == nil && declined == completely {
		return nil
	}
	err := unix.Prctl(unix.PR_SET_THP_DISABLE, 1, exceptAdvised, 0, 0)
	if err == unix.EINVAL {
		err = unix.Prctl(unix.PR_SET_THP_DISABLE, 1, 0, 0, 0)
	}
	if err != nil {
		return fmt.Errorf("hardware: decline huge pages: %w", err)
	}
	return nil
}

// AcceptHugePages undoes DeclineHugePages for this process and its later children.
func AcceptHugePages() error {
	if err := unix.Prctl(unix.PR_SET_THP_DISABLE, 0, 0, 0, 0); err != nil {
		return fmt.Errorf("hardware: accept huge pages: %w", err)
	}
	return nil
}

// HugePagesDeclined reports whether this process, or one that it descends from, has declined huge
// pages.
func HugePagesDeclined() bool {
	declined, err := unix.PrctlRetInt(unix.PR_GET_THP_DISABLE, 0, 0, 0, 0)
	return err == nil && declined != 0
}

// declining is held while this process declines huge pages for a child.
var declining sync.Mutex

// WithoutHugePages calls start, and declines huge pages for the children that it starts. For that
// time they are declined for this process, too. It is for programs that are short and small: Linux
// clears each huge page, which takes longer than all their small ones.
func WithoutHugePages(start func() error) error {
	declining.Lock()
	defer declining.Unlock()
	if HugePagesDeclined() || DeclineHugePages() != nil {
		return start()
	}
	defer AcceptHugePages() // it cannot fail where declining has worked
	return start()
}

// LockMemory keeps every page that this process has touched or will touch in memory. It is of use
// only where there is swap, or the program is on a disk.
func LockMemory() error {
	if err := unix.Mlockall(unix.MCL_CURRENT | unix.MCL_FUTURE | unix.MCL_ONFAULT); err != nil {
		return fmt.Errorf("hardware: lock memory: %w", err)
	}
	return nil
}

// Swaps reports whether memory can be swapped out here.
func Swaps() (bool, error) {
	text, err := os.ReadFile("/proc/swaps")
	if errors.Is(err, os.ErrNotExist) {
		return false, nil // a kernel without
	}
	return strings.Count(string(text), "\n") > 1, err
}
