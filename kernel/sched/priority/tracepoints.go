package priority

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"margay/kernel/abi/id"
)

// tracepoints report any thread that leaves a CPU or is woken. Their filters suppress irrelevant
// context switches. A wake-up is reported on the waker's CPU after the other CPU has been signalled
// to switch, which hardly delays the waking thread. A wake-up on an idle CPU is not reported. No
// other task waits for such a CPU; see core.settle.
type tracepoints struct{ switched, woken tracepoint }

// tracepoint is one of them.
type tracepoint struct {
	id     uint64
	fields [fieldCount]int // where its record has what it is asked for; 0: nowhere
}

// What a tracepoint is asked for, of the thread that leaves a CPU or is woken up, and of the one
// that gets the CPU. Numbers are those by which Linux itself counts threads.
const (
	numberField = iota
	nextField
	priorityField
	fieldCount
)

// maxOffset is how far in a record a field can be that is looked at.
const maxOffset = 64

// The priorities of tasks' threads as tracepoints have them, from 99 down.
const lowest, highest = 99 - int(ready), 99 - int(waking)

// findTracepoints finds them.
func findTracepoints() (*tracepoints, error) {
	root, err := tracing()
	if err != nil {
		return nil, fmt.Errorf("tracepoints: %w", err)
	}
	defer root.Close()
	var p tracepoints
	if p.switched, err = findTracepoint(root.FS(), "sched_switch", "prev_pid", "next_pid", "next_prio"); err != nil {
		return nil, err
	}
	if p.woken, err = findTracepoint(root.FS(), "sched_wakeup", "pid"); err != nil {
		return nil, err
	}
	return &p, nil
}

// ask opens the tracepoints.
func (p *tracepoints) ask(cpu id.CPU) (asked []*os.File, err error) {
	for _, point := range []tracepoint{p.switched, p.woken} {
		f, err := askPoint(point, cpu)
		if err != nil {
			return nil, errors.Join(err, closeAll(asked))
		}
		asked = append(asked, f)
	}
	return asked, nil
}

func closeAll(files []*os.File) error {
	var errs []error
	for _, f := range files {
		errs = append(errs, f.Close())
	}
	return errors.Join(errs...)
}

// tracing is the root of tracefs, which is not mounted anywhere for this.
func tracing() (*os.Root, error) {
	const mounted = "/sys/kernel/tracing"
	if _, err := os.Stat(mounted + "/events"); err == nil {
		return os.OpenRoot(mounted)
	}
	context, err := unix.Fsopen("tracefs", unix.FSOPEN_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("open tracefs: %w", err)
	}
	defer unix.Close(context)
	if err := unix.FsconfigCreate(context); err != nil {
		return nil, fmt.Errorf("make tracefs: %w", err)
	}
	mount, err := unix.Fsmount(context, unix.FSMOUNT_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("mount tracefs: %w", err)
	}
	defer unix.Close(mount)
	return os.OpenRoot(fmt.Sprintf("/proc/self/fd/%d", mount))
}

// findTracepoint reads what tracefs says of a tracepoint and of these fields of its record.
func findTracepoint(root fs.FS, name string, fields ...string) (p tracepoint, err error) {
	dir := "events/sched/" + name
	id, err := fs.ReadFile(root, dir+"/id")
	if err != nil {
		return p, fmt.Errorf("tracepoint %s: %w", name, err)
	}
	if p.id, err = strconv.ParseUint(strings.TrimSpace(string(id)), 10, 64); err != nil {
		return p, fmt.Errorf("tracepoint %s: %w", name, err)
	}
	format, err := fs.ReadFile(root, dir+"/format")
	if err != nil {
		return p, fmt.Errorf("tracepoint %s: %w", name, err)
	}
	for i, field := range fields {
		var ok bool
		if p.fields[i], ok = offsetOf(field, string(format)); !ok {
			err = fmt.Errorf("tracepoint %s: it has no %s", name, field)
		} else if p.fields[i] > maxOffset {
			err = fmt.Errorf("tracepoint %s: %s is at %d", name, field, p.fields[i])
		}
		if err != nil {
			return p, err
		}
	}
	return p, nil
}

// offsetOf returns the offset of a field of type int or pid_t in a record, by the format that
// tracefs has of it:
//
//	field:pid_t pid;	offset:24;	size:4;	signed:1;
func offsetOf(field, format string) (offset int, ok bool) {
	for line := range strings.Lines(format) {
		words := strings.Fields(line)
		if len(words) < 4 || words[0] != "field:pid_t" && words[0] != "field:int" || words[1] != field+";" || words[3] != "size:4;" {
			continue
		}
		number, _ := strings.CutPrefix(strings.TrimSuffix(words[2], ";"), "offset:")
		n, err := strconv.ParseUint(number, 10, 31)
		return int(n), err == nil
	}
	return 0, false
}

// listen opens the rings for threads that begin to wait on a CPU, and for threads that are woken
// there from any CPU. Unless the CPU has only tasks, they include only threads with tasks'
// priorities.
func (p *tracepoints) listen(cpu id.CPU, apart bool) (rings []*ring, err error) {
	defer func() {
		if err != nil {
			closeRings(rings)
			rings = nil
		}
	}()
	wakers, err := online()
	if err != nil {
		return nil, err
	}
	// Of a thread that was preempted, prev_state is none of the lower bits.
	waiting, waking := "prev_state & 0xff", fmt.Sprintf("target_cpu == %d", cpu)
	if !apart {
		waiting += fmt.Sprintf(" && prev_prio >= %d && prev_prio <= %d", highest, lowest)
		waking += fmt.Sprintf(" && prio >= %d && prio <= %d", highest, lowest)
	}
	own, err := ownWakings()
	if err != nil {
		return nil, err
	}
	r, err := openPoint(p.switched, waits, cpu, waiting)
	if err != nil {
		return nil, err
	}
	rings = append(rings, r)
	for _, waker := range wakers {
		r, err := openPoint(p.woken, woken, waker, fmt.Sprintf("%s && !(%s)", waking, own))
		if err != nil {
			return rings, err
		}
		rings = append(rings, r)
		if err := r.quietly(p.woken, fmt.Sprintf("%s && %s", waking, own)); err != nil {
			return rings, err
		}
	}
	return rings, nil
}

// ownWakings is a filter for wake-ups by this process, not by an interrupt while it had the CPU. To
// wake the reader of a record, Linux interrupts the waker's CPU before the other CPU gets the woken
// thread, a delay of several microseconds on virtual processors. The process knows of its own
// wake-ups without records.
func ownWakings() (string, error) {
	name, err := os.ReadFile("/proc/self/comm")
	if err != nil {
		return "", err
	}
	const interrupt = 0x08 | 0x10 // TRACE_FLAG_HARDIRQ and TRACE_FLAG_SOFTIRQ
	return fmt.Sprintf("COMM == %q && !(common_flags & %d)", strings.TrimSpace(string(name)), interrupt), nil
}

// online are the CPUs that Linux has.
func online() (cpus []id.CPU, err error) {
	stat, err := os.ReadFile("/proc/stat")
	if err != nil {
		return nil, err
	}
	for line := range strings.Lines(string(stat)) {
		word, _, _ := strings.Cut(line, " ")
		number, ok := strings.CutPrefix(word, "cpu")
		if !ok || number == "" { // the sum of all CPUs is called cpu
			continue
		}
		cpu, err := strconv.Atoi(number)
		if err != nil {
			return nil, err
		}
		cpus = append(cpus, id.CPU(cpu))
	}
	return cpus, nil
}

func closeRings(rings []*ring) {
	for _, r := range rings {
		r.close()
	}
}
