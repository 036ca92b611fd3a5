package priority

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"

	"margay/kernel/abi/id"
)

// ringPages is how many pages of records Linux can be ahead, a power of two.
const ringPages = 16

// Where the counters of a ring are in its first page (struct perf_event_mmap_page).
const (
	offHead = 1024
	offTail = 1032
)

// ring holds Linux's records: about the threads of a process and their new threads on one CPU, when
// one gets or leaves the processor, starts or ends; or about all threads at a tracepoint on one
// CPU.
type ring struct {
	files []*os.File // the first one owns the memory
	cpu   id.CPU
	mem   []byte
	page  uint64
	over  bool // the thread has ended, and so have those that it has made

	sample what       // what it means to be at the tracepoint
	point  tracepoint // which one it is
}

// The types of records.
type what int

const (
	other what = iota
	waits      // it has left the processor, and will not need it until it is woken up
	runs       // it has got the processor, or left it without having to wait
	woken      // it does not wait any more; only its number is known
	begun      // it was made
	ended
	lost // something was not recorded
)

// record is one record of Linux.
type record struct {
	what     what
	time     id.Time // as clock.Monotonic says it
	pid, tid int
	ppid     int // the process that made it, of begun
	number   int // of the thread, as Linux itself counts threads; 0 when the record does not say it
	next     int // of waits: the number of the thread that gets the processor; 0 when none does, or the record does not say it
	priority int // of that one, as tracepoints have it
}

// What all events have.
const (
	sampled = unix.PERF_SAMPLE_TID | unix.PERF_SAMPLE_TIME
	bits    = unix.PerfBitSampleIDAll | unix.PerfBitUseClockID
)

// openRing makes the ring of a thread. It excludes the other threads of its process: see follow.
func openRing(tid int, cpu id.CPU) (*ring, error) {
	f, err := openSwitches(tid, cpu)
	if err != nil {
		return nil, err
	}
	return mapRing(f, cpu)
}

// mapRing makes a ring of events.
func mapRing(f *os.File, cpu id.CPU) (*ring, error) {
	r := &ring{files: []*os.File{f}, cpu: cpu, page: uint64(os.Getpagesize())}
	var err error
	if r.mem, err = unix.Mmap(int(f.Fd()), 0, (1+ringPages)*int(r.page), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED); err != nil {
		return nil, errors.Join(fmt.Errorf("map %s: %w", f.Name(), err), f.Close())
	}
	return r, nil
}

// switches are the context switches of a thread, and of those that it will make.
var switches = unix.PerfEventAttr{
	Type: unix.PERF_TYPE_SOFTWARE, Config: unix.PERF_COUNT_SW_DUMMY, Sample_type: sampled,
	Bits: bits | unix.PerfBitInherit | unix.PerfBitTask | unix.PerfBitContextSwitch | unix.PerfBitExcludeKernel |
		unix.PerfBitWatermark, // in bytes: records of this kind do not count as events
}

// openSwitches has Linux record what a thread, and those that it will make, do on a CPU.
func openSwitches(tid int, cpu id.CPU) (*os.File, error) {
	return openEvents(fmt.Sprintf("context switches of thread %d", tid), tid, cpu, switches)
}

// askSwitches enables records of context switches.
func askSwitches(cpu id.CPU) (*os.File, error) {
	attr := switches
	attr.Bits |= unix.PerfBitDisabled
	return openEvents("context switches", os.Getpid(), cpu, attr)
}

// attr describes the events of a tracepoint.
func (p tracepoint) attr() unix.PerfEventAttr {
	return unix.PerfEventAttr{
		Type: unix.PERF_TYPE_TRACEPOINT, Config: p.id, Sample: 1, Sample_type: sampled | unix.PERF_SAMPLE_RAW, Bits: bits,
	}
}

// askPoint enables a tracepoint.
func askPoint(p tracepoint, cpu id.CPU) (*os.File, error) {
	attr := p.attr()
	attr.Bits |= unix.PerfBitDisabled
	return openEvents("a tracepoint", -1, cpu, attr)
}

// openPoint makes the ring of a tracepoint on a CPU. If the tracepoint means that a thread waits,
// threads that start and end on the CPU are also recorded, and delivered with its next event.
func openPoint(p tracepoint, means what, cpu id.CPU, filter string) (*ring, error) {
	attr := p.attr()
	if means == waits {
		attr.Bits |= unix.PerfBitTask
	}
	f, err := openFiltered(attr, cpu, filter)
	if err != nil {
		return nil, err
	}
	r, err := mapRing(f, cpu)
	if err != nil {
		return nil, err
	}
	r.sample, r.point = means, p
	return r, nil
}

// quietly adds events to the ring of a tracepoint that do not wake its reader.
func (r *ring) quietly(p tracepoint, filter string) error {
	attr := p.attr()
	attr.Bits |= unix.PerfBitWatermark
	attr.Wakeup = 1 << 30
	f, err := openFiltered(attr, r.cpu, filter)
	if err != nil {
		return err
	}
	return r.join(f)
}

