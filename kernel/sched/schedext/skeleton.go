package schedext

import (
	"bytes"
	_ "embed"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/btf"
	"github.com/cilium/ebpf/link"
	"github.com/cilium/ebpf/ringbuf"

	"margay/kernel/abi/id"
	"margay/kernel/sched"
	"margay/nimble/engine/linux"
)

// skeletonObject is the compiled skeleton.c.
//
//go:embed skeleton.o
var skeletonObject []byte

// ops is the type of sched_ext's table of functions.
const ops = "sched_ext_ops"

// firstNamespace is the inode of the machine's first PID namespace (include/linux/proc_ns.h).
const firstNamespace = "pid:[4026531836]"

// available returns an error if a feature is missing.
func available() error {
	if ns, err := os.Readlink("/proc/self/ns/pid"); err != nil || ns != firstNamespace {
		return fmt.Errorf("it is system-wide, and this node shares its Linux with others: it has its own PID namespace (%s)", ns)
	}
	if _, err := os.Stat("/sys/kernel/btf/vmlinux"); err != nil {
		return fmt.Errorf("no BTF of the running Linux (CONFIG_DEBUG_INFO_BTF): %w", err)
	}
	state, err := os.ReadFile("/sys/kernel/sched_ext/state")
	if errors.Is(err, fs.ErrNotExist) {
		return errors.New("this Linux is built without it (CONFIG_SCHED_CLASS_EXT)")
	}
	if err != nil {
		return err
	}
	if s := strings.TrimSpace(string(state)); s != "disabled" {
		return fmt.Errorf("another scheduler is attached: its state is %s", s)
	}
	line, err := os.ReadFile("/proc/cmdline")
	if err != nil {
		return err
	}
	return checkBoot(string(line))
}

// checkBoot refuses a boot line with which sched_ext does not attach.
func checkBoot(line string) error {
	for _, word := range strings.Fields(line) {
		list, ok := strings.CutPrefix(word, "isolcpus=")
		if !ok {
			continue
		}
		flags := strings.Split(list, ",")
		// Without any flag a list of cores means domain.
		named := slices.ContainsFunc(flags, func(f string) bool { return f == "managed_irq" || f == "nohz" })
		if slices.Contains(flags, "domain") || !named {
			return fmt.Errorf("booted with %s, Linux does not attach it: boot the node with profile sched", word)
		}
	}
	return nil
}

// skeleton is the loaded skeleton.
type skeleton struct {
	cpus       int
	policy     *ebpf.ProgramSpec // each chain is spliced into a copy
	collection *ebpf.Collection
	link       link.Link // nil: not attached
	forks      link.Link // of the program that sees new threads
	reader     *ringbuf.Reader

	allGiven  shared[given]
	allCores  shared[coreState]
	allEnding shared[ending]
}

// maxCPUs is MAX_CPUS of skeleton.c.
const maxCPUs = 512

// load loads the skeleton into Linux, which will eject it if a thread waits longer than watchdog.
func load() (*skeleton, error) {
	spec, err := readSpec()
	if err != nil {
		return nil, err
	}
	s := &skeleton{policy: spec.Programs["policy"].Copy()}
	if s.cpus, err = ebpf.PossibleCPU(); err != nil {
		return nil, err
	}
	if s.cpus > maxCPUs {
		return nil, fmt.Errorf("at most %d cores, not %d", maxCPUs, s.cpus)
	}
	for _, name := range []string{"given", "cores", "contexts", "policies"} {
		spec.Maps[name].MaxEntries = uint32(s.cpus)
	}
	if err := spec.Variables["cpus"].Set(uint32(s.cpus)); err != nil {
		return nil, fmt.Errorf("variable cpus of the skeleton: %w", err)
	}
	if err := setWatchdog(spec.Maps["margay"], watchdog); err != nil {
		return nil, fmt.Errorf("watchdog of the skeleton: %w", err)
	}
	// The program policy is loaded with each chain.
	delete(spec.Programs, "policy")
	if s.collection, err = enter(spec); err != nil {
		return nil, fmt.Errorf("load the skeleton: this Linux refuses it: %w", linux.Refusal(err))
	}
	if err := s.share(); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	if s.forks, err = link.AttachTracing(link.TracingOptions{Program: s.collection.Programs["forked"]}); err != nil {
		return nil, errors.Join(fmt.Errorf("see new threads: %w", err), s.Close())
	}
	return s, nil
}

