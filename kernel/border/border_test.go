package border

import (
	"reflect"
	"strings"
	"testing"

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
