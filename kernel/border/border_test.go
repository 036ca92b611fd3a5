package border

import (
	"reflect"
	"strings"
	"testing"

	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/btf"

	"margay/kernel/abi/slot"
)

// TestLayout compares the types here with the skeleton's.
func TestLayout(t *testing.T) {
	spec, err := readSpec()
	if err != nil {
		t.Fatal(err)
	}
	for name, ours := range map[string]reflect.Type{
		mapPeers: reflect.TypeFor[peer](), mapStates: reflect.TypeFor[common](), mapTallies: reflect.TypeFor[tally](), mapContexts: reflect.TypeFor[slot.PacketContext](),
	} {
		compare(t, name, ours, spec.Maps[name].Value)
	}
	compare(t, "end", reflect.TypeFor[end](), spec.Maps[mapPeers].Key)
}

// compare compares sizes and the offsets of all fields.
func compare(t *testing.T, what string, ours reflect.Type, theirs btf.Type) {
	t.Helper()
	size, err := btf.Sizeof(theirs)
	if err != nil || uintptr(size) != ours.Size() {
		t.Errorf("%s: %d bytes, in C %d, %v", what, ours.Size(), size, err)
	}
	layout, ok := btf.UnderlyingType(theirs).(*btf.Struct)
	if !ok || ours.Kind() != reflect.Struct {
		return
	}
	if ours.NumField() != len(layout.Members) {
		t.Errorf("%s: %v, in C %v", what, ours, layout)
		return
	}
	for i, m := range layout.Members {
		f := ours.Field(i)
		if f.Offset != uintptr(m.Offset.Bytes()) || f.Name != "_" && !strings.EqualFold(f.Name, strings.ReplaceAll(m.Name, "_", "")) {
			t.Errorf("%s: %s at %d, in C %s at %d", what, f.Name, f.Offset, m.Name, m.Offset.Bytes())
		}
		compare(t, what+"."+m.Name, f.Type, m.Type)
	}
}

// The functions of an extension stay as they are: they call each other by distance.
func TestSplice(t *testing.T) {
	spec, err := readSpec()
	if err != nil {
		t.Fatal(err)
	}
	code := func() asm.Instructions {
		call := asm.Instruction{OpCode: asm.OpCode(asm.JumpClass).SetJumpOp(asm.Call), Src: asm.PseudoCall, Constant: 1}
		return asm.Instructions{call, asm.Return(), asm.Mov.Imm(asm.R0, 1), asm.Return()}
	}
	out, err := splice(spec.Programs[programName].Instructions, []part{{code: code(), starts: []int{0, 2}}, {code: code(), starts: []int{0, 2}}}, spec.Maps[mapContexts].Value)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for i := range out {
		if name := out[i].Symbol(); strings.HasPrefix(name, "extension_") {
			names = append(names, name)
		}
	}
	if got := strings.Join(names, " "); got != "extension_0_0 extension_0_1 extension_1_0 extension_1_1" || len(out) < 14 || out[len(out)-4].Constant != 1 {
		t.Errorf("the program has %s", got)
	}
}
