package enginetest

import (
	"encoding/hex"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"reflect"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"margay/nimble/engine"
	"margay/nimble/isa"
	"margay/nimble/memory"
	"margay/nimble/object"
	"margay/nimble/state"
	"margay/nimble/verify"
)

// Seeded returns a source of random numbers. Its seed is logged, and taken from
// MARGAY_SEED if that is set.
func Seeded(t testing.TB) *rand.Rand {
	t.Helper()
	seed := rand.Uint64()
	if s := os.Getenv("MARGAY_SEED"); s != "" {
		var err error
		if seed, err = strconv.ParseUint(s, 0, 64); err != nil {
			t.Fatal(err)
		}
	}
	t.Logf("MARGAY_SEED=%d", seed)
	return rand.New(rand.NewPCG(seed, 0))
}

// Programs returns the number of random programs of a test: MARGAY_PROGRAMS, or n.
func Programs(t testing.TB, n int) int {
	t.Helper()
	if s := os.Getenv("MARGAY_PROGRAMS"); s != "" {
		var err error
		if n, err = strconv.Atoi(s); err != nil {
			t.Fatal(err)
		}
	}
	return n
}

// TestAgreement compares two engines on random programs, as Agree does: Programs
// of them, and then more until MARGAY_AGREE, a duration, is over.
func TestAgreement(t *testing.T, oracle, e engine.Engine, programs int) {
	programs = Programs(t, programs)
	end := time.Now()
	if s := os.Getenv("MARGAY_AGREE"); s != "" {
		d, err := time.ParseDuration(s)
		if err != nil {
			t.Fatal(err)
		}
		end = end.Add(d)
	}
	r := Seeded(t)
	data := make([]byte, 400)
	ends := make(map[string]int)
	n := 0
	for ; n < programs || time.Now().Before(end); n++ {
		for i := range data {
			data[i] = byte(r.Uint32())
		}
		if n%2 == 0 {
			ends[Agree(t, oracle, e, data)]++
		} else {
			ends[AgreeOnce(t, oracle, e, data)]++
		}
		if t.Failed() {
			t.Fatalf("program %d", n)
		}
	}
	t.Logf("%d programs, ends: %v", n, ends)
}

// Agree generates a program from bytes and runs it on two engines, with the
// same machine in the same memory: result or fault, fuel and all memory must be
// the same. A program that does not end in a memory fault does the same as a
// trusted program, so it is also compared as one. Agree returns how it ended.
func Agree(t testing.TB, oracle, e engine.Engine, data []byte) string {
	t.Helper()
	fuel := uint64(2000)
	if len(data) > 0 {
		fuel = 1 + uint64(data[len(data)-1])*16
	}
	return agree(t, oracle, e, Generate(data), verify.Context{}, fuel)
}

// AgreeOnce is Agree with a program of GenerateOnce. Its fuel is more than enough,
// or about as much as it needs.
func AgreeOnce(t testing.TB, oracle, e engine.Engine, data []byte) string {
	t.Helper()
	spec := GenerateOnce(data)
	fuel := uint64(2000)
	if n := len(data); n > 0 && data[n-1]%2 == 1 {
		fuel = uint64(data[n-1]) * uint64(len(spec.Instructions)+2) / 255
	}
	return agree(t, oracle, e, spec, verify.Context{Size: replicaContext, Readable: true, Writable: true}, fuel)
}

// agree is Agree on one program.
func agree(t testing.TB, oracle, e engine.Engine, spec *object.Spec, promise verify.Context, fuel uint64) string {
	t.Helper()
	r := newReplica(t, spec, promise)
	defer r.close(t)
	want := r.run(t, oracle, false, fuel)
	r.compare(t, want, r.run(t, e, false, fuel), "checked")
	if want["kind"] != string(engine.Memory) {
		r.compare(t, want, r.run(t, e, true, fuel), "trusted")
	}
	if want["kind"] != "" {
		return want["kind"]
	}
	return "exit"
}

// replica is a program with one set of memory for all engines. It is closed as
// soon as possible, because a test makes many.
type replica struct {
	code     []isa.Instruction
	programs map[bool]*verify.Program // by trust
	*room
	machine *engine.Machine
	stack   []byte // all of it
}

// room is the memory of a replica apart from its stack.
type room struct {
	specs   []state.Spec
	maps    []*state.Map
	context *memory.Memory
}

