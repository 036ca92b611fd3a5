package linux

import (
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"margay/nimble/engine"
	"margay/nimble/engine/enginetest"
	"margay/nimble/isa"
	"margay/nimble/memory"
	"margay/nimble/object"
	"margay/nimble/state"
	"margay/nimble/verify"
)

// verified assembles and verifies a program.
func verified(t *testing.T, maps []state.Spec, lines ...string) *verify.Program {
	t.Helper()
	spec := &object.Spec{Name: "test", Maps: maps, Externs: []string{"map_lookup_elem", "sum"}}
	for _, line := range lines {
		i, err := isa.Parse(line)
		if err != nil {
			t.Fatal(err)
		}
		spec.Instructions = isa.Append(spec.Instructions, i)
	}
	p, err := verify.Verify(spec, verify.Config{Services: enginetest.Services()})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// TestRefusals tests programs that are refused before the kernel sees them.
func TestRefusals(t *testing.T) {
	array := state.Spec{Name: "array", ValueSize: 8, Entries: 2}
	perCore := state.Spec{Name: "cores", Kind: state.PerCore, ValueSize: 8, Entries: 2}
	for _, c := range []struct {
		name   string
		spec   state.Spec
		shared bool
		lines  []string
		want   string
	}{
		{"service", array, false, []string{"mov r0, 0", "call 5", "exit"}, "insn=1: service 5 is not one that the kernel has"},
		{"named service", array, false, []string{"call_named 1", "exit"}, "insn=0: service sum is not one that the kernel has"},
		{"beginning", array, false, []string{"call_local -1", "exit"}, "insn=0: calls the program from its beginning"},
		{"per core", perCore, false, []string{"exit"}, `map "cores": the core of a per-core array is the event's`},
		{"shared", array, true, []string{"exit"}, `map "array": it is shared with other processes`},
		{"both", array, false, []string{"lddw_map r1, 0", "lddw_value r2, 0, 8", "exit"}, `map "array": the kernel has no address for the whole`},
		{"none", array, false, []string{"lddw_map r1, 0", "mov r2, r10", "call_named 0", "exit"}, ""},
	} {
		p := verified(t, []state.Spec{c.spec}, c.lines...)
		m, err := state.New(c.spec, state.Options{Cores: 1, Shared: c.shared})
		if err != nil {
			t.Fatal(err)
		}
		defer m.Close()
		_, err = uses(p, []*state.Map{m})
		if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.HasPrefix(err.Error(), c.want)) {
			t.Errorf("%s: %v", c.name, err)
		}
	}
	if _, err := (linux{}).Thread(&verify.Program{}, nil); err == nil {
		t.Error("a program that nobody verified was threaded")
	}
}

// TestProgramStays checks that translating does not change a program, which other
// engines may run.
func TestProgramStays(t *testing.T) {
	p := verified(t, []state.Spec{{Name: "array", ValueSize: 8, Entries: 2}},
		"lddw_map r1, 0", "lddw_value r2, 0, 8", "ldxdw r0, [r2]", "call_local +1", "exit", "exit")
	var before []verify.Instruction
	for slot := range p.Len() {
		before = append(before, *p.At(slot))
	}
	translate(p)
	for slot, want := range before {
		if got := *p.At(slot); got != want {
			t.Errorf("insn=%d is %+v, was %+v", slot, got, want)
		}
	}
}

func TestFrame(t *testing.T) {
	for want, lines := range map[int][]string{
		0:   {"mov r0, 1", "exit"},
		8:   {"ldxb r0, [r10-1]", "exit"},
		24:  {"stxdw [r10-8], r1", "stw [r10-20], 1", "exit"},
		512: {"mov r1, r10", "exit"},
	} {
		p := verified(t, nil, lines...)
		if got := frame(p, p.Function(0)); got != want {
			t.Errorf("%v: %d bytes, want %d", lines, got, want)
		}
	}
	p := verified(t, nil, "stxdw [r1], r10", "exit")
	if got := frame(p, p.Function(0)); got != verify.FrameSize {
		t.Errorf("a pointer that is stored: %d bytes", got)
	}
}

