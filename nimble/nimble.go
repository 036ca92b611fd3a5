package nimble

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"margay/nimble/engine"
	"margay/nimble/memory"
	"margay/nimble/object"
	"margay/nimble/service"
	"margay/nimble/state"
	"margay/nimble/verify"
)

// Options say how a program is inserted. Only Engine must be set.
type Options struct {
	Engine    engine.Engine
	Services  *service.Table        // nil: none
	Trusted   bool                  // run unchecked, with the services that need trust
	Limits    Limits                // of each run, and of the program
	Context   verify.Context        // what every event's context will be, so that less of it is checked
	Cores     int                   // cores that per-core maps are for; 0: one
	Maps      map[string]MapOptions // by name; every name must be a map of the program
	Variables map[string]any        // initial values of global variables, see object.Spec.SetVariable
	NoProofs  bool                  // check every access at run time, to compare with

	// Print takes the lines that the extension prints, too many left out. It is
	// called in a run, so it must not block. Without it they are thrown away.
	Print func(line string)
}

// MapOptions change one map of the program.
type MapOptions struct {
	Entries uint32         // number of elements; 0: as the program says
	Shared  bool           // in a memfd that an application can map
	Memory  *memory.Memory // memory to use as it is, but for its object.Pointers; it stays the caller's and must outlive the extension
}

// Limits bound an extension. A zero field means the default; a negative MaxTime
// means no limit.
type Limits struct {
	Fuel            uint64        // instructions of a run, DefaultFuel
	MaxTime         time.Duration // of a run, DefaultMaxTime
	CallDepth       int           // active functions, DefaultCallDepth; at most engine.MaxCallDepth
	MaxInstructions int           // slots of the program, object.MaxInstructions
	MaxMemory       uint64        // bytes of all its own maps, DefaultMaxMemory
}

// The defaults of Limits.
const (
	DefaultFuel      = 1_000_000
	DefaultMaxTime   = time.Second
	DefaultCallDepth = 8
	DefaultMaxMemory = 64 << 20
)

// withDefaults replaces zeros by the defaults.
func (l Limits) withDefaults() Limits {
	if l.Fuel == 0 {
		l.Fuel = DefaultFuel
	}
	if l.MaxTime == 0 {
		l.MaxTime = DefaultMaxTime
	}
	if l.CallDepth == 0 {
		l.CallDepth = DefaultCallDepth
	}
	if l.MaxMemory == 0 {
		l.MaxMemory = DefaultMaxMemory
	}
	return l
}

// Insert verifies a program, makes its maps and threads it. The Spec is not
// changed. A refusal by the verifier wraps *verify.Refusal. The Extension must
// be closed.
func Insert(spec *object.Spec, o Options) (*Extension, error) {
	x, err := insert(spec, o)
	if err != nil {
		return nil, fmt.Errorf("insert %q: %w", spec.Name, err)
	}
	return x, nil
}

func insert(spec *object.Spec, o Options) (*Extension, error) {
	if o.Engine == nil {
		return nil, errors.New("no engine chosen")
	}
	if o.Cores == 0 {
		o.Cores = 1
	}
	program, err := verified(spec, o)
	if err != nil {
		return nil, err
	}
	x := &Extension{program: program, limits: o.Limits.withDefaults(), context: o.Context, due: 1}
	if err := x.build(o); err != nil {
		return nil, errors.Join(err, x.release())
	}
	return x, nil
}

// Verify returns the program that Insert would thread, for callers that run it
// elsewhere. Engine need not be set.
func Verify(spec *object.Spec, o Options) (*verify.Program, error) {
	p, err := verified(spec, o)
	if err != nil {
		return nil, fmt.Errorf("verify %q: %w", spec.Name, err)
	}
	return p, nil
}

// verified configures and verifies a copy of a description.
func verified(spec *object.Spec, o Options) (*verify.Program, error) {
	own := *spec
	own.Maps = slices.Clone(spec.Maps) // what options change
	if err := configure(&own, o); err != nil {
		return nil, err
	}
	return verify.Verify(&own, verify.Config{
		Services:        o.Services,
		Trusted:         o.Trusted,
		MaxInstructions: o.Limits.MaxInstructions,
		Context:         o.Context,
		NoProofs:        o.NoProofs,
	})
}

// configure applies the options to the description of the program.
func configure(spec *object.Spec, o Options) error {
	names := make(map[string]bool)
	for _, m := range spec.Maps {
		if names[m.Name] {
			return fmt.Errorf("two maps are called %q", m.Name)
		}
		names[m.Name] = true
	}
	for name, value := range o.Variables {
		if err := spec.SetVariable(name, value); err != nil {
			return err
		}
	}
	for name, options := range o.Maps {
		m := spec.Map(name)
		if m == nil {
			return fmt.Errorf("map %q: the program does not use it", name)
		}
		if options.Entries != 0 {
			m.Entries = options.Entries
		}
	}
	return nil
}

// build makes the maps, the code and the machine. release releases them, also
// after an error.
func (x *Extension) build(o Options) (err error) {
	var total uint64
	for _, spec := range x.program.Maps() {
		options := o.Maps[spec.Name]
		if err := spec.Validate(); err != nil {
			return err
		}
		if options.Memory == nil {
			total += min(spec.Size(o.Cores), memory.MaxSize)
		}
		if total > x.limits.MaxMemory {
			return fmt.Errorf("map %q: more than %d bytes of maps", spec.Name, x.limits.MaxMemory)
		}
		m, err := state.New(spec, state.Options{Cores: o.Cores, Shared: options.Shared, Memory: options.Memory})
		if err != nil {
			return err
		}
		x.maps = append(x.maps, m)
	}
	for _, p := range x.program.Pointers() {
		addr := x.maps[p.To].Region().Base + uint64(p.Distance)
		binary.LittleEndian.PutUint64(x.maps[p.Map].Memory().Bytes()[p.Offset:], addr)
	}
	if x.code, err = o.Engine.Thread(x.program, x.maps); err != nil {
		return err
	}
	x.engine = o.Engine.Name()
	if chosen, ok := x.code.(*engine.Chosen); ok {
		x.code, x.engine, x.passed = chosen.Code, chosen.Engine, chosen.Passed
	}
	x.most = math.MaxUint64
	if code, ok := x.code.(engine.Plain); ok {
		if run, most := code.Plain(); run != nil {
			x.plain, x.most = run, most
		}
	}
	if x.machine, err = engine.NewMachine(x.program, x.maps, x.limits.CallDepth); err != nil {
		return err
	}
	x.machine.MaxTime = x.limits.MaxTime
	if o.Print != nil {
		x.machine.Call.Print = newPrinter(o.Print).print
	}
	return nil
}
