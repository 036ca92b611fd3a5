package linux

import (
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"

	"margay/nimble/isa"
	"margay/nimble/object"
	"margay/nimble/service"
	"margay/nimble/state"
	"margay/nimble/verify"
)

// TestPart translates a program with two functions that calls
// get_smp_processor_id.
func TestPart(t *testing.T) {
	spec := &object.Spec{Name: "test"}
	for _, line := range []string{"call 8", "jeq r0, 3, +2", "call_local +3", "exit", "mov r0, 9", "exit", "mov r0, 7", "exit"} {
		i, err := isa.Parse(line)
		if err != nil {
			t.Fatal(err)
		}
		spec.Instructions = isa.Append(spec.Instructions, i)
	}
	services, err := service.NewTable(service.Linux()...)
	if err != nil {
		t.Fatal(err)
	}
	program, err := verify.Verify(spec, verify.Config{Services: services, Context: verify.Context{Size: 360, Readable: true, Writable: true}})
	if err != nil {
		t.Fatal(err)
	}
	p, err := NewPart(program)
	if err != nil {
		t.Fatal(err)
	}
	code, starts, err := p.Functions(nil, 3)
	if err != nil {
		t.Fatal(err)
	}
	if len(starts) != 2 || starts[0] != 0 {
		t.Fatalf("functions begin at %v in\n%v", starts, code)
	}
	var core, length bool
	exits := 0
	for _, i := range code[:starts[1]] {
		switch {
		case i.OpCode == asm.Mov.Op(asm.ImmSource) && i.Dst == asm.R0 && i.Constant == 3:
			core = true
		case i.OpCode == asm.Mov.Op(asm.ImmSource) && i.Dst == asm.R2 && i.Constant == 360:
			length = true
		case i.OpCode.JumpOp() == asm.Exit && i.OpCode.Class().IsJump():
			exits++
		case i.IsBuiltinCall():
			t.Errorf("it calls %v", i)
		}
	}
	if !core || !length || exits != 2 {
		t.Errorf("core %v, length %v, %d exits in\n%v", core, length, exits, code)
	}
	if _, err := NewPart(&verify.Program{}); err == nil {
		t.Error("a program that nobody verified was taken")
	}
	if _, err := NewPart(verified(t, nil, "call_named 1", "exit")); err == nil {
		t.Error("a program with a service of its own was taken")
	}
	pointers := &object.Spec{
		Instructions: []isa.Instruction{{Code: isa.Exit.Row().Code}},
		Maps:         []state.Spec{{Name: "data", ValueSize: 16, Entries: 1}},
		Pointers:     []object.Pointer{{Map: "data", To: "data", Distance: 8}},
	}
	pointing, err := verify.Verify(pointers, verify.Config{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := NewPart(pointing); err == nil || !strings.Contains(err.Error(), "addresses") {
		t.Errorf("a program with addresses in its data: %v", err)
	}
}

func TestRefusal(t *testing.T) {
	log := []string{"a", "b", "R1 is bad", "at insn 3", "", "processed 9 insns"}
	err := Refusal(&ebpf.VerifierError{Cause: ebpf.ErrNotSupported, Log: log})
	if got := err.Error(); got != "b; R1 is bad; at insn 3 (not supported)" {
		t.Error(got)
	}
}
