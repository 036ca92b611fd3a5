package nimble_test

import (
	"encoding/binary"
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"margay/nimble"
	"margay/nimble/engine"
	"margay/nimble/engine/portable"
	"margay/nimble/isa"
	"margay/nimble/memory"
	"margay/nimble/object"
	"margay/nimble/service"
	"margay/nimble/state"
	"margay/nimble/verify"
)

// load returns a program of a test object.
func load(t testing.TB, file, name string) *object.Spec {
	t.Helper()
	data, err := os.ReadFile(filepath.Join("object", "testdata", file))
	if err != nil {
		t.Fatal(err)
	}
	specs, err := object.ELF(data)
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range specs {
		if s.Name == name {
			return s
		}
	}
	t.Fatalf("%s has no program %s", file, name)
	return nil
}

// assemble makes a program of text.
func assemble(t testing.TB, lines ...string) *object.Spec {
	t.Helper()
	spec := &object.Spec{Name: "test"}
	for _, line := range lines {
		i, err := isa.Parse(line)
		if err != nil {
			t.Fatal(err)
		}
		spec.Instructions = isa.Append(spec.Instructions, i)
	}
	return spec
}

// services returns the services of Linux, and notify, which adds to a counter.
func services(t testing.TB, notified *atomic.Uint64) *service.Table {
	t.Helper()
	table, err := service.NewTable(append(service.Linux(), service.Service{
		Name: "notify",
		Args: []service.Kind{service.Scalar},
		Func: func(c *service.Call) (uint64, error) { return notified.Add(c.Args[0]), nil },
	})...)
	if err != nil {
		t.Fatal(err)
	}
	return table
}

// insert inserts a program on the portable engine for the length of the test.
func insert(t testing.TB, spec *object.Spec, o nimble.Options) *nimble.Extension {
	t.Helper()
	o.Engine = portable.New()
	x, err := nimble.Insert(spec, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := x.Close(); err != nil {
			t.Error(err)
		}
	})
	return x
}

// newContext returns memory for the length of the test.
func newContext(t testing.TB, size int) *memory.Memory {
	t.Helper()
	m, err := memory.Map("event", size)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { m.Close() })
	return m
}

// message fills a context with what accumulate expects.
func message(m *memory.Memory, word, amount uint32) *nimble.Event {
	binary.LittleEndian.PutUint32(m.Bytes(), word)
	binary.LittleEndian.PutUint32(m.Bytes()[4:], amount)
	return &nimble.Event{Context: m.Region(true)}
}

// readWord reads a number of a map of at most 8 bytes.
func readWord(t testing.TB, x *nimble.Extension, name string, offset uint64) uint64 {
	t.Helper()
	var b [8]byte
	if _, err := x.ReadMap(name, offset, b[:]); err != nil {
		t.Fatal(err)
	}
	return binary.LittleEndian.Uint64(b[:])
}

// TestCompiledC runs a C program with maps, global data, a local function and
// services.
func TestCompiledC(t *testing.T) {
	var notified atomic.Uint64
	spec := load(t, "counter.o", "accumulate")
	x := insert(t, spec, nimble.Options{
		Services:  services(t, &notified),
		Variables: map[string]any{"limit": uint32(50)},
		Maps:      map[string]nimble.MapOptions{"counts": {Entries: 4, Shared: true}},
	})
	m := newContext(t, 8)
	for _, step := range []struct {
		word, amount uint32
		want         uint64
	}{{3, 10, 10}, {3, 50, 60}, {0, 7, 7}, {4, 1, 0}, {3, 51, 51}, {3, 52, 103}} {
		if got, err := x.Run(message(m, step.word, step.amount)); err != nil || got != step.want {
			t.Errorf("word %d, amount %d: %d, %v, want %d", step.word, step.amount, got, err, step.want)
		}
	}
	if got := readWord(t, x, "counts", 3*8); got != 60 {
		t.Errorf("element 3 is %d", got)
	}
	if got := readWord(t, x, ".data", 0); got != 5+10+50+7+1 {
		t.Errorf("total is %d", got)
	}
	if got := readWord(t, x, ".bss", 0); got != 2 || notified.Load() != 103 {
		t.Errorf("refused %d, notified %d", got, notified.Load())
	}
	if !reflect.DeepEqual(spec, load(t, "counter.o", "accumulate")) {
		t.Error("Insert changed the Spec")
	}
	if x.Name() != "accumulate" || x.Engine() != "portable" || x.Trusted() {
		t.Errorf("name %q, engine %q, trusted %v", x.Name(), x.Engine(), x.Trusted())
	}
}

