package bench

import (
	"time"

	"margay/nimble"
	"margay/nimble/memory"
	"margay/nimble/object"
)

// Engine makes a contender of an engine. The limits are its own. It parses a program once, because
// the garbage of parsing would slow down the insertion after it.
func Engine(name string, o nimble.Options) Contender {
	o.Limits = nimble.Limits{Fuel: 1 << 40, MaxTime: time.Minute}
	var parsed *Program
	var spec *object.Spec
	return Contender{Name: name, Insert: func(p *Program) (i *Inserted, err error) {
		if p != parsed {
			if spec, err = p.Spec(); err != nil {
				return nil, err
			}
			parsed = p
		}
		return insert(p, spec, o)
	}}
}

// extension is a program on an engine.
type extension struct {
	*nimble.Extension
	event   nimble.Event
	context *memory.Memory // nil: none
}

func insert(p *Program, spec *object.Spec, o nimble.Options) (i *Inserted, err error) {
	o.Context = p.Context()
	e := &extension{}
	watch := Start()
	e.Extension, err = nimble.Insert(spec, o)
	took := watch.Stop()
	if err != nil {
		return nil, err
	}
	if len(p.Memory) > 0 {
		if e.context, err = memory.Map("context", len(p.Memory)); err != nil {
			e.Extension.Close()
			return nil, err
		}
		copy(e.context.Bytes(), p.Memory)
		e.event.Context = e.context.Region(true)
	}
	return &Inserted{Runner: e, Took: took, Size: e.CodeSize()}, nil
}

// Run implements Runner.
func (e *extension) Run(n int) (t Turn, err error) {
	before := e.Stats().Instructions
	watch := Start()
	for range n {
		if t.R0, err = e.Extension.Run(&e.event); err != nil {
			break
		}
	}
	t.Each = float64(watch.Stop()) / float64(n)
	t.Instructions = (e.Stats().Instructions - before) / uint64(n)
	return t, err
}

// Close implements Runner.
func (e *extension) Close() error {
	err := e.Extension.Close()
	if e.context != nil {
		e.context.Close()
	}
	return err
}