// spare is the room of the last replica that was closed, or nil. Mapping memory
// takes longer than most programs, and programs of a test have the same maps.
// Runs set the memory to its initial state, see once.
var spare atomic.Pointer[room]

// takeRoom returns a room with some maps.
func takeRoom(t testing.TB, specs []state.Spec) *room {
	t.Helper()
	if last := spare.Swap(nil); last != nil {
		if reflect.DeepEqual(last.specs, specs) {
			return last
		}
		last.close(t)
	}
	m := &room{specs: specs}
	for _, spec := range specs {
		each, err := state.New(spec, state.Options{Cores: cores})
		if err != nil {
			t.Fatal(err)
		}
		m.maps = append(m.maps, each)
	}
	var err error
	if m.context, err = memory.Map("context", replicaContext); err != nil {
		t.Fatal(err)
	}
	return m
}

func (m *room) close(t testing.TB) {
	t.Helper()
	for _, each := range m.maps {
		if err := each.Close(); err != nil {
			t.Error(err)
		}
	}
	if err := m.context.Close(); err != nil {
		t.Error(err)
	}
}

const (
	replicaDepth   = 4
	replicaContext = 64 // bytes
)

func newReplica(t testing.TB, spec *object.Spec, promise verify.Context) *replica {
	t.Helper()
	r := &replica{code: spec.Instructions, programs: make(map[bool]*verify.Program)}
	var err error
	for _, trusted := range []bool{false, true} {
		r.programs[trusted], err = verify.Verify(spec, verify.Config{Services: Services(), Trusted: trusted, Context: promise})
		if err != nil {
			t.Fatalf("refused: %v\n%v", err, spec.Instructions)
		}
	}
	r.room = takeRoom(t, spec.Maps)
	if r.machine, err = engine.NewMachine(r.programs[false], r.maps, replicaDepth); err != nil {
		t.Fatal(err)
	}
	r.stack = memory.View(r.machine.SP-replicaDepth*verify.FrameSize, replicaDepth*verify.FrameSize)
	return r
}

// close keeps the room for the next replica.
func (r *replica) close(t testing.TB) {
	t.Helper()
	if before := spare.Swap(r.room); before != nil { // of another goroutine
		before.close(t)
	}
	if err := r.machine.Close(); err != nil {
		t.Error(err)
	}
}

// run runs the program twice on an engine. State that the first run leaves must
// not affect the second.
func (r *replica) run(t testing.TB, e engine.Engine, trusted bool, fuel uint64) map[string]string {
	t.Helper()
	code, err := e.Thread(r.programs[trusted], r.maps)
	if err != nil {
		t.Fatal(err)
	}
	defer code.Close()
	first := r.once(code, fuel)
	if again := r.once(code, fuel); !maps.Equal(first, again) {
		t.Errorf("%s: first %v, then %v", e.Name(), readable(first), readable(again))
	}
	return first
}

// once runs code with memory in its initial state.
func (r *replica) once(code engine.Code, fuel uint64) map[string]string {
	m := r.machine
	for i := range r.context.Bytes() {
		r.context.Bytes()[i] = byte(i)
	}
	clear(r.maps[0].Memory().Bytes())
	clear(r.stack)
	m.SetContext(r.context.Region(true))
	m.Args = [5]uint64{m.Context().Base, m.Context().Length}
	m.Fuel = fuel
	r0, err := code.Run(m)
	got := outcome(&Rig{Maps: r.maps, Machine: m, Context: r.context}, r0, err)
	got["stack"] = string(r.stack)
	if err != nil {
		got["error"] = err.Error()
	}
	return got
}

func (r *replica) compare(t testing.TB, want, got map[string]string, version string) {
	t.Helper()
	if maps.Equal(want, got) {
		return
	}
	want, got = readable(want), readable(got)
	for name, v := range want {
		if got[name] != v {
			t.Errorf("%s: %s is %s, want %s", version, name, got[name], v)
		}
	}
	listing := ""
	for slot, i := range r.code {
		listing += fmt.Sprintf("%4d %v\n", slot, i)
	}
	t.Errorf("%s: got %v in\n%s", version, got, listing)
}

// readable returns an outcome with its stack in hexadecimal digits. Most outcomes
// are only compared.
func readable(outcome map[string]string) map[string]string {
	outcome = maps.Clone(outcome)
	outcome["stack"] = hex.EncodeToString([]byte(outcome["stack"]))
	return outcome
}