// TestSharedMap maps the extension's map a second time, as an application does.
func TestSharedMap(t *testing.T) {
	var notified atomic.Uint64
	x := insert(t, load(t, "counter.o", "accumulate"), nimble.Options{
		Services: services(t, &notified),
		Maps:     map[string]nimble.MapOptions{"counts": {Shared: true}},
	})
	fd, ok := x.Map("counts").Memory().FD()
	if !ok {
		t.Fatal("a shared map has no descriptor")
	}
	application, err := memory.Attach("application", fd, 16*8)
	if err != nil {
		t.Fatal(err)
	}
	defer application.Close()
	binary.LittleEndian.PutUint64(application.Bytes()[2*8:], 1000)
	m := newContext(t, 8)
	if got, err := x.Run(message(m, 2, 5)); err != nil || got != 1005 {
		t.Errorf("got %d, %v", got, err)
	}
	if got := binary.LittleEndian.Uint64(application.Bytes()[2*8:]); got != 1005 {
		t.Errorf("the application sees %d", got)
	}
	if x.Map("nobody") != nil {
		t.Error("a map that does not exist")
	}
}

// TestStateMoves gives the same memory to one extension after the other.
func TestStateMoves(t *testing.T) {
	var notified atomic.Uint64
	given, err := memory.Create("counts", 16*8)
	if err != nil {
		t.Fatal(err)
	}
	defer given.Close()
	m := newContext(t, 8)
	for round := range uint64(3) {
		x := insert(t, load(t, "counter.o", "accumulate"), nimble.Options{
			Services: services(t, &notified),
			Maps:     map[string]nimble.MapOptions{"counts": {Memory: given}},
			Limits:   nimble.Limits{MaxMemory: 24},
		})
		if got, err := x.Run(message(m, 1, 5)); err != nil || got != 5*(round+1) {
			t.Errorf("got %d, %v", got, err)
		}
		if err := x.Close(); err != nil {
			t.Error(err)
		}
	}
}

func TestPerCore(t *testing.T) {
	var notified atomic.Uint64
	x := insert(t, load(t, "counter.o", "tick"), nimble.Options{Services: services(t, &notified), Cores: 2})
	for core, want := range map[int][]uint64{0: {2, 4}, 1: {2, 4, 6}, 2: {1<<64 - 1}, -1: {1<<64 - 1}} {
		for _, w := range want {
			if got, err := x.Run(&nimble.Event{Core: core}); err != nil || got != w&0xffffffff && got != w {
				t.Errorf("core %d: %d, %v, want %d", core, int64(got), err, int64(w))
			}
		}
	}
}