func TestReason(t *testing.T) {
	tr := translate(verified(t, nil, "lddw r1, 1", "jeq r1, r2, +1", "mov r0, 1", "exit"))
	log := []string{"R1 invalid mem access 'scalar'", "at insn 15", "not seen", "verification time 20 usec", "stack depth 0", "processed 3 insns (limit 1000000)"}
	for _, c := range []struct {
		err  error
		want string
	}{
		{&ebpf.VerifierError{Cause: unix.EACCES, Log: log}, "the kernel refuses it: R1 invalid mem access 'scalar', at insn=3 (permission denied)"},
		{&ebpf.VerifierError{Cause: unix.E2BIG, Log: log[3:]}, "the kernel refuses it: argument list too long"},
		{&ebpf.VerifierError{Cause: unix.EINVAL, Log: []string{"unreachable insn 99"}}, "the kernel refuses it: unreachable added insn (invalid argument)"},
		{unix.EPERM, "the kernel does not load it: operation not permitted"},
		{unix.EFAULT, "the kernel refuses it: too many branches are open at the same time (bad address)"},
	} {
		if got := tr.reason(c.err); got.Error() != c.want {
			t.Errorf("got %q, want %q", got, c.want)
		}
	}
}

// TestPromise runs a program with contexts that do not match its verify.Context.
func TestPromise(t *testing.T) {
	context, err := memory.Map("context", 16)
	if err != nil {
		t.Fatal(err)
	}
	defer context.Close()
	whole := context.Region(true)
	short, _ := whole.Slice("short", 0, 15)
	c := &code{context: verify.Context{Size: 16, Readable: true, Writable: true}}
	for _, each := range []struct {
		name    string
		context memory.Region
		r1      uint64
		good    bool
	}{
		{"as promised", whole, whole.Base, true},
		{"too short", short, short.Base, false},
		{"read-only", context.Region(false), whole.Base, false},
		{"elsewhere", whole, whole.Base + 8, false},
	} {
		m, err := engine.NewMachine(verified(t, nil, "exit"), nil, 1)
		if err != nil {
			t.Fatal(err)
		}
		defer m.Close()
		m.SetContext(each.context)
		m.Args[0] = each.r1
		if err := c.check(m); (err == nil) != each.good {
			t.Errorf("%s: %v", each.name, err)
		}
	}
}

func TestCallDepth(t *testing.T) {
	for want, lines := range map[int][]string{
		1: {"exit"},
		2: {"call_local +2", "call_local +1", "exit", "exit"},
		4: {"call_local +2", "call_local +3", "exit", "call_local +1", "exit", "call_local +1", "exit", "exit"},
	} {
		if got := callDepth(verified(t, nil, lines...)); got != want {
			t.Errorf("%v: %d, want %d", lines, got, want)
		}
	}
	c := &code{depth: 4}
	for allowed, good := range map[int]bool{3: false, 4: true} {
		if err := c.check(&engine.Machine{Frames: make([]engine.Frame, allowed-1)}); (err == nil) != good {
			t.Errorf("%d functions allowed: %v", allowed, err)
		}
	}
}

func TestJump(t *testing.T) {
	for distance, op := range map[int]isa.Op{1: isa.JA, 32767: isa.JA, 32768: isa.GotoL} {
		i := isa.Instruction{Code: isa.JA.Row().Code}
		if jump(&i, distance); i.Op() != op || int(i.Off)+int(i.Imm) != distance {
			t.Errorf("%d: %v", distance, i)
		}
	}
}

// TestNew makes the engine: that depends on the caller's capabilities, and there
// must be either an engine or an error.
func TestNew(t *testing.T) {
	has, err := capabilities()
	if err != nil {
		t.Fatal(err)
	}
	if e, err := New(); (err == nil) != has.effective(unix.CAP_BPF) || err == nil && e.Name() != "linux" {
		t.Errorf("%v, %v", e, err)
	}
	less := has
	less.drop(unix.CAP_BPF)
	less.drop(unix.CAP_CHOWN)
	if less.effective(unix.CAP_BPF) || less.effective(unix.CAP_CHOWN) {
		t.Errorf("dropped, and still there: %+v", less)
	}
	// The other capabilities of this thread are the same afterwards.
	if err := WithoutLeaks(func() error {
		now, err := capabilities()
		if now.effective(unix.CAP_PERFMON) || now.effective(unix.CAP_SYS_ADMIN) {
			t.Errorf("still there: %+v", now)
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
	if now, err := capabilities(); err != nil || now != has {
		t.Errorf("%+v, want %+v: %v", now, has, err)
	}
}
