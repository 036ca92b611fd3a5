package service

import (
	"fmt"

	"margay/nimble/state"
)

// handleBase is the handle of map 0. Handles are addresses that no process can
// have, so using one as a pointer is always a fault.
const handleBase = 0xfffe_0001_0000_0000

// MapHandle returns the value that stands for map number index of an extension
// in its registers (RFC 9669, section 5.4: map_by_idx).
func MapHandle(index int) uint64 { return handleBase + uint64(index) }

// codeBase is the address of instruction 0, out of reach like a handle.
const codeBase = 0xfffe_0002_0000_0000

// CodeAddress returns the value that stands for the address of an instruction
// in registers (RFC 9669, section 5.4: code_addr).
func CodeAddress(slot int) uint64 { return codeBase + uint64(slot) }

// Space is the memory that the calling extension may touch at this moment.
type Space interface {
	// View returns the length bytes at addr, length > 0, if all of them may be
	// read, and written too if write is set.
	View(addr, length uint64, write bool) ([]byte, bool)
}

// Budget is the fuel of the run that called.
type Budget interface {
	// Left returns how many instructions the run may still execute.
	Left() uint64

	// Take takes some of them, at most as many as are left.
	Take(instructions uint64)
}

// Call is one call of a service: what the engine knows of the caller, and the
// arguments. It is valid until the service's function returns.
type Call struct {
	Args    [5]uint64    // r1 to r5, and they again after the call: not to be changed
	Core    int          // the core that the event belongs to
	Data    any          // what the kernel gave to this run, see nimble.Event
	Depth   int          // how many extensions wait for this one, see nimble.Extension.Invoke
	Trusted bool         // the extension is
	Maps    []*state.Map // the extension's maps by handle
	Space   Space
	Budget  Budget
	Print   func(line string) // takes what the extension prints; may be nil

	maps  [5]*state.Map
	bytes [5][]byte
}

// Map returns the map in argument n, counted from 0, a Handle.
func (c *Call) Map(n int) *state.Map { return c.maps[n] }

// Bytes returns the memory that argument n, counted from 0, points to: a
// Readable, Writable, Key or Value. An application that shares the memory may
// change it at any time, so a value that matters is read once.
func (c *Call) Bytes(n int) []byte { return c.bytes[n] }

// ArgumentError says which argument of a call was refused.
type ArgumentError struct {
	Service  string
	Argument int // counted from 1
	Value    uint64
	Reason   string
}

// Error names service, argument and value.
func (e *ArgumentError) Error() string {
	return fmt.Sprintf("%s: argument %d (%#x): %s", e.Service, e.Argument, e.Value, e.Reason)
}

// Call checks the arguments in c and runs the service, one of a Table. A refused argument is an
// *ArgumentError, and the service has not run.
func (s *Service) Call(c *Call) (uint64, error) { return s.run(c) }

// checked is Call of a service with an argument that is more than a scalar.
func (s *Service) checked(c *Call) (uint64, error) {
	if err := s.check(c); err != nil {
		return 0, err
	}
	return s.Func(c)
}

// check resolves every argument that is more than a scalar.
func (s *Service) check(c *Call) error {
	var m *state.Map
	for i, kind := range s.Args {
		length, write := uint64(0), false
		switch kind {
		case Scalar, Length:
			continue
		case Handle:
			index := c.Args[i] - handleBase
			if index >= uint64(len(c.Maps)) {
				return s.refuse(c, i, "not a map of this extension")
			}
			m = c.Maps[index]
			c.maps[i] = m
			continue
		case Key:
			length = state.KeySize
		case Value:
			length = uint64(m.Spec().ValueSize)
		case Readable:
			length = c.Args[i+1]
		case Writable:
			length, write = c.Args[i+1], true
		}
		c.bytes[i] = nil
		if length == 0 {
			continue
		}
		b, ok := c.Space.View(c.Args[i], length, write)
		if !ok {
			return s.refuse(c, i, fmt.Sprintf("no such %d bytes", length))
		}
		c.bytes[i] = b
	}
	return nil
}

func (s *Service) refuse(c *Call, i int, reason string) error {
	return &ArgumentError{Service: s.String(), Argument: i + 1, Value: c.Args[i], Reason: reason}
}
