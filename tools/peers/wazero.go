package main

import (
	"context"

	"github.com/tetratelabs/wazero"
	"github.com/tetratelabs/wazero/api"

	"margay/nimble/bench"
	"margay/tools/peers/wasm"
)

// wazeroContender makes a contender of a runtime. It has the service that
// programs call, and neither fuel nor a limit of time.
func wazeroContender(ctx context.Context, name string, config wazero.RuntimeConfig) (bench.Contender, func() error, error) {
	r := wazero.NewRuntimeWithConfig(ctx, config)
	service := api.GoFunc(func(context.Context, []uint64) {}) // its result takes the place of its argument
	_, err := r.NewHostModuleBuilder("env").NewFunctionBuilder().
		WithGoFunction(service, []api.ValueType{api.ValueTypeI64}, []api.ValueType{api.ValueTypeI64}).Export("service").Instantiate(ctx)
	c := bench.Contender{Name: name, Insert: func(p *bench.Program) (*bench.Inserted, error) { return compile(ctx, r, p) }}
	return c, func() error { return r.Close(ctx) }, err
}

// module is a program in a runtime.
type module struct {
	ctx      context.Context
	compiled wazero.CompiledModule
	instance api.Module
	run      api.Function
	args     [2]uint64
}

// compile makes a module ready to run. Making its bytes is not in the time.
func compile(ctx context.Context, r wazero.Runtime, p *bench.Program) (*bench.Inserted, error) {
	var firstMap []byte
	if len(p.Maps) > 0 {
		firstMap = p.Maps[0].Contents
	}
	text, err := wasm.Module(p.Name, p.Rounds, p.Memory, firstMap)
	if err != nil {
		return nil, err
	}
	m := &module{ctx: ctx, args: [2]uint64{wasm.Memory, uint64(len(p.Memory))}}
	watch := bench.Start()
	if m.compiled, err = r.CompileModule(ctx, text); err == nil {
		m.instance, err = r.InstantiateModule(ctx, m.compiled, wazero.NewModuleConfig().WithName(""))
	}
	took := watch.Stop()
	if err != nil {
		return nil, err
	}
	m.run = m.instance.ExportedFunction("run")
	return &bench.Inserted{Runner: m, Took: took}, nil
}

// Run implements bench.Runner.
func (m *module) Run(n int) (t bench.Turn, err error) {
	var stack [2]uint64
	watch := bench.Start()
	for range n {
		stack = m.args
		if err = m.run.CallWithStack(m.ctx, stack[:]); err != nil {
			break
		}
	}
	return bench.Turn{R0: stack[0], Each: float64(watch.Stop()) / float64(n)}, err
}

// Close implements bench.Runner.
func (m *module) Close() error {
	if err := m.instance.Close(m.ctx); err != nil {
		return err
	}
	return m.compiled.Close(m.ctx)
}