// TestLimits does what an extension must not do: it is refused with the index
// of the instruction, or stopped with pc, address and kind.
func TestLimits(t *testing.T) {
	var notified atomic.Uint64
	m := newContext(t, 64)
	base := m.Region(true).Base
	for _, c := range []struct {
		name   string
		spec   *object.Spec
		slot   int // refused there
		reason string
		kind   engine.Kind // or stopped
		addr   uint64
	}{
		{name: "a bad opcode", spec: &object.Spec{Instructions: []isa.Instruction{{Code: 0xff}}}, reason: "unknown opcode 0xff"},
		{name: "a jump outside", spec: assemble(t, "mov r0, 0", "ja +5", "exit"), slot: 1, reason: "outside the program"},
		{name: "an unknown service", spec: load(t, "faults.o", "unknown_service"), slot: 1, reason: "unknown service 4000"},
		{name: "an unknown name", spec: load(t, "faults.o", "unknown_name"), slot: 1, reason: `unknown service "no_such_service"`},
		{name: "a write past the end", spec: load(t, "faults.o", "past_end"), slot: 1, kind: engine.Memory, addr: base + 64},
		{name: "a null pointer", spec: load(t, "faults.o", "null"), slot: 1, kind: engine.Memory},
		{name: "an endless loop", spec: load(t, "faults.o", "endless"), slot: 0, kind: engine.Fuel},
		{name: "endless recursion", spec: load(t, "faults.o", "recurse"), slot: 7, kind: engine.Depth},
	} {
		m.Bytes()[0] = 200
		// Without a limit of time, because a slow host might reach that before the limit of fuel.
		o := nimble.Options{Engine: portable.New(), Services: services(t, &notified), Limits: nimble.Limits{MaxTime: -1}}
		x, err := nimble.Insert(c.spec, o)
		if c.kind == "" {
			var r *verify.Refusal
			if !errors.As(err, &r) || r.Slot != c.slot || !strings.Contains(r.Reason, c.reason) {
				t.Errorf("%s: %v, want a refusal of %d with %q", c.name, err, c.slot, c.reason)
			}
			continue
		}
		if err != nil {
			t.Errorf("%s: %v", c.name, err)
			continue
		}
		_, err = x.Run(&nimble.Event{Context: m.Region(true)})
		var f *engine.Fault
		if !errors.As(err, &f) || f.Kind != c.kind || f.PC != c.slot || f.Addr != c.addr || f.Line.Number == 0 {
			t.Errorf("%s: %v, want kind=%s pc=%d addr=%#x and a line", c.name, err, c.kind, c.slot, c.addr)
		}
		if s := x.Stats(); s.Runs != 1 || s.Faults != 1 || s.LastFault != f {
			t.Errorf("%s: %+v", c.name, s)
		}
		if err := x.Close(); err != nil {
			t.Error(err)
		}
	}
}

func TestStats(t *testing.T) {
	x := insert(t, assemble(t, "mov r0, 1", "jeq r1, 0, +1", "ldxb r0, [r1]", "exit"), nimble.Options{Limits: nimble.Limits{Fuel: 4}})
	if s := x.Stats(); s != (nimble.Stats{}) {
		t.Errorf("before the first run: %+v", s)
	}
	m := newContext(t, 1)
	for i := range 100 {
		e := nimble.Event{}
		if i%2 == 0 {
			e.Context = m.Region(false)
		}
		if _, err := x.Run(&e); err != nil {
			t.Fatal(err)
		}
	}
	if s := x.Stats(); s.Runs != 100 || s.Instructions != 50*3+50*4 || s.Faults != 0 || s.Time <= 0 {
		t.Errorf("%+v", s)
	}
}

// TestSampledTime measures the 65th run, which stands for 64 runs.
func TestSampledTime(t *testing.T) {
	const long = 5 * time.Millisecond
	runs := 0
	table, err := service.NewTable(service.Service{Name: "pause", Number: 1, Func: func(*service.Call) (uint64, error) {
		if runs++; runs == 65 {
			time.Sleep(long)
		} else {
			time.Sleep(time.Microsecond) // not a brief run
		}
		return 0, nil
	}})
	if err != nil {
		t.Fatal(err)
	}
	x := insert(t, assemble(t, "call 1", "exit"), nimble.Options{Services: table})
	for range 65 {
		if _, err := x.Run(&nimble.Event{}); err != nil {
			t.Fatal(err)
		}
	}
	if s := x.Stats(); s.Runs != 65 || s.Time < 64*long {
		t.Errorf("%+v", s)
	}
}

// TestArguments checks what registers an extension starts with.
func TestArguments(t *testing.T) {
	m := newContext(t, 24)
	event := nimble.Event{Context: m.Region(true)}
	for text, want := range map[string]uint64{"mov r0, r1": event.Context.Base, "mov r0, r2": 24, "mov r0, r3": 0, "ldxdw r0, [r1+16]": 0} {
		x := insert(t, assemble(t, text, "exit"), nimble.Options{})
		if got, err := x.Run(&event); err != nil || got != want {
			t.Errorf("%s: %#x, %v, want %#x", text, got, err, want)
		}
	}
}

