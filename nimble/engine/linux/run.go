package linux

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/cilium/ebpf"

	"margay/nimble/engine"
)

// Repeater is Code that can run many times with one system call, for measuring.
type Repeater interface {
	// Repeat runs it n times as Run does, and returns the last r0. An error is a
	// *engine.Fault. Context and maps are copied once.
	Repeat(m *engine.Machine, n int) (r0 uint64, err error)
}

// packet is the smallest packet that Linux accepts for a test run. Programs do
// not see it.
var packet = make([]byte, 14)

// Run implements engine.Code.
func (c *code) Run(m *engine.Machine) (uint64, error) { return c.Repeat(m, 1) }

// Repeat implements Repeater.
func (c *code) Repeat(m *engine.Machine, n int) (r0 uint64, err error) {
	c.running.Lock()
	defer c.running.Unlock()
	if err := c.begin(m); err != nil {
		return 0, m.Fault(engine.Kernel, 0, 0, err)
	}
	if _, err := c.program.Run(&ebpf.RunOptions{Data: packet, Repeat: uint32(n)}); err != nil {
		return 0, m.Fault(engine.Kernel, 0, 0, err)
	}
	if err := c.end(m); err != nil {
		return 0, m.Fault(engine.Kernel, 0, 0, err)
	}
	return binary.LittleEndian.Uint64(c.control[controlR0:]), nil
}

// begin copies arguments, context and maps into the kernel.
func (c *code) begin(m *engine.Machine) error {
	if err := c.check(m); err != nil {
		return err
	}
	for n, v := range m.Args {
		binary.LittleEndian.PutUint64(c.control[controlArgs+8*n:], v)
	}
	errs := []error{c.twins[controlMap].in(c.control[:])}
	if c.context.Size > 0 {
		errs = append(errs, c.twins[contextMap].in(view(m.Context())[:c.context.Size]))
	}
	for n, each := range c.maps {
		errs = append(errs, c.twins[firstMap+n].in(view(each.Region())))
	}
	return errors.Join(errs...)
}

// check compares the machine with the program's call depth and verify.Context.
func (c *code) check(m *engine.Machine) error {
	promise := c.context
	switch {
	case c.depth > len(m.Frames)+1:
		return fmt.Errorf("it may have %d functions active at once, and only %d are allowed", c.depth, len(m.Frames)+1)
	case promise.Size == 0:
		return nil
	}
	switch has := m.Context(); {
	case has.Length < promise.Size || promise.Readable && !has.Readable || promise.Writable && !has.Writable:
		return fmt.Errorf("the context is not the one of %d bytes that was promised", promise.Size)
	case m.Args[0] != has.Base:
		return errors.New("r1 is not the address of the context")
	}
	return nil
}

// end copies r0, context and maps back.
func (c *code) end(m *engine.Machine) error {
	errs := []error{c.twins[controlMap].out(c.control[:])}
	if c.context.Writable {
		errs = append(errs, c.twins[contextMap].out(view(m.Context())[:c.context.Size]))
	}
	for n, each := range c.maps {
		errs = append(errs, c.twins[firstMap+n].out(view(each.Region())))
	}
	return errors.Join(errs...)
}
