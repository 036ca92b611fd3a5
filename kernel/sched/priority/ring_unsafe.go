package priority

import (
	"encoding/binary"
	"fmt"
	"os"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"
)

// ringPages is how many pages of records Linux can be ahead, a power of two.
const ringPages = 16

// Where the counters of a ring are in its first page (struct perf_event_mmap_page).
const (
	offHead = 1024
	offTail = 1032
)

// ring is what Linux tells of the threads of a process on one CPU, and of those that they make: when one gets and leaves the
// processor, begins and ends.
type ring struct {
	files []*os.File // the first one owns the memory
	cpu   int
	mem   []byte
	page  uint64
	over  bool // the thread has ended, and so have those that it has made
}

// record is one thing that Linux tells.
type record struct {
	kind          uint32 // unix.PERF_RECORD_...
	flags         uint16 // unix.PERF_RECORD_MISC_...
	pid, tid      int
	ppid, parents int // process and thread that made it, of PERF_RECORD_FORK
}

// openRing makes the ring of a thread. It tells nothing of the threads that its process has besides: see follow.
func openRing(tid, cpu int) (*ring, error) {
	r := &ring{cpu: cpu, page: uint64(os.Getpagesize())}
	f, err := openEvents(tid, cpu)
	if err != nil {
		return nil, err
	}
	r.files = append(r.files, f)
	if r.mem, err = unix.Mmap(int(f.Fd()), 0, (1+ringPages)*int(r.page), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED); err != nil {
		f.Close()
		return nil, fmt.Errorf("map context switches of thread %d: %w", tid, err)
	}
	return r, nil
}

// openEvents has Linux record what a thread, and those that it will make, do on a CPU.
func openEvents(tid, cpu int) (*os.File, error) {
	attr := unix.PerfEventAttr{
		Type: unix.PERF_TYPE_SOFTWARE, Config: unix.PERF_COUNT_SW_DUMMY, Size: unix.PERF_ATTR_SIZE_VER5,
		Sample_type: unix.PERF_SAMPLE_TID, Wakeup: 1,
		Bits: unix.PerfBitInherit | unix.PerfBitTask | unix.PerfBitSampleIDAll | unix.PerfBitContextSwitch | unix.PerfBitExcludeKernel |
			unix.PerfBitWatermark, // in bytes: records of this kind do not count as events
	}
	fd, err := unix.PerfEventOpen(&attr, tid, cpu, -1, unix.PERF_FLAG_FD_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("watch context switches of thread %d: %w", tid, err)
	}
	return os.NewFile(uintptr(fd), "context switches"), nil
}

// follow has the ring tell of another thread too.
func (r *ring) follow(tid int) error {
	f, err := openEvents(tid, r.cpu)
	if err != nil {
		return err
	}
	if err := unix.IoctlSetInt(int(f.Fd()), unix.PERF_EVENT_IOC_SET_OUTPUT, int(r.files[0].Fd())); err != nil {
		f.Close()
		return fmt.Errorf("watch context switches of thread %d: %w", tid, err)
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
	var b [64]byte
	for tail < head {
		n := r.copyOut(b[:8], tail)
		size := binary.LittleEndian.Uint16(b[6:])
		if size < 8 {
			tail = head // Linux does not do that
			break
		}
		n += r.copyOut(b[n:min(int(size), len(b))], tail+8)
		f(parse(b[:n]))
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

// parse reads a record. What is not there is zero.
func parse(b []byte) record {
	word := func(at int) int {
		if at+4 > len(b) {
			return 0
		}
		return int(int32(binary.LittleEndian.Uint32(b[at:])))
	}
	r := record{kind: uint32(word(0)), flags: binary.LittleEndian.Uint16(b[4:])}
	switch r.kind {
	case unix.PERF_RECORD_SWITCH: // sample_id
		r.pid, r.tid = word(8), word(12)
	case unix.PERF_RECORD_FORK, unix.PERF_RECORD_EXIT: // pid, ppid, tid, ptid
		r.pid, r.ppid, r.tid, r.parents = word(8), word(12), word(16), word(20)
	}
	return r
}

func (r *ring) close() {
	_ = unix.Munmap(r.mem)
	for _, f := range r.files {
		f.Close()
	}
}
