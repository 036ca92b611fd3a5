package initramfs

import (
	"fmt"
	"slices"
	"strings"

	"margay/initramfs/guestkernel"
	"margay/kernel/abi/node"
)

// Profile selects how a node keeps its application cores free of other work.
type Profile int

const (
	// Isolated excludes the application cores from the kernel's load balancing: the least noise.
	Isolated Profile = iota
	// Ticking does, too, but leaves them the tick of Linux's timer, because without it the system
	// core ticks even while the whole node is idle. An emulator pays for each tick.
	Ticking
	// Sched includes them, because sched_ext does not attach otherwise.
	Sched
)

var profileNames = []string{Isolated: node.Isolated, Ticking: node.Ticking, Sched: node.Sched}

// ParseProfile returns the profile of that name.
func ParseProfile(name string) (Profile, error) {
	i := slices.Index(profileNames, name)
	if i < 0 {
		return 0, fmt.Errorf("boot profile %q: there are %s", name, strings.Join(profileNames, ", "))
	}
	return Profile(i), nil
}

func (p Profile) String() string {
	if p < 0 || int(p) >= len(profileNames) {
		return fmt.Sprintf("profile %d", int(p))
	}
	return profileNames[p]
}

// MarshalText returns the name.
func (p Profile) MarshalText() ([]byte, error) { return []byte(p.String()), nil }

// UnmarshalText reads a name.
func (p *Profile) UnmarshalText(text []byte) (err error) {
	*p, err = ParseProfile(string(text))
	return err
}

// parameter is a kernel parameter that keeps the application cores, CORES, quiet.
type parameter struct {
	text    string
	feature string    // of guestkernel.Features, without which it is left out
	only    []Profile // nil: all
}

var quiet = []parameter{
	{"isolcpus=managed_irq,domain,CORES", "cpu_isolation", []Profile{Isolated, Ticking}},
	{"isolcpus=managed_irq,CORES", "cpu_isolation", []Profile{Sched}},
	{"nohz_full=CORES", "nohz_full", []Profile{Isolated, Sched}},
	{"rcu_nocbs=CORES", "rcu_nocb", []Profile{Isolated, Sched}},
	{"irqaffinity=0", "", nil},
	{"nowatchdog", "", nil},
	{"nosoftlockup", "", nil},
	{"skew_tick=1", "", nil},
	{"tsc=nowatchdog", "", nil},       // the clock's watchdog asks one core after the other for its time, on x86
	{"damon_stat.enabled=0", "", nil}, // unused statistics of memory, by a thread that samples all the time
	{"psi=0", "", nil},                // unused statistics of waiting, updated at each context switch
}

// maxCmdline is the number of bytes that Linux accepts on its command line (COMMAND_LINE_SIZE of
// x86, without the NUL).
const maxCmdline = 2047

// AllCores stands for all cores of a machine, however many it has.
const AllCores = 1 << 20

// Cmdline returns the kernel command line of a node with the given number of cores, with core 0 as
// the system core. A panic ends the node, and only errors reach the console. Parameters of features
// in k.Lacks are omitted. Extra parameters come last, so that they take precedence.
func Cmdline(k guestkernel.Kernel, p Profile, cores int, extra ...string) (string, error) {
	if cores < 1 {
		return "", fmt.Errorf("kernel command line: %d cores", cores)
	}
	if p < 0 || int(p) >= len(profileNames) {
		return "", fmt.Errorf("kernel command line: unknown %v", p)
	}
	arch, err := guestkernel.ArchNamed(k.Arch)
	if err != nil {
		return "", fmt.Errorf("kernel command line: %w", err)
	}
	words := []string{"console=" + arch.Console, "panic=-1", "loglevel=4"}
	if cores > 1 {
		words = append(words, quietWords(k, p, cores)...)
	}
	line := strings.Join(append(words, extra...), " ")
	if strings.ContainsAny(line, "\n\x00") {
		return "", fmt.Errorf("kernel command line: line break or NUL in %q", line)
	}
	if len(line) > maxCmdline {
		return "", fmt.Errorf("kernel command line: %d bytes, the kernel accepts %d", len(line), maxCmdline)
	}
	return line, nil
}

func quietWords(k guestkernel.Kernel, p Profile, cores int) []string {
	list := "1"
	switch {
	case cores == AllCores:
		list = "1-N" // Linux 5.12 and later know N as the last one
	case cores > 2:
		list = fmt.Sprintf("1-%d", cores-1)
	}
	var words []string
	for _, q := range quiet {
		if (q.feature == "" || !slices.Contains(k.Lacks, q.feature)) && (q.only == nil || slices.Contains(q.only, p)) {
			words = append(words, strings.ReplaceAll(q.text, "CORES", list))
		}
	}
	return words
}
