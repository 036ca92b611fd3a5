package linux

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"golang.org/x/sys/unix"

	"margay/nimble/engine"
	"margay/nimble/isa"
	"margay/nimble/state"
	"margay/nimble/verify"
)

// code is a program in the kernel.
type code struct {
	context verify.Context
	program *ebpf.Program
	twins   []*twin // control, context and one for each map
	maps    []*state.Map
	depth   int // functions that may be active at once
	size    int // bytes of machine code

	running sync.Mutex // held during a run; guards the twins and control
	control [controlSize]byte
}

// load loads a program and its maps into the kernel.
func load(p *verify.Program, maps []*state.Map) (*code, error) {
	all, err := uses(p, maps)
	if err != nil {
		return nil, err
	}
	c := &code{context: p.Context(), maps: maps}
	if err := c.makeTwins(all); err != nil {
		return nil, errors.Join(err, c.Close())
	}
	if err := c.loadProgram(translate(p)); err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return c, nil
}

// makeTwins makes the maps in the kernel.
func (c *code) makeTwins(all []use) error {
	if err := c.makeOwn(); err != nil {
		return err
	}
	for n, m := range c.maps {
		t, err := newMapTwin(m.Spec(), all[n])
		if err != nil {
			return err
		}
		c.twins = append(c.twins, t)
	}
	return nil
}

// makeOwn makes control and context. A program without a context has the context
// map too, so that the indices of maps do not depend on it.
func (c *code) makeOwn() error {
	if c.context.Size > math.MaxUint32 {
		return fmt.Errorf("a context of %d bytes", c.context.Size)
	}
	for _, spec := range []twinSpec{
		{"control", controlSize, 1, true},
		{"context", max(uint32(c.context.Size), 1), 1, c.context.Writable},
	} {
		t, err := newTwin(spec)
		if err != nil {
			return err
		}
		c.twins = append(c.twins, t)
	}
	return nil
}

// newMapTwin makes the twin of a map for its use by a program. A map used only by
// its address becomes one element.
func newMapTwin(spec state.Spec, u use) (*twin, error) {
	if u.direct && !u.handle && spec.Length() > math.MaxUint32 {
		return nil, fmt.Errorf("map %q: %d bytes in one piece", spec.Name, spec.Length())
	}
	return newTwin(mapTwin(spec, u))
}

// mapTwin describes the twin of a map.
func mapTwin(spec state.Spec, u use) twinSpec {
	t := twinSpec{spec.Name, spec.ValueSize, spec.Entries, !spec.ReadOnly}
	if u.direct && !u.handle {
		t.size, t.entries = uint32(spec.Length()), 1
	}
	return t
}

// license is the license of loaded programs. None of their services requires the
// GPL.
const license = "BSD"

// loadProgram passes the program to the kernel's verifier. The error has the
// verifier's reason.
func (c *code) loadProgram(t *translator) error {
	p := t.program
	code, err := t.instructions(c.twins)
	if err != nil {
		return err
	}
	spec := &ebpf.ProgramSpec{Name: "margay", Type: ebpf.SocketFilter, License: license, Instructions: code}
	// At this level the log has the reasons without the verifier's steps, up to a million lines.
	options := ebpf.ProgramOptions{LogLevel: ebpf.LogLevelStats}
	if err := pace.Wait(context.Background()); err != nil {
		return err
	}
	load := func() (err error) {
		c.program, err = ebpf.NewProgramWithOptions(spec, options)
		return err
	}
	if p.Trusted() {
		err = load()
	} else {
		err = WithoutLeaks(load)
	}
	if err != nil {
		return t.reason(err)
	}
	c.depth = callDepth(p)
	info, err := c.program.Info()
	if err != nil {
		return fmt.Errorf("ask about the program: %w", err)
	}
	if size, err := info.JitedSize(); err == nil {
		c.size = int(size)
	}
	return nil
}

// instructions returns the code with the descriptors of its maps, for cilium/ebpf.
func (t *translator) instructions(maps []*twin) (asm.Instructions, error) {
	for at := range t.code {
		switch i := &t.code[at]; i.Op() {
		case isa.LdMapFD, isa.LdValueFD:
			i.Imm = int32(maps[i.Imm].FD())
		}
	}
	return asm.AppendInstructions(nil, bytes.NewReader(isa.Encode(t.code)), binary.LittleEndian, "linux")
}

// reason returns the error for a program that the kernel did not load.
func (t *translator) reason(err error) error {
	if errors.Is(err, unix.EFAULT) { // cilium/ebpf keeps no log of it
		return fmt.Errorf("the kernel refuses it: too many branches are open at the same time (%w)", unix.EFAULT)
	}
	refused, ok := errors.AsType[*ebpf.VerifierError](err)
	if !ok {
		return fmt.Errorf("the kernel does not load it: %w", err)
	}
	var why []string
	for _, line := range refused.Log {
		if line = strings.TrimSpace(line); line != "" && !about(line) && len(why) < 2 {
			why = append(why, t.inProgram(line))
		}
	}
	if len(why) == 0 {
		return fmt.Errorf("the kernel refuses it: %w", refused.Cause)
	}
	return fmt.Errorf("the kernel refuses it: %s (%w)", strings.Join(why, ", "), refused.Cause)
}

// Refusal returns the error for a program with parts (Part) that Linux did not load. It shortens
// the log of the verifier to its last three lines, which have the reason.
func Refusal(err error) error {
	refused, ok := errors.AsType[*ebpf.VerifierError](err)
	if !ok {
		return err
	}
	lines := slices.DeleteFunc(slices.Clone(refused.Log), func(l string) bool {
		return strings.TrimSpace(l) == "" || about(strings.TrimSpace(l))
	})
	return fmt.Errorf("%s (%w)", strings.Join(lines[max(0, len(lines)-3):], "; "), refused.Cause)
}

// about reports whether a line of the log is a statistic of the verifier.
func about(line string) bool {
	for _, begin := range []string{"processed ", "verification time ", "stack depth ", "subprog ", "cur state", "old state"} {
		if strings.HasPrefix(line, begin) {
			return true
		}
	}
	return false
}

// inProgram replaces the index of an instruction in the translation by its slot
// in the program, or by "added insn".
func (t *translator) inProgram(line string) string {
	var text strings.Builder
	for {
		before, after, found := strings.Cut(line, "insn ")
		text.WriteString(before)
		if !found {
			return text.String()
		}
		line = strings.TrimLeft(after, "0123456789")
		number := after[:len(after)-len(line)]
		n, err := strconv.Atoi(number)
		switch slot := slices.Index(t.at, n); {
		case number == "":
			text.WriteString("insn ")
		case err == nil && slot >= 0:
			fmt.Fprintf(&text, "insn=%d", slot)
		default:
			text.WriteString("added insn")
		}
	}
}

// Size implements engine.Sized: the bytes of the kernel's machine code.
func (c *code) Size() int { return c.size }

// Close implements engine.Code.
func (c *code) Close() error {
	var errs []error
	if c.program != nil {
		errs = append(errs, c.program.Close())
	}
	for _, t := range c.twins {
		errs = append(errs, t.Close())
	}
	c.program, c.twins = nil, nil
	return errors.Join(errs...)
}

var _ engine.Sized = (*code)(nil)
