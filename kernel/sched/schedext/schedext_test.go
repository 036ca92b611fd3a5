package schedext

import (
	"reflect"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/btf"

	"margay/kernel/abi/slot"
)

func readTestSpec(t *testing.T) *ebpf.CollectionSpec {
	t.Helper()
	spec, err := readSpec()
	if err != nil {
		t.Fatal(err)
	}
	return spec
}

// TestLayout compares the types here with the skeleton's.
func TestLayout(t *testing.T) {
	spec := readTestSpec(t)
	for name, ours := range map[string]reflect.Type{
		"given": reflect.TypeFor[given](), "cores": reflect.TypeFor[coreState](), "threads": reflect.TypeFor[identity](),
		"endings": reflect.TypeFor[ending](), "keeps": reflect.TypeFor[keep](), "contexts": reflect.TypeFor[slot.SchedContext](),
	} {
		compare(t, name, ours, spec.Maps[name].Value)
	}
	var e *btf.Struct
	if err := spec.Types.TypeByName("event", &e); err != nil {
		t.Fatal(err)
	}
	compare(t, "event", reflect.TypeFor[event](), e)
}

// compare compares sizes and the offsets of all fields.
func compare(t *testing.T, what string, ours reflect.Type, theirs btf.Type) {
	t.Helper()
	size, err := btf.Sizeof(theirs)
	if err != nil || uintptr(size) != ours.Size() {
		t.Errorf("%s: %d bytes, in C %d, %v", what, ours.Size(), size, err)
	}
	switch theirs := btf.UnderlyingType(theirs).(type) {
	case *btf.Struct:
		if ours.Kind() != reflect.Struct || ours.NumField() != len(theirs.Members) {
			t.Errorf("%s: %v, in C %v", what, ours, theirs)
			return
		}
		for i, m := range theirs.Members {
			f := ours.Field(i)
			if f.Offset != uintptr(m.Offset.Bytes()) || f.Name != "_" && !strings.EqualFold(f.Name, strings.ReplaceAll(m.Name, "_", "")) {
				t.Errorf("%s: %s at %d, in C %s at %d", what, f.Name, f.Offset, m.Name, m.Offset.Bytes())
			}
			compare(t, what+"."+m.Name, f.Type, m.Type)
		}
	case *btf.Array:
		if ours.Kind() == reflect.Array {
			compare(t, what+"[0]", ours.Elem(), theirs.Type)
		}
	}
}

func TestBootLine(t *testing.T) {
	for line, good := range map[string]bool{
		"console=ttyS0":                        true,
		"isolcpus=managed_irq,1 nohz_full=1":   true,
		"isolcpus=managed_irq,domain,1":        false,
		"quiet isolcpus=1-3":                   false,
		"isolcpus=domain,1":                    false,
		"isolcpus=nohz,managed_irq,1 quiet":    true,
		"nohz_full=1 rcu_nocbs=1 skew_tick=1":  true,
		"isolcpus=managed_irq,1 isolcpus=nohz": true,
	} {
		err := checkBoot(line)
		if (err == nil) != good {
			t.Errorf("%q: %v", line, err)
		}
		if err != nil && !strings.Contains(err.Error(), "profile sched") {
			t.Errorf("%q: no way out in: %v", line, err)
		}
	}
}

// TestSplice puts two policies into the skeleton's program.
func TestSplice(t *testing.T) {
	program := readTestSpec(t).Programs["policy"].Instructions
	two := func() part {
		return part{
			code: asm.Instructions{
				asm.Mov.Imm(asm.R0, 1), asm.Return(),
				asm.Mov.Imm(asm.R0, 2), asm.Return(),
			},
			starts: []int{0, 2}, kept: 9,
		}
	}
	out, err := splice(program, 7, []part{two(), two()})
	if err != nil {
		t.Fatal(err)
	}
	offsets, err := out.SymbolOffsets()
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"policy", "chain", "ask", "judge", "policy_0_0", "policy_0_1", "policy_1_0", "policy_1_1"} {
		at, ok := offsets[name]
		if !ok {
			t.Errorf("no function %s", name)
			continue
		}
		if f := btf.FuncMetadata(&out[at]); f == nil || f.Name != name {
			t.Errorf("function %s is described as %v", name, f)
		}
	}
	for name := range out.ReferenceOffsets() {
		if _, ok := offsets[name]; !ok && strings.HasPrefix(name, "policy_") {
			t.Errorf("%s is called and is not there", name)
		}
	}
	if _, err := splice(out[offsets["policy_0_0"]:], 7, nil); err == nil {
		t.Error("a program without a chain was taken")
	}
}