// enter loads programs and maps into Linux.
func enter(spec *ebpf.CollectionSpec) (*ebpf.Collection, error) {
	return ebpf.NewCollectionWithOptions(spec, ebpf.CollectionOptions{Cache: types})
}

// setWatchdog sets timeout_ms in sched_ext's table of functions.
func setWatchdog(table *ebpf.MapSpec, d time.Duration) error {
	layout, ok := table.Value.(*btf.Struct)
	if !ok || len(table.Contents) != 1 {
		return errors.New("there is no table of functions")
	}
	value, ok := table.Contents[0].Value.([]byte)
	at := slices.IndexFunc(layout.Members, func(m btf.Member) bool { return m.Name == "timeout_ms" })
	if !ok || at < 0 {
		return errors.New("the table of functions has no timeout_ms")
	}
	value = slices.Clone(value)
	if _, err := binary.Encode(value[layout.Members[at].Offset.Bytes():], binary.NativeEndian, uint32(d.Milliseconds())); err != nil {
		return err
	}
	table.Contents[0].Value = value
	return nil
}

// types caches Linux's BTF, which has megabytes, so that it is not read again for each chain.
var types = btf.NewCache()

// readSpec reads the object.
func readSpec() (*ebpf.CollectionSpec, error) {
	spec, err := ebpf.LoadCollectionSpecFromReader(bytes.NewReader(skeletonObject))
	if err != nil {
		return nil, err
	}
	// No table of functions contains it, but a tail call from dispatch needs the same type.
	spec.Programs["policy"].AttachTo = ops + ":dispatch"
	return spec, nil
}

func (s *skeleton) share() (err error) {
	if s.allGiven, err = share[given](s.collection.Maps["given"]); err != nil {
		return err
	}
	if s.allCores, err = share[coreState](s.collection.Maps["cores"]); err != nil {
		return err
	}
	if s.allEnding, err = share[ending](s.collection.Maps["endings"]); err != nil {
		return err
	}
	s.reader, err = ringbuf.NewReader(s.collection.Maps["events"])
	for i := range s.allGiven.all {
		s.allGiven.all[i].Order, s.allGiven.all[i].StarvationLimit = ^uint64(0), uint64(sched.StarvationLimit)
	}
	return err
}

func (s *skeleton) given(cpu id.CPU) *given    { return &s.allGiven.all[cpu] }
func (s *skeleton) core(cpu id.CPU) *coreState { return &s.allCores.all[cpu] }

// attach puts the skeleton in force. It resets the state of cores and keeps the state of tasks.
func (s *skeleton) attach() (err error) {
	for i := range s.allCores.all {
		c := &s.allCores.all[i]
		c.Current, c.Runner, c.Decider = none, none, nobody
		c.Ready, c.Woken, c.Blocked, c.Until, c.Alone, c.Guest, c.Again, c.Told = 0, 0, 0, 0, 0, 0, 0, 0
	}
	s.allEnding.all[0] = ending{}
	if s.link, err = link.AttachStructOps(link.StructOpsOptions{Map: s.collection.Maps["margay"]}); err != nil {
		s.link = nil
		return fmt.Errorf("attach: %w", err)
	}
	return nil
}

// detach detaches the skeleton. Threads then run on Linux's default scheduler.
func (s *skeleton) detach() error {
	if s.link == nil {
		return nil
	}
	err := s.link.Close()
	s.link = nil
	return err
}

// setPolicy puts a program into a core's slot, or empties the slot.
func (s *skeleton) setPolicy(cpu id.CPU, p *ebpf.Program) error {
	slots := s.collection.Maps["policies"]
	if p != nil {
		return slots.Put(uint32(cpu), p)
	}
	if err := slots.Delete(uint32(cpu)); !errors.Is(err, ebpf.ErrKeyNotExist) {
		return err
	}
	return nil
}

// kick makes a core decide again.
func (s *skeleton) kick(cpu id.CPU) error {
	if s.link == nil {
		return nil
	}
	_, err := s.collection.Programs["kick"].Run(&ebpf.RunOptions{Context: uint32(cpu)})
	return err
}

// wake ends the reading of events.
func (s *skeleton) wake() { _ = s.reader.Close() }

// Close detaches the skeleton, and closes its programs and maps.
func (s *skeleton) Close() error {
	errs := []error{s.detach(), s.allGiven.Close(), s.allCores.Close(), s.allEnding.Close()}
	if s.reader != nil {
		errs = append(errs, s.reader.Close())
	}
	if s.forks != nil {
		errs = append(errs, s.forks.Close())
	}
	s.collection.Close()
	return errors.Join(errs...)
}