// openFiltered opens a tracepoint on a CPU with a filter.
func openFiltered(attr unix.PerfEventAttr, cpu id.CPU, filter string) (*os.File, error) {
	f, err := openEvents(fmt.Sprintf("a tracepoint on CPU %d", cpu), -1, cpu, attr)
	if err != nil {
		return nil, err
	}
	words := append([]byte(filter), 0)
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, f.Fd(), unix.PERF_EVENT_IOC_SET_FILTER, uintptr(unsafe.Pointer(&words[0]))); errno != 0 {
		return nil, errors.Join(fmt.Errorf("filter %s by %q: %w", f.Name(), filter, errno), f.Close())
	}
	return f, nil
}

// openEvents starts recording events of a thread, or of all for -1, on a CPU. Each event wakes the
// reader, unless attr sets a number of bytes.
func openEvents(name string, tid int, cpu id.CPU, attr unix.PerfEventAttr) (*os.File, error) {
	attr.Size, attr.Clockid, attr.Wakeup = unix.PERF_ATTR_SIZE_VER5, unix.CLOCK_MONOTONIC, max(1, attr.Wakeup)
	fd, err := unix.PerfEventOpen(&attr, tid, int(cpu), -1, unix.PERF_FLAG_FD_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("watch %s: %w", name, err)
	}
	return os.NewFile(uintptr(fd), name), nil
}

// follow adds another thread to the ring.
func (r *ring) follow(tid int) error {
	f, err := openSwitches(tid, r.cpu)
	if err != nil {
		return err
	}
	return r.join(f)
}

// join has events recorded in the ring.
func (r *ring) join(f *os.File) error {
	if err := unix.IoctlSetInt(int(f.Fd()), unix.PERF_EVENT_IOC_SET_OUTPUT, int(r.files[0].Fd())); err != nil {
		return errors.Join(fmt.Errorf("watch %s: %w", f.Name(), err), f.Close())
	}
	r.files = append(r.files, f)
	return nil
}

// fd becomes readable when there is something to read.
func (r *ring) fd() int32 { return int32(r.files[0].Fd()) }

// read calls f for each record that has come.
func (r *ring) read(f func(record)) {
	head := atomic.LoadUint64((*uint64)(unsafe.Pointer(&r.mem[offHead])))
	tail := binary.LittleEndian.Uint64(r.mem[offTail:])
	var b [128]byte
	for tail < head {
		n := r.copyOut(b[:8], tail)
		size := binary.LittleEndian.Uint16(b[6:])
		if size < 8 {
			tail = head // Linux does not do that
			break
		}
		n += r.copyOut(b[n:min(int(size), len(b))], tail+8)
		f(r.parse(b[:n]))
		tail += uint64(size)
	}
	atomic.StoreUint64((*uint64)(unsafe.Pointer(&r.mem[offTail])), tail)
}

// copyOut copies from a position of the ring, which may be at its end, and returns how much.
func (r *ring) copyOut(b []byte, at uint64) int {
	data := r.mem[r.page:]
	for i := range b {
		b[i] = data[(at+uint64(i))%uint64(len(data))]
	}
	return len(b)
}

// parse reads a record. Absent fields are zero.
func (r *ring) parse(b []byte) record {
	var whole [192]byte
	copy(whole[:], b)
	word := func(at int) int { return int(int32(binary.LittleEndian.Uint32(whole[at:]))) }
	time := func(at int) id.Time { return id.Time(binary.LittleEndian.Uint64(whole[at:])) }
	switch word(0) {
	case unix.PERF_RECORD_SAMPLE: // pid, tid, time, size of what follows
		field := func(which int) int {
			if at := r.point.fields[which]; at > 0 {
				return word(28 + at)
			}
			return 0
		}
		return record{
			what: r.sample, pid: word(8), tid: word(12), time: time(16),
			number: field(numberField), next: field(nextField), priority: field(priorityField),
		}
	case unix.PERF_RECORD_SWITCH: // pid, tid, time
		s := record{what: runs, pid: word(8), tid: word(12), time: time(16)}
		if misc := binary.LittleEndian.Uint16(b[4:]); misc&unix.PERF_RECORD_MISC_SWITCH_OUT != 0 && misc&unix.PERF_RECORD_MISC_SWITCH_OUT_PREEMPT == 0 {
			s.what = waits
		}
		return s
	case unix.PERF_RECORD_FORK: // pid, ppid, tid, ptid, time
		return record{what: begun, pid: word(8), ppid: word(12), tid: word(16), time: time(24)}
	case unix.PERF_RECORD_EXIT:
		return record{what: ended, pid: word(8), tid: word(16), time: time(24)}
	case unix.PERF_RECORD_LOST, unix.PERF_RECORD_THROTTLE, unix.PERF_RECORD_UNTHROTTLE:
		return record{what: lost}
	}
	return record{}
}

func (r *ring) close() {
	_ = unix.Munmap(r.mem)
	for _, f := range r.files {
		f.Close()
	}
}
