// Package hardware finds out what a node has: cores, memory, and what disturbs its cores.
package hardware

import (
	"bytes"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"margay/kernel/abi/id"
)

// Core is one core of a node, as the machine numbers them: 0 is the system's, 1.. are the
// application's.
type Core struct {
	ID     id.Core
	CPU    id.CPU // Linux's number of it
	Shared bool   // it is not this node's alone
}

// Own returns the cores of a node that has its kernel to itself: every CPU that is online. CPUs
// isolated at boot count, although the affinity of no process shows them.
func Own() ([]Core, error) {
	text, err := os.ReadFile("/sys/devices/system/cpu/online")
	if err != nil {
		return nil, fmt.Errorf("hardware: %w", err)
	}
	cpus, err := ParseList(strings.TrimSpace(string(text)))
	if err != nil {
		return nil, fmt.Errorf("hardware: CPUs online: %w", err)
	}
	cores := make([]Core, len(cpus))
	for i, cpu := range cpus {
		cores[i] = Core{ID: id.Core(i), CPU: cpu}
	}
	return cores, nil
}

// Allowed returns the CPUs that a thread may use, in their order; 0 is the calling thread.
func Allowed(thread int) ([]id.CPU, error) {
	var set unix.CPUSet
	if err := unix.SchedGetaffinity(thread, &set); err != nil {
		return nil, fmt.Errorf("hardware: allowed CPUs: %w", err)
	}
	var allowed []id.CPU
	for cpu := range 64 * len(set) {
		if set.IsSet(cpu) {
			allowed = append(allowed, id.CPU(cpu))
		}
	}
	return allowed, nil
}

// Slots returns the cores of a hosted node: one for the system and n for applications. They are
// shared with whatever else runs there.
func Slots(allowed []id.CPU, n int, node id.Node) []Core {
	cores := make([]Core, n+1)
	for i := range cores {
		cores[i] = Core{ID: id.Core(i), CPU: Slot(allowed, n, node, id.Core(i)), Shared: true}
	}
	return cores
}

// Slot returns the CPU of a core of a hosted node, where each node has n cores for applications:
// the cores of all nodes are dealt out over the CPUs that their processes may use. Those for
// applications go upwards from the second CPU, those for the system downwards from the first, so
// that none shares a CPU while there are enough. Nodes that would begin at a CPU where others have
// begun go on one further: so jobs with few ranks on each node use all CPUs.
func Slot(allowed []id.CPU, n int, node id.Node, core id.Core) id.CPU {
	cpus, at := len(allowed), int(node)
	if core == 0 {
		return allowed[(cpus-at%cpus)%cpus]
	}
	begins := divisor(n, cpus) // every such CPU, until the nodes have gone round
	return allowed[(at*n+at/(cpus/begins)%begins+int(core))%cpus]
}

// divisor returns the greatest common divisor.
func divisor(a, b int) int {
	for b != 0 {
		a, b = b, a%b
	}
	return a
}

// maxCPU bounds the numbers in a CPU list.
const maxCPU = 1 << 16

// ParseList parses a list of CPUs as Linux writes it: "0-3,8".
func ParseList(text string) ([]id.CPU, error) {
	var cpus []id.CPU
	if text == "" {
		return nil, nil
	}
	for part := range strings.SplitSeq(text, ",") {
		first, last, isRange := strings.Cut(part, "-")
		if !isRange {
			last = first
		}
		from, err1 := strconv.ParseUint(first, 10, 32)
		to, err2 := strconv.ParseUint(last, 10, 32)
		if err1 != nil || err2 != nil || from > to || to >= maxCPU {
			return nil, fmt.Errorf("%q is not a list of CPUs", text)
		}
		for cpu := from; cpu <= to; cpu++ {
			cpus = append(cpus, id.CPU(cpu))
		}
	}
	slices.Sort(cpus)
	return slices.Compact(cpus), nil
}

// FreeMemory returns how many bytes could be given to applications now (MemAvailable).
func FreeMemory() (int64, error) {
	// Each heartbeat asks: an os.File would cost it eight system calls, and a scanner the lines
	// that it passes over.
	fd, err := unix.Open("/proc/meminfo", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return 0, fmt.Errorf("hardware: open /proc/meminfo: %w", err)
	}
	defer unix.Close(fd)
	var text [meminfoHead]byte
	n, err := unix.Read(fd, text[:])
	if err != nil {
		return 0, fmt.Errorf("hardware: read /proc/meminfo: %w", err)
	}
	return parseMeminfo(text[:n])
}

// FreeSpace returns how many bytes of a file system can still be written; -1 if that is not known.
func FreeSpace(path string) int64 {
	var st unix.Statfs_t
	if err := unix.Statfs(path, &st); err != nil || st.Blocks == 0 { // a ramfs counts nothing
		return -1
	}
	return int64(st.Bavail) * st.Bsize
}

// meminfoHead is how much of /proc/meminfo is read, in bytes: MemAvailable is the third of its
// lines, which have 28 each.
const meminfoHead = 512

func parseMeminfo(text []byte) (int64, error) {
	const name = "MemAvailable:"
	_, value, _ := bytes.Cut(text, []byte(name))
	value, _, ok := bytes.Cut(value, []byte("\n"))
	if !ok {
		return 0, fmt.Errorf("hardware: no %s in /proc/meminfo", strings.TrimSuffix(name, ":"))
	}
	kib, err := strconv.ParseInt(strings.TrimSpace(strings.TrimSuffix(string(value), "kB")), 10, 64)
	if err != nil || kib < 0 || kib > 1<<50 {
		return 0, fmt.Errorf("hardware: MemAvailable is %q", value)
	}
	return kib << 10, nil
}

// Confine pins every thread of this process to the given CPUs, and with them what they will start.
func Confine(cpus []id.CPU) error {
	var set unix.CPUSet
	for _, cpu := range cpus {
		set.Set(int(cpu))
	}
	// A new thread inherits the affinity of its creator, so a round without new threads is the
	// last.
	done := make(map[int]bool)
	for {
		entries, err := os.ReadDir("/proc/self/task")
		if err != nil {
			return fmt.Errorf("hardware: threads: %w", err)
		}
		fresh := false
		for _, e := range entries {
			tid, err := strconv.Atoi(e.Name())
			if err != nil || done[tid] {
				continue
			}
			if err := unix.SchedSetaffinity(tid, &set); err != nil && err != unix.ESRCH {
				return fmt.Errorf("hardware: pin to CPUs %v: %w", cpus, err)
			}
			done[tid], fresh = true, true
		}
		if !fresh {
			return nil
		}
	}
}