func TestTimeLimit(t *testing.T) {
	x := insert(t, assemble(t, "ja -1"), nimble.Options{Limits: nimble.Limits{Fuel: 1 << 60, MaxTime: 10 * time.Millisecond}})
	_, err := x.Run(&nimble.Event{})
	var f *engine.Fault
	if !errors.As(err, &f) || f.Kind != engine.Time {
		t.Errorf("got %v", err)
	}
	if s := x.Stats(); s.Time < 10*time.Millisecond {
		t.Errorf("%+v", s)
	}
}

// TestConcurrency runs, reads, and closes an extension at the same time.
func TestConcurrency(t *testing.T) {
	var inside, notified atomic.Int64
	table, err := service.NewTable(append(service.Linux(), service.Service{Name: "notify", Func: func(*service.Call) (uint64, error) {
		if inside.Add(1) != 1 {
			t.Error("two runs at the same time")
		}
		inside.Add(-1)
		return uint64(notified.Add(1)), nil
	}})...)
	if err != nil {
		t.Fatal(err)
	}
	for range 20 {
		x := insert(t, load(t, "counter.o", "accumulate"), nimble.Options{Services: table})
		m := newContext(t, 8)
		e := message(m, 1, 1000)
		var wait sync.WaitGroup
		var ran atomic.Uint64
		for range 4 {
			wait.Go(func() {
				for {
					_, err := x.Run(e)
					if errors.Is(err, nimble.ErrClosed) {
						return
					}
					if err != nil {
						t.Error(err)
						return
					}
					ran.Add(1)
				}
			})
		}
		wait.Go(func() {
			var b [8]byte
			for {
				_ = x.Stats()
				if _, err := x.ReadMap("counts", 0, b[:]); errors.Is(err, nimble.ErrClosed) {
					return
				}
			}
		})
		for ran.Load() < 50 {
			time.Sleep(100 * time.Microsecond)
		}
		if err := x.Close(); err != nil {
			t.Error(err)
		}
		if inside.Load() != 0 {
			t.Error("Close returned during a run")
		}
		wait.Wait()
		if x.Stats().Runs != ran.Load() {
			t.Errorf("%d runs counted, %d made", x.Stats().Runs, ran.Load())
		}
	}
}

// open counts the process's descriptors and mappings.
func open(t *testing.T) (descriptors, mappings int) {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	maps, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		t.Fatal(err)
	}
	return len(entries), strings.Count(string(maps), "\n")
}

// TestNothingLeaks inserts and closes many extensions. Some insertions fail late.
func TestNothingLeaks(t *testing.T) {
	var notified atomic.Uint64
	spec := load(t, "counter.o", "accumulate")
	shared := map[string]nimble.MapOptions{"counts": {Shared: true}, ".bss": {Shared: true}}
	descriptors, mappings := open(t)
	const rounds = 200
	for range rounds {
		x, err := nimble.Insert(spec, nimble.Options{Engine: portable.New(), Services: services(t, &notified), Maps: shared})
		if err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(x.Close(), x.Close()); err != nil {
			t.Fatal(err)
		}
		if _, err := nimble.Insert(spec, nimble.Options{Engine: portable.New(), Services: services(t, &notified), Maps: shared,
			Limits: nimble.Limits{CallDepth: engine.MaxCallDepth + 1}}); err == nil {
			t.Fatal("an impossible call depth was accepted")
		}
	}
	d, m := open(t)
	if d > descriptors+3 || m > mappings+rounds/4 {
		t.Errorf("descriptors %d then %d, mappings %d then %d", descriptors, d, mappings, m)
	}
}

func TestClosed(t *testing.T) {
	var notified atomic.Uint64
	x := insert(t, load(t, "counter.o", "accumulate"), nimble.Options{Services: services(t, &notified)})
	if err := x.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := x.Run(&nimble.Event{}); !errors.Is(err, nimble.ErrClosed) {
		t.Errorf("Run: %v", err)
	}
	if _, err := x.ReadMap("counts", 0, nil); !errors.Is(err, nimble.ErrClosed) {
		t.Errorf("ReadMap: %v", err)
	}
}

