package hardware

import (
	"errors"
	"fmt"
	"os"
	"reflect"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"margay/kernel/abi/id"
)

func TestParseList(t *testing.T) {
	for text, want := range map[string][]id.CPU{"": nil, "0": {0}, "0-3": {0, 1, 2, 3}, "8,0-1": {0, 1, 8}, "1,1": {1}} {
		got, err := ParseList(text)
		if err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%q: %v, %v", text, got, err)
		}
	}
	for _, text := range []string{"a", "3-1", "0-99999999", "1,", "-1"} {
		if got, err := ParseList(text); err == nil {
			t.Errorf("%q was taken as %v", text, got)
		}
	}
}

func TestSlotsAreDealtOut(t *testing.T) {
	cores := Slots([]id.CPU{4, 7}, 3, 1)
	for i, c := range cores {
		if int(c.ID) != i || !c.Shared {
			t.Errorf("core %d is %+v", i, c)
		}
	}
	if len(cores) != 4 {
		t.Errorf("%d cores", len(cores))
	}
}

const before = `           CPU0       CPU1
  0:         34          0   IO-APIC   2-edge      timer
LOC:       1000        200   Local timer interrupts
ERR:          0
`

const after = `           CPU0       CPU1
  0:         34          0   IO-APIC   2-edge      timer
 24:          5          1   PCI-MSI 49152-edge      virtio0
 25:          0          1   PCI-MSI 49153-edge      virtio1
LOC:       1500        203   Local timer interrupts
RES:          0          1   Rescheduling interrupts
ERR:          7
`

func TestInterruptsSince(t *testing.T) {
	a, err := parseInterrupts(strings.NewReader(before))
	if err != nil {
		t.Fatal(err)
	}
	b, err := parseInterrupts(strings.NewReader(after))
	if err != nil {
		t.Fatal(err)
	}
	for range 20 { // the rows are in a map
		sum, rows := b.Since(a, 1)
		var causes []string
		for _, row := range rows {
			causes = append(causes, fmt.Sprintf("%s %d", strings.Fields(row.Name)[0], row.Count))
		}
		if got := strings.Join(causes, ", "); sum != 6 || got != "LOC 3, 24 1, 25 1, RES 1" {
			t.Fatalf("CPU 1 was struck %d times by %s", sum, got)
		}
	}
	if sum, _ := a.Since(a, 0); sum != 0 {
		t.Errorf("no time passed and CPU 0 was struck %d times", sum)
	}
	if sum, rows := b.Since(a, 9); sum != 0 || rows != nil {
		t.Errorf("a CPU that is not there was struck")
	}
}

func TestParseMeminfo(t *testing.T) {
	if n, err := parseMeminfo([]byte("MemTotal: 100 kB\nMemAvailable:    42 kB\nMemFree: 1 kB\n")); n != 42<<10 || err != nil {
		t.Errorf("%d bytes, %v", n, err)
	}
	for _, text := range []string{"", "MemTotal: 100 kB\n", "MemAvailable: many kB\n", "MemAvailable: -1 kB\n", "MemAvailable: 9223372036854775807 kB\n", "MemAvailable:\n", "MemAvailable: 42"} {
		if n, err := parseMeminfo([]byte(text)); err == nil {
			t.Errorf("%q was taken as %d bytes", text, n)
		}
	}
}

// No CPU has two cores of hosted nodes while there are enough.
func TestSlotsKeepApart(t *testing.T) {
	allowed := []id.CPU{2, 3, 5, 7, 8, 9, 11, 12}
	for n := 1; n < len(allowed); n++ {
		used := make(map[id.CPU]bool)
		for node := range id.Node(len(allowed) / (n + 1)) {
			for _, c := range Slots(allowed, n, node) {
				if used[c.CPU] || c.CPU != Slot(allowed, n, node, c.ID) {
					t.Errorf("%d cores: core %d of node %d is on CPU %d, which is used", n, c.ID, node, c.CPU)
				}
				used[c.CPU] = true
			}
		}
	}
}

// Every core that a job takes on each node is on another CPU, until the nodes have gone round.
func TestSlotsGoRound(t *testing.T) {
	for cpus := 1; cpus <= 8; cpus++ {
		allowed := make([]id.CPU, cpus)
		for i := range allowed {
			allowed[i] = id.CPU(i)
		}
		for n := 1; n <= 9; n++ {
			for core := range id.Core(n + 1) {
				used := make(map[id.CPU]bool)
				for node := range id.Node(cpus) {
					used[Slot(allowed, n, node, core)] = true
				}
				if len(used) != cpus {
					t.Errorf("%d CPUs, %d cores: core %d of as many nodes is on %d CPUs", cpus, n, core, len(used))
				}
			}
		}
	}
}

// Every thread is pinned, those that are made afterwards too. The CPUs are those that the process
// has anyway, less one for each round.
func TestConfine(t *testing.T) {
	allowed := affinity(t, 0)
	defer Confine(allowed)
	for n := len(allowed); n > 0; n-- {
		if err := Confine(allowed[:n]); err != nil {
			t.Fatal(err)
		}
		started, stop := make(chan struct{}), make(chan struct{})
		for range 4 {
			go func() {
				runtime.LockOSThread() // and never unlock: the thread goes with the goroutine
				started <- struct{}{}
				<-stop
			}()
			<-started
		}
		entries, err := os.ReadDir("/proc/self/task")
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range entries {
			tid, err := strconv.Atoi(e.Name())
			if err != nil {
				t.Fatal(err)
			}
			if got := affinity(t, tid); got != nil && !slices.Equal(got, allowed[:n]) {
				t.Errorf("thread %d may use CPUs %v, not %v", tid, got, allowed[:n])
			}
		}
		close(stop)
	}
	if err := Confine(nil); err == nil {
		t.Error("the process was pinned to no CPU")
	}
}

// affinity returns the CPUs that a thread may use, nil when it is gone.
func affinity(t *testing.T, tid int) (cpus []id.CPU) {
	t.Helper()
	var set unix.CPUSet
	if err := unix.SchedGetaffinity(tid, &set); errors.Is(err, unix.ESRCH) {
		return nil
	} else if err != nil {
		t.Fatal(err)
	}
	for cpu := range 64 * len(set) {
		if set.IsSet(cpu) {
			cpus = append(cpus, id.CPU(cpu))
		}
	}
	return cpus
}

func TestHere(t *testing.T) {
	if free, err := FreeMemory(); err != nil || free <= 0 {
		t.Error(free, err)
	}
	if _, err := ReadInterrupts(); err != nil {
		t.Error(err)
	}
	if cores, err := Own(); err != nil || len(cores) == 0 {
		t.Error(cores, err)
	}
}

func FuzzParseInterrupts(f *testing.F) {
	f.Add(before)
	f.Add(after)
	f.Add("CPU0 CPU0\nx: 1 2\n")
	f.Fuzz(func(t *testing.T, text string) {
		n, err := parseInterrupts(strings.NewReader(text))
		if err != nil {
			return
		}
		for _, cpu := range n.cpus {
			n.Since(n, cpu)
		}
	})
}

func FuzzParseList(f *testing.F) {
	f.Add("0-3,8")
	f.Fuzz(func(t *testing.T, text string) {
		cpus, err := ParseList(text)
		for i, c := range cpus {
			if err == nil && i > 0 && c <= cpus[i-1] {
				t.Fatalf("%q became %v", text, cpus)
			}
		}
	})
}
