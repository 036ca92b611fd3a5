package verify_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"margay/nimble/engine"
	"margay/nimble/engine/enginetest"
	"margay/nimble/engine/portable"
	"margay/nimble/isa"
	"margay/nimble/memory"
	"margay/nimble/object"
	"margay/nimble/service"
	"margay/nimble/state"
	"margay/nimble/verify"
)

// laboratory is memory in which programs are run with and without proofs.
type laboratory struct {
	maps    []*state.Map
	context *memory.Memory
	table   *service.Table
	place   verify.Place

	probes map[int32]*verify.Known // by number of the service; nil: none is looked at
	wrong  string                  // what a probe has found
}

// Probes are services that compare r1 to r5 with their abstract state.
const (
	firstProbe = 100
	probes     = 12
)

const (
	contextSize = 64
	depth       = 3
)

func newLaboratory(t testing.TB) *laboratory {
	t.Helper()
	l := new(laboratory)
	for _, spec := range maps() {
		m, err := state.New(spec, state.Options{Cores: 1})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { m.Close() })
		l.maps = append(l.maps, m)
		l.place.Maps = append(l.place.Maps, m.Region().Base)
		var elements []uint64
		for n := range spec.Entries {
			addr, _ := m.Element(0, n)
			elements = append(elements, addr)
		}
		l.place.Elements = append(l.place.Elements, elements)
	}
	services := append(service.Linux(), service.Service{Number: 20, Args: []service.Kind{service.Writable, service.Length}, Func: fill})
	for n := range probes {
		services = append(services, service.Service{Number: int32(firstProbe + n), Func: func(c *service.Call) (uint64, error) {
			if known := l.probes[int32(firstProbe+n)]; known != nil && l.wrong == "" {
				if l.wrong = known.Wrong(1, c.Args[:], &l.place); l.wrong != "" {
					l.wrong = fmt.Sprintf("probe %d: %s", firstProbe+n, l.wrong)
				}
			}
			return 0, nil
		}})
	}
	var err error
	if l.table, err = service.NewTable(services...); err != nil {
		t.Fatal(err)
	}
	if l.context, err = memory.Map("context", contextSize); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.context.Close() })
	return l
}

// fill changes all bytes.
func fill(c *service.Call) (uint64, error) {
	for i := range c.Bytes(0) {
		c.Bytes(0)[i] ^= 0x55
	}
	return 0, nil
}

// maps returns the maps of programs of enginetest.Generate.
func maps() []state.Spec { return enginetest.Generate(nil).Maps }

// result is everything that a run leaves.
type result struct {
	r0    uint64
	fault string
	pc    int
	kind  engine.Kind
	fuel  uint64
	bytes string // of the context, the map and the stack
}

// run runs a program on a machine with a context of length bytes, filled with
// data. The context ends at the end of its memory.
func (l *laboratory) run(m *engine.Machine, code engine.Code, length int, data []byte) result {
	for _, each := range []*memory.Memory{l.context, l.maps[0].Memory()} {
		clear(each.Bytes())
		copy(each.Bytes(), data)
	}
	m.Start() // empties the stack
	stack := memory.View(m.SP-depth*verify.FrameSize, depth*verify.FrameSize)
	clear(stack)
	context, _ := l.context.Region(true).Slice("context", contextSize-uint64(length), uint64(length))
	m.SetContext(context)
	m.Args = [5]uint64{context.Base, context.Length}
	m.Fuel = 300
	l.place.Context, l.place.Length = context.Base, context.Length
	r0, err := code.Run(m)
	r := result{r0: r0, fuel: m.Fuel}
	if err != nil {
		r.fault = err.Error()
	}
	var fault *engine.Fault
	if errors.As(err, &fault) {
		r.pc, r.kind = fault.PC, fault.Kind
	}
	r.bytes = string(l.context.Bytes()) + string(l.maps[0].Memory().Bytes()) + string(stack)
	return r
}