func TestInsertRefuses(t *testing.T) {
	var notified atomic.Uint64
	small, err := memory.Map("small", 8)
	if err != nil {
		t.Fatal(err)
	}
	defer small.Close()
	maps := func(name string, o nimble.MapOptions) nimble.Options {
		return nimble.Options{Engine: portable.New(), Services: services(t, &notified), Maps: map[string]nimble.MapOptions{name: o}}
	}
	limits := func(l nimble.Limits) nimble.Options {
		return nimble.Options{Engine: portable.New(), Services: services(t, &notified), Limits: l}
	}
	for name, c := range map[string]struct {
		o    nimble.Options
		want string
	}{
		"no engine":        {nimble.Options{}, "no engine"},
		"unknown variable": {nimble.Options{Engine: portable.New(), Variables: map[string]any{"x": 1}}, `variable "x"`},
		"unknown map":      {maps("x", nimble.MapOptions{}), `map "x"`},
		"too much memory":  {maps("counts", nimble.MapOptions{Entries: 1 << 28}), "more than"},
		"too little given": {maps("counts", nimble.MapOptions{Memory: small}), "has 8 bytes, need 128"},
		"too long":         {limits(nimble.Limits{MaxInstructions: 10}), "insn=10"},
		"too deep":         {limits(nimble.Limits{CallDepth: 1000}), "call depth 1000"},
		"missing services": {nimble.Options{Engine: portable.New()}, `unknown service "notify"`},
	} {
		x, err := nimble.Insert(load(t, "counter.o", "accumulate"), c.o)
		if err == nil {
			x.Close()
			t.Errorf("%s: accepted", name)
		} else if !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), `insert "accumulate"`) {
			t.Errorf("%s: %v", name, err)
		}
	}
	twice := load(t, "counter.o", "accumulate")
	twice.Maps = append(twice.Maps, twice.Maps[0])
	if _, err := nimble.Insert(twice, limits(nimble.Limits{})); err == nil || !strings.Contains(err.Error(), "two maps") {
		t.Errorf("two maps of one name: %v", err)
	}
}

