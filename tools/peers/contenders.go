package main

import (
	"context"
	"errors"

	"github.com/tetratelabs/wazero"

	"margay/nimble"
	"margay/nimble/bench"
	"margay/nimble/driver"
	"margay/nimble/engine/list"
)

// The names of the peers.
const (
	interpreter = "wazero interpreter"
	compiler    = "wazero compiler"
	kernel      = "Linux JIT"
)

// peers are the programs that the engines are compared with.
var peers = []string{interpreter, compiler, kernel}

// contenders returns the available engines, checked and trusted, and then the
// peers. The kernel is used by the program in argv, a child.
// The function ends what the peers have begun.
func contenders(ctx context.Context, argv ...string) ([]bench.Contender, func() error, error) {
	ours, err := engines()
	if err != nil {
		return nil, nil, err
	}
	first, closeFirst, err := wazeroContender(ctx, interpreter, wazero.NewRuntimeConfigInterpreter())
	if err != nil {
		return nil, nil, err
	}
	second, closeSecond, err := wazeroContender(ctx, compiler, wazero.NewRuntimeConfigCompiler())
	if err != nil {
		return nil, nil, errors.Join(err, closeFirst())
	}
	third, closeThird := kernelContender(ctx, argv...)
	all := append(ours, first, second, third)
	for i := range all {
		all[i].Bounded = true // as the kernel's, so that all do the same
	}
	return all, func() error { return errors.Join(closeFirst(), closeSecond(), closeThird()) }, nil
}

// engines makes two contenders of each engine that is here. The kernel is not
// among them: it has its own way.
func engines() (all []bench.Contender, err error) {
	services, err := driver.Services("test")
	if err != nil {
		return nil, err
	}
	for _, entry := range list.Engines {
		e, err := entry.Make()
		if err != nil || entry.Sparing {
			continue
		}
		all = append(all,
			bench.Engine(entry.Name+" checked", nimble.Options{Engine: e, Services: services}),
			bench.Engine(entry.Name+" unchecked", nimble.Options{Engine: e, Services: services, Trusted: true}))
	}
	return all, nil
}
