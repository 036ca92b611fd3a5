package stack

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// stopWait bounds how long the threads of a process may take to stop, all together: one that
// computes must get a processor first, and one may be in a system call that nothing interrupts.
const stopWait = 2 * time.Second

// readTime bounds how long the stacks of a process are unwound: its call frame information may be
// made to take long. The rest is cut, or left out.
const readTime = 4 * time.Second

var errLate = errors.New("its stacks take too long to read")

// Read finds out where the threads of a process are. Each is stopped, one after the other, while
// its registers and its stack are copied, so a system call that Linux does not restart after a stop
// returns EINTR (signal(7)). A process that was stopped stays stopped. The caller must be permitted
// to trace the process, and its goroutine must be locked to a thread that ends with it: that
// releases threads that do not stop in time. With the layout of its program, goroutines that no
// thread runs are read as well.
func Read(pid int, open Opener, layouts ...GoLayout) (*Process, error) {
	maps, err := readMaps(pid)
	if err != nil {
		return nil, err
	}
	tids, left, err := threads(pid)
	if err != nil {
		return nil, err
	}
	p := &Process{Left: left}
	until := time.Now().Add(readTime)
	mem := newPages(processMemory(pid), until)
	ms := newModules(mem, maps, open)
	ms.until = until
	var failed error
	deadline := time.Now().Add(stopWait)
	buf := make([]byte, maxStack)
	for i, tid := range tids {
		if ms.late() {
			p.Left, failed = p.Left+len(tids)-i, errLate
			break
		}
		regs, stack, err := capture(pid, tid, maps, buf, deadline)
		if err != nil {
			if !errors.Is(err, unix.ESRCH) { // it has ended
				p.Left, failed = p.Left+1, err
			}
			continue
		}
		stack.rest = mem
		frames, cut := native.unwind(ms, stack, regs)
		p.add(Threads{Stack: frames, Count: 1, Main: tid == pid, Cut: cut})
	}
	if len(p.Threads) == 0 {
		if failed == nil {
			failed = errors.New("it has ended")
		}
		return nil, failed
	}
	for _, l := range layouts {
		p.goroutines(processMemory(pid), ms, l)
	}
	p.Modules = ms.found
	return p, nil
}

func readMaps(pid int) ([]mapping, error) {
	f, err := os.Open(fmt.Sprintf("/proc/%d/maps", pid))
	if err != nil {
		return nil, err
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, maxMaps))
	return parseMaps(string(text)), err
}

// threads lists the threads of a process, the first one first, and counts those that are too many.
func threads(pid int) (tids []int, left int, err error) {
	entries, err := os.ReadDir(filepath.Join("/proc", strconv.Itoa(pid), "task"))
	if err != nil {
		return nil, 0, err
	}
	for _, e := range entries {
		if tid, err := strconv.Atoi(e.Name()); err == nil {
			tids = append(tids, tid)
		}
	}
	slices.SortFunc(tids, func(a, b int) int {
		switch {
		case a == pid:
			return -1
		case b == pid:
			return 1
		}
		return a - b
	})
	if len(tids) > maxThreads {
		tids, left = tids[:maxThreads], len(tids)-maxThreads
	}
	return tids, left, nil
}

// capture stops a thread, copies its registers, and its stack into buf, and lets it go on.
func capture(pid, tid int, maps []mapping, buf []byte, deadline time.Time) (regs registers, stack *snapshot, err error) {
	if err := unix.PtraceSeize(tid); err != nil {
		if Ended(pid, tid) {
			err = unix.ESRCH
		}
		return regs, nil, fmt.Errorf("trace thread %d: %w", tid, err)
	}
	defer func() {
		if e := letGo(tid); err == nil && e != nil {
			err = fmt.Errorf("let thread %d go on: %w", tid, e)
		}
	}()
	if err := unix.PtraceInterrupt(tid); err != nil {
		return regs, nil, fmt.Errorf("stop thread %d: %w", tid, err)
	}
	if err := getRegisters(pid, tid, &regs, deadline); err != nil {
		return regs, nil, err
	}
	stack = new(snapshot)
	stack.addr, _ = regs.get(native.sp)
	if m, ok := find(maps, stack.addr); ok {
		data := buf[:min(uint64(len(buf)), m.end-stack.addr)]
		n, err := unix.ProcessVMReadv(pid, []unix.Iovec{{Base: &data[0], Len: uint64(len(data))}},
			[]unix.RemoteIovec{{Base: uintptr(stack.addr), Len: len(data)}}, 0)
		if err == nil {
			stack.data = data[:n]
		}
	}
	return regs, stack, nil
}

// letGo lets a stopped thread go on, untraced. A signal that has stopped it before the request to
// stop did, as a doorbell may, reaches it.
func letGo(tid int) error {
	sig, err := stopSignal(tid)
	if err != nil {
		return err
	}
	return detach(tid, sig)
}

// Ended reports whether a thread has ended, although its process may not have been reaped.
func Ended(pid, tid int) bool {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/stat", pid, tid))
	if err != nil {
		return true
	}
	_, rest, _ := strings.Cut(string(text[strings.LastIndexByte(string(text), ')')+1:]), " ") // after the name
	return strings.HasPrefix(rest, "Z") || strings.HasPrefix(rest, "X")
}

// getRegisters reads the registers of a thread as soon as it has stopped. It does not wait for the
// thread by wait(2), because the process may have something else that waits for all its children.
func getRegisters(pid, tid int, regs *registers, deadline time.Time) error {
	var data [34 * 8]byte
	for pause := 5 * time.Microsecond; ; pause = min(2*pause, time.Millisecond) {
		n, err := readRegisters(tid, data[:])
		switch {
		case err == nil && native.fill(data[:n], regs):
			return nil
		case err == nil:
			return errors.New("the thread is not of this machine's kind")
		case err != unix.ESRCH:
			return fmt.Errorf("read registers of thread %d: %w", tid, err)
		}
		if Ended(pid, tid) {
			return unix.ESRCH
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("thread %d has not stopped in time: it is in a system call that cannot be interrupted, or gets no processor", tid)
		}
		time.Sleep(pause)
	}
}

// processMemory is the memory of a process.
type processMemory int

func (pid processMemory) read(addr uint64, p []byte) error {
	if len(p) == 0 {
		return nil
	}
	n, err := unix.ProcessVMReadv(int(pid), []unix.Iovec{{Base: &p[0], Len: uint64(len(p))}},
		[]unix.RemoteIovec{{Base: uintptr(addr), Len: len(p)}}, 0)
	if err == nil && n != len(p) {
		err = errMemory
	}
	return err
}