// TestContext runs an extension with contexts that are and are not what was
// promised when it was inserted.
func TestContext(t *testing.T) {
	m, err := memory.Map("m", 64)
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	whole := m.Region(true)
	part := func(length uint64, readable, writable bool) memory.Region {
		return memory.Region{Base: whole.Base, Length: length, Readable: readable, Writable: writable}
	}
	x := insert(t, assemble(t, "ldxdw r0, [r1+24]", "stxdw [r1+24], r0", "exit"), nimble.Options{
		Context: verify.Context{Size: 32, Readable: true, Writable: true},
	})
	for name, c := range map[string]struct {
		context memory.Region
		ok      bool
	}{
		"as promised":     {part(32, true, true), true},
		"longer":          {whole, true},
		"too short":       {part(31, true, true), false},
		"none":            {memory.Region{}, false},
		"not readable":    {part(32, false, true), false},
		"not writable":    {part(32, true, false), false},
		"an odd address":  {memory.Region{Base: 1<<64 - 64, Length: 32, Readable: true, Writable: true}, false},
		"too long":        {memory.Region{Base: 1, Length: 1 << 60, Readable: true, Writable: true}, false},
		"a wrapped range": {memory.Region{Base: whole.Base, Length: -whole.Base, Readable: true, Writable: true}, false},
	} {
		if _, err := x.Run(&nimble.Event{Context: c.context}); (err == nil) != c.ok || !c.ok && !errors.Is(err, nimble.ErrContext) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if s := x.Stats(); s.Faults != 0 || s.Runs != 2 || s.Instructions != 6 {
		t.Errorf("%+v", s)
	}
	readable := insert(t, assemble(t, "exit"), nimble.Options{Context: verify.Context{Readable: true}})
	for name, context := range map[string]memory.Region{"none": {}, "read-only": part(1, true, false)} {
		if _, err := readable.Run(&nimble.Event{Context: context}); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := readable.Run(&nimble.Event{Context: memory.Region{Base: 1<<64 - 4}}); !errors.Is(err, nimble.ErrContext) {
		t.Errorf("an empty one at an odd address: %v", err)
	}
}

func TestReadMapBounds(t *testing.T) {
	var notified atomic.Uint64
	x := insert(t, load(t, "counter.o", "accumulate"), nimble.Options{Services: services(t, &notified)})
	b := make([]byte, 1000)
	if n, err := x.ReadMap("counts", 120, b); n != 8 || err != nil {
		t.Errorf("got %d, %v", n, err)
	}
	if n, err := x.ReadMap("counts", 128, b); n != 0 || err != nil {
		t.Errorf("got %d, %v", n, err)
	}
	for name, offset := range map[string]uint64{"counts": 129, "nobody": 0} {
		if _, err := x.ReadMap(name, offset, b); err == nil {
			t.Errorf("map %q at %d was read", name, offset)
		}
	}
}

func TestNoAllocation(t *testing.T) {
	var notified atomic.Uint64
	x := insert(t, load(t, "counter.o", "accumulate"), nimble.Options{Services: services(t, &notified)})
	m := newContext(t, 8)
	e := message(m, 1, 1)
	e.Data = m
	if n := testing.AllocsPerRun(200, func() {
		if _, err := x.Run(e); err != nil {
			t.Fatal(err)
		}
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func BenchmarkRun(b *testing.B) {
	var notified atomic.Uint64
	x := insert(b, load(b, "counter.o", "accumulate"), nimble.Options{Services: services(b, &notified)})
	m := newContext(b, 8)
	e := message(m, 1, 1)
	for b.Loop() {
		if _, err := x.Run(e); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkInsert(b *testing.B) {
	var notified atomic.Uint64
	spec := load(b, "counter.o", "accumulate")
	table := services(b, &notified)
	for b.Loop() {
		x, err := nimble.Insert(spec, nimble.Options{Engine: portable.New(), Services: table})
		if err != nil {
			b.Fatal(err)
		}
		x.Close()
	}
}

// TestPrintIsBounded prints in a loop: excess lines are left out, and the next
// line says so.
func TestPrintIsBounded(t *testing.T) {
	var lines []string
	x := insert(t, assemble(t,
		"stw [r10-4], 0x0a6925", // "%i\n"
		"mov r3, 7",
		"mov r1, r10",
		"add r1, -4",
		"mov r2, 4",
		"call 6",
		"exit"), nimble.Options{Services: services(t, new(atomic.Uint64)), Print: func(line string) { lines = append(lines, line) }})
	const runs = 1000
	for range runs {
		if r0, err := x.Run(&nimble.Event{}); err != nil || r0 != 2 {
			t.Fatalf("%d, %v", r0, err)
		}
	}
	if n := len(lines); n == 0 || n > runs/2 || lines[0] != "7" {
		t.Fatalf("%d lines: %q", n, lines)
	}
	for deadline := time.Now().Add(20 * time.Second); !strings.Contains(lines[len(lines)-1], "too many"); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("nothing is said of what was left out: %q", lines)
		}
		if _, err := x.Run(&nimble.Event{}); err != nil {
			t.Fatal(err)
		}
	}
}

// invoker is a table with a service that has the extension it points to run on
// the caller's memory, and keeps what that said.
type invoker struct {
	callee *nimble.Extension
	err    error
}

func (i *invoker) table(t testing.TB) *service.Table {
	t.Helper()
	table, err := service.NewTable(service.Service{
		Number: 1, Args: []service.Kind{service.Writable, service.Length},
		Func: func(c *service.Call) (r0 uint64, err error) {
			r0, i.err = i.callee.Invoke(c, &nimble.Event{
				Context: memory.Region{Base: c.Args[0], Length: c.Args[1], Readable: true, Writable: true},
			})
			if errors.Is(i.err, nimble.ErrBudget) {
				return 0, i.err
			}
			return r0, nil
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	return table
}

// TestInvoke has one extension call another: it works on the caller's memory
// and fuel, and its faults are its own.
func TestInvoke(t *testing.T) {
	caller := []string{"call 1", "add r0, 1", "exit"}
	event := func(t *testing.T) (*nimble.Event, []byte) {
		m := newContext(t, 16)
		return &nimble.Event{Context: m.Region(true)}, m.Bytes()
	}
	t.Run("result, memory and fuel", func(t *testing.T) {
		i := &invoker{callee: insert(t, assemble(t, "stxdw [r1+8], r2", "mov r0, 41", "exit"), nimble.Options{})}
		x := insert(t, assemble(t, caller...), nimble.Options{Services: i.table(t)})
		e, mem := event(t)
		if r0, err := x.Run(e); r0 != 42 || err != nil || i.err != nil || mem[8] != 16 {
			t.Errorf("%d, %v, %v, memory %x", r0, err, i.err, mem)
		}
		if a, b := x.Stats(), i.callee.Stats(); a.Instructions != 3+3 || b.Instructions != 3 || b.Runs != 1 {
			t.Errorf("caller %+v, callee %+v", a, b)
		}
	})
	t.Run("fault of the callee", func(t *testing.T) {
		i := &invoker{callee: insert(t, assemble(t, "ldxdw r0, [r1+9]", "exit"), nimble.Options{})}
		x := insert(t, assemble(t, caller...), nimble.Options{Services: i.table(t)})
		e, _ := event(t)
		r0, err := x.Run(e)
		var f *engine.Fault
		if r0 != 1 || err != nil || !errors.As(i.err, &f) || f.Kind != engine.Memory || f.Region != "context" {
			t.Errorf("%d, %v, %v", r0, err, i.err)
		}
		if x.Stats().Faults != 0 || i.callee.Stats().Faults != 1 {
			t.Error("the fault counts against the wrong one")
		}
	})
	t.Run("fuel of the caller", func(t *testing.T) {
		endless := assemble(t, "ja -1", "exit")
		i := &invoker{callee: insert(t, endless, nimble.Options{})}
		x := insert(t, assemble(t, caller...), nimble.Options{Services: i.table(t), Limits: nimble.Limits{Fuel: 1000}})
		e, _ := event(t)
		_, err := x.Run(e)
		if !errors.Is(err, nimble.ErrBudget) || x.Stats().Faults != 1 || i.callee.Stats().Faults != 0 || x.Stats().Instructions != 1000 {
			t.Errorf("%v; caller %+v, callee %+v", err, x.Stats(), i.callee.Stats())
		}
	})
	t.Run("fuel of the callee", func(t *testing.T) {
		i := &invoker{callee: insert(t, assemble(t, "ja -1", "exit"), nimble.Options{Limits: nimble.Limits{Fuel: 100}})}
		x := insert(t, assemble(t, caller...), nimble.Options{Services: i.table(t)})
		e, _ := event(t)
		r0, err := x.Run(e)
		if r0 != 1 || err != nil || i.callee.Stats().Faults != 1 || x.Stats().Instructions != 103 {
			t.Errorf("%d, %v; caller %+v, callee %+v", r0, err, x.Stats(), i.callee.Stats())
		}
	})
	t.Run("trust", func(t *testing.T) {
		i := &invoker{callee: insert(t, assemble(t, "mov r0, 1", "exit"), nimble.Options{Trusted: true})}
		e, _ := event(t)
		for _, trusted := range []bool{false, true} {
			x := insert(t, assemble(t, caller...), nimble.Options{Services: i.table(t), Trusted: trusted})
			if _, err := x.Run(e); err != nil || errors.Is(i.err, nimble.ErrUntrusted) == trusted {
				t.Errorf("trusted %v: %v, %v", trusted, err, i.err)
			}
		}
	})
	t.Run("depth", func(t *testing.T) {
		links := []*invoker{{callee: insert(t, assemble(t, "mov r0, 1", "exit"), nimble.Options{})}}
		e, _ := event(t)
		for n := 1; n <= nimble.MaxInvocations; n++ {
			last := links[len(links)-1]
			x := insert(t, assemble(t, "mov r6, r1", "call 1", "add r0, 1", "exit"), nimble.Options{Services: last.table(t)})
			if r0, err := x.Run(e); r0 != uint64(n)+1 || err != nil {
				t.Fatalf("depth %d: %d, %v", n, r0, err)
			}
			links = append(links, &invoker{callee: x})
		}
		x := insert(t, assemble(t, caller...), nimble.Options{Services: links[len(links)-1].table(t)})
		if _, err := x.Run(e); err != nil || !errors.Is(links[0].err, nimble.ErrTooDeep) {
			t.Errorf("%v, %v", err, links[0].err)
		}
	})
	t.Run("removed", func(t *testing.T) {
		i := &invoker{callee: insert(t, assemble(t, "mov r0, 1", "exit"), nimble.Options{})}
		x := insert(t, assemble(t, caller...), nimble.Options{Services: i.table(t)})
		if err := i.callee.Close(); err != nil {
			t.Fatal(err)
		}
		e, _ := event(t)
		if r0, err := x.Run(e); r0 != 1 || err != nil || !errors.Is(i.err, nimble.ErrClosed) {
			t.Errorf("%d, %v, %v", r0, err, i.err)
		}
	})
}

// TestPointers runs programs whose global data holds addresses of other global
// data: tables of names and of structures, and a list of them.
func TestPointers(t *testing.T) {
	m := newContext(t, 24)
	walk := load(t, "names.o", "walk")
	x := insert(t, walk, nimble.Options{})
	for run := uint64(1); run <= 3; run++ {
		want := 100 + run + 'a' + 200 + run + 'b' + run + 'g'
		if got, err := x.Run(&nimble.Event{Context: m.Region(true)}); err != nil || got != want {
			t.Errorf("run %d: %d, %v, want %d", run, got, err, want)
		}
	}
	letter := insert(t, load(t, "names.o", "letter"), nimble.Options{})
	for n, want := range []uint64{'n', 'w', 'h'} {
		binary.LittleEndian.PutUint64(m.Bytes(), uint64(n))
		if got, err := letter.Run(&nimble.Event{Context: m.Region(true)}); err != nil || got != want {
			t.Errorf("name %d: %d, %v, want %d", n, got, err, want)
		}
	}
	if _, err := nimble.Insert(walk, nimble.Options{Engine: portable.New(), Variables: map[string]any{"first": uint64(0)}}); err != nil {
		t.Error(err)
	}
	if walk.Pointers == nil || walk.Pointers[0] != (object.Pointer{Map: ".data", To: ".rodata"}) {
		t.Errorf("Insert has changed the Spec: %+v", walk.Pointers)
	}
}

// TestPointersOfGivenMemory inserts a program on the memory of a removed one: its
// state is kept, its addresses are updated.
func TestPointersOfGivenMemory(t *testing.T) {
	spec, m := load(t, "names.o", "walk"), newContext(t, 24)
	given := make(map[string]nimble.MapOptions)
	for _, each := range spec.Maps {
		old, err := memory.Create(each.Name, int(each.Size(1)))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { old.Close() })
		copy(old.Bytes(), each.Contents)
		given[each.Name] = nimble.MapOptions{Memory: old}
	}
	binary.LittleEndian.PutUint64(given[".data"].Memory.Bytes()[32:], 1000) // counters[0]
	binary.LittleEndian.PutUint64(given[".data"].Memory.Bytes(), 0xdead)    // first
	x := insert(t, spec, nimble.Options{Maps: given})
	const want = 1001 + 'a' + 201 + 'b' + 1 + 'g'
	if got, err := x.Run(&nimble.Event{Context: m.Region(true)}); err != nil || got != want {
		t.Errorf("%d, %v, want %d", got, err, want)
	}
}

// TestPointersRefused has addresses in maps that are none.
func TestPointersRefused(t *testing.T) {
	for name, p := range map[string]object.Pointer{
		"no map":            {Map: ".nothing", To: ".rodata"},
		"of no map":         {Map: ".data", To: ".nothing"},
		"over the end":      {Map: ".data", Offset: 41, To: ".rodata"},
		"far over the end":  {Map: ".data", Offset: 1<<32 - 1, To: ".rodata"},
		"behind the target": {Map: ".data", To: ".bss", Distance: 33},
		"in each core's":    {Map: "cores", To: ".bss"},
		"of each core's":    {Map: ".data", To: "cores"},
	} {
		spec := load(t, "names.o", "walk")
		spec.Maps = append(spec.Maps, state.Spec{Name: "cores", Kind: state.PerCore, ValueSize: 64, Entries: 1})
		spec.Pointers = append(spec.Pointers, p)
		x, err := nimble.Insert(spec, nimble.Options{Engine: portable.New(), Cores: 1})
		if _, ok := errors.AsType[*verify.Refusal](err); !ok {
			t.Errorf("%s: %v", name, err)
		}
		if x != nil {
			x.Close()
		}
	}
}