// check verifies a program with and without proofs and runs both with several
// contexts. Proved accesses must not fault, abstract states must hold, and proofs
// must make no difference.
func (l *laboratory) check(t testing.TB, spec *object.Spec, services *service.Table, size int, data []byte) (accesses, proved int) {
	t.Helper()
	config := verify.Config{
		Services: services,
		Context:  verify.Context{Size: uint64(size), Readable: true, Writable: true},
	}
	with, err := verify.Verify(spec, config)
	if err != nil {
		t.Fatalf("refused: %v\n%s", err, listing(spec, nil))
	}
	config.NoProofs = true
	without, err := verify.Verify(spec, config)
	if err != nil {
		t.Fatal(err)
	}
	var code, checked engine.Code
	if code, err = portable.New().Thread(with, l.maps); err == nil {
		checked, err = portable.New().Thread(without, l.maps)
	}
	if err != nil {
		t.Fatal(err)
	}
	defer code.Close()
	defer checked.Close()
	known := verify.Knowledge(with)
	l.probes = make(map[int32]*verify.Known)
	var exits []*verify.Known
	for slot := range with.Len() {
		i := with.At(slot)
		switch {
		case i.Op.Size() > 0 && i.Proved:
			accesses++
			proved++
		case i.Op.Size() > 0:
			accesses++
		case i.Op == isa.Call && i.Imm >= firstProbe:
			l.probes[i.Imm] = known[slot]
		case i.Op == isa.Exit && known[slot] != nil && slot < with.Functions()[0].End:
			exits = append(exits, known[slot])
		}
	}
	m, err := engine.NewMachine(with, l.maps, depth)
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	for _, length := range [...]int{size, (size + contextSize) / 2, contextSize} {
		l.wrong = ""
		want := l.run(m, checked, length, data)
		if want.kind == engine.Memory && with.At(want.pc).Proved {
			t.Fatalf("context of %d of %d bytes: %s is proved\n%s", length, size, want.fault, listing(spec, with))
		}
		holds := func(exit *verify.Known) bool { return exit.Wrong(0, []uint64{want.r0}, &l.place) == "" }
		if want.fault == "" && !slices.ContainsFunc(exits, holds) {
			l.wrong = fmt.Sprintf("r0 is %#x", want.r0)
		}
		if l.wrong != "" {
			t.Fatalf("context of %d of %d bytes: %s\n%s", length, size, l.wrong, listing(spec, with))
		}
		if got := l.run(m, code, length, data); got != want {
			t.Fatalf("context of %d of %d bytes: %+v, without proofs %+v\n%s", length, size, got, want, listing(spec, with))
		}
	}
	return accesses, proved
}

func listing(spec *object.Spec, p *verify.Program) string {
	var b strings.Builder
	for slot, i := range spec.Instructions {
		mark := ""
		if p != nil && p.At(slot).Proved {
			mark = "proved"
		}
		fmt.Fprintf(&b, "%4d %-40v %s\n", slot, i, mark)
	}
	return b.String()
}

// TestProofsHold checks random programs of enginetest and of bounded.
// MARGAY_PROGRAMS overrides their number.
func TestProofsHold(t *testing.T) {
	programs, r := enginetest.Programs(t, 3000), enginetest.Seeded(t)
	l := newLaboratory(t)
	data := make([]byte, 400)
	var accesses, proved [2]int
	for n := range programs {
		for i := range data {
			data[i] = byte(r.Uint32())
		}
		spec, services := enginetest.Generate(data), enginetest.Services()
		if n%4 > 0 {
			spec, services = bounded(data), l.table
		}
		a, p := l.check(t, spec, services, int(data[0])%(contextSize+1), data[300:])
		accesses[min(n%4, 1)] += a
		proved[min(n%4, 1)] += p
	}
	t.Logf("proved %d of %d accesses of bounded programs and %d of %d of others", proved[1], accesses[1], proved[0], accesses[0])
	if proved[0] == 0 || proved[1] == 0 {
		t.Error("nothing was proved")
	}
}

func FuzzProofsHold(f *testing.F) {
	f.Add([]byte("0123456789"), []byte{1, 2, 3}, byte(8))
	f.Fuzz(func(t *testing.T, program, data []byte, size byte) {
		l := newLaboratory(t)
		l.check(t, bounded(program), l.table, int(size)%(contextSize+1), data)
		l.check(t, enginetest.Generate(program), enginetest.Services(), int(size)%(contextSize+1), data)
	})
}
