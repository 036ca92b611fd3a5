// Package service is what an extension may call: typed functions of the kernel.
//
// A Service declares its arguments, and every argument is checked before its
// function runs: a handle is one of the extension's own maps, a pointer with
// its length lies in memory that the extension itself may read or write. The
// function gets the checked memory as slices, so it never sees an address that
// it would have to trust. This holds for trusted extensions too; trust decides
// only which services may be called at all.
//
// Services below 4096 mean what the Linux helper of that number means (Linux
// returns a subset of them). Margay's own have names, which an object refers to
// by an extern symbol. The kernel composes a Table for each slot.
package service

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
)

// MaxNumber is the largest number a service may have.
const MaxNumber = 4095

// Kind is the type of one argument.
type Kind uint8

// The kinds of argument.
const (
	Scalar   Kind = iota // any value
	Handle               // one of the extension's maps
	Key                  // pointer to a key of the map in the Handle before it
	Value                // pointer to a value of the map in the Handle before it
	Readable             // pointer to memory to be read; the next argument is its Length
	Writable             // pointer to memory to be read or written; the next argument is its Length
	Length               // bytes that the pointer before it points to, 0 allowed
)

// String returns the kind's name.
func (k Kind) String() string {
	if k > Length {
		return fmt.Sprintf("kind %d", uint8(k))
	}
	return [...]string{"scalar", "handle", "key", "value", "readable", "writable", "length"}[k]
}

// Service is one function that extensions may call.
type Service struct {
	Number  int32  // 1 to MaxNumber; 0: it has a name only
	Name    string // for extern symbols and messages
	Args    []Kind // at most 5
	Trusted bool   // only trusted extensions may call it
	Element bool   // its result is the address of an element of the map in its first Handle, or 0

	// Func does the work. Its result is the extension's r0; an error stops the
	// extension with a fault. It runs on the extension's time: it must not
	// block, and must not run, close or ask for the map of the extension that
	// called it. Of the extension's memory it writes only what Writable
	// arguments point to, and maps: the verifier relies on that and on Element.
	Func func(*Call) (uint64, error)

	run func(*Call) (uint64, error) // Func, or checked where there is something to check
}

// String returns the service's name, or number.
func (s *Service) String() string {
	if s.Name != "" {
		return s.Name
	}
	return strconv.Itoa(int(s.Number))
}

// validate returns an error if the declaration is invalid.
func (s *Service) validate() error {
	if s.Number < 0 || s.Number > MaxNumber || s.Number == 0 && s.Name == "" || s.Func == nil || len(s.Args) > 5 {
		return fmt.Errorf("service %q: number %d, %d arguments", s.Name, s.Number, len(s.Args))
	}
	handle := false
	for i, kind := range s.Args {
		pointer := i > 0 && (s.Args[i-1] == Readable || s.Args[i-1] == Writable)
		switch {
		case kind > Length:
			return fmt.Errorf("service %v: argument %d has unknown %v", s, i+1, kind)
		case pointer != (kind == Length):
			return fmt.Errorf("service %v: argument %d: a length follows a pointer and nothing else", s, i+1)
		case (kind == Key || kind == Value) && !handle:
			return fmt.Errorf("service %v: argument %d has no handle before it", s, i+1)
		}
		handle = handle || kind == Handle
	}
	if s.Element && !handle {
		return fmt.Errorf("service %v: its result is an element, and it has no handle", s)
	}
	if n := len(s.Args); n > 0 && (s.Args[n-1] == Readable || s.Args[n-1] == Writable) {
		return fmt.Errorf("service %v: argument %d has no length", s, n)
	}
	return nil
}

// Table is a set of services. It does not change, so it is safe for concurrent
// use. A nil Table is empty.
type Table struct {
	numbers map[int32]*Service
	names   map[string]*Service
}

// NewTable makes a table of valid services with distinct numbers and names.
func NewTable(services ...Service) (*Table, error) {
	t := &Table{make(map[int32]*Service), make(map[string]*Service)}
	for _, s := range services {
		if err := s.validate(); err != nil {
			return nil, err
		}
		if t.numbers[s.Number] != nil || t.names[s.Name] != nil {
			return nil, fmt.Errorf("service %v (%d) is declared twice", &s, s.Number)
		}
		s.run = s.Func
		if slices.ContainsFunc(s.Args, func(kind Kind) bool { return kind != Scalar }) {
			s.run = s.checked
		}
		if s.Number != 0 {
			t.numbers[s.Number] = &s
		}
		if s.Name != "" {
			t.names[s.Name] = &s
		}
	}
	return t, nil
}

// Number returns the service of a number, nil if there is none.
func (t *Table) Number(n int32) *Service {
	if t == nil {
		return nil
	}
	return t.numbers[n]
}

// All says which services there are, by number and name.
func (t *Table) All() string {
	if t == nil || len(t.numbers)+len(t.names) == 0 {
		return "there are none"
	}
	var list []string
	for _, n := range slices.Sorted(maps.Keys(t.numbers)) {
		list = append(list, strings.TrimSpace(fmt.Sprintf("%d %s", n, t.numbers[n].Name)))
	}
	for _, name := range slices.Sorted(maps.Keys(t.names)) {
		if t.names[name].Number == 0 {
			list = append(list, name)
		}
	}
	return "there are " + strings.Join(list, ", ")
}

// Name returns the service of a name, nil if there is none.
func (t *Table) Name(name string) *Service {
	if t == nil {
		return nil
	}
	return t.names[name]
}
