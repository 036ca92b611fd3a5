package state

import (
	"bytes"
	"strings"
	"testing"

	"margay/nimble/memory"
)

func TestLayout(t *testing.T) {
	for _, c := range []struct {
		name   string
		spec   Spec
		cores  int
		size   uint64
		at1of0 uint64 // offset of element 1 on core 0
		at0of1 uint64 // offset of element 0 on core 1
	}{
		{"stride rounded up to 8", Spec{Name: "m", ValueSize: 5, Entries: 3}, 2, 24, 8, 0},
		{"exact stride", Spec{Name: "m", ValueSize: 16, Entries: 2}, 2, 32, 16, 0},
		{"per core on cache lines", Spec{Name: "m", Kind: PerCore, ValueSize: 4, Entries: 9}, 2, 256, 8, 128},
	} {
		m, err := New(c.spec, Options{Cores: c.cores})
		if err != nil {
			t.Fatalf("%s: %v", c.name, err)
		}
		defer m.Close()
		if got := m.Region().Length; got != c.size {
			t.Errorf("%s: %d bytes, want %d", c.name, got, c.size)
		}
		if got, _ := m.Element(0, 1); got-m.Region().Base != c.at1of0 {
			t.Errorf("%s: element 1 is at %d, want %d", c.name, got-m.Region().Base, c.at1of0)
		}
		if got, ok := m.Element(1, 0); !ok || got-m.Region().Base != c.at0of1 {
			t.Errorf("%s: core 1 is at %d, want %d", c.name, got-m.Region().Base, c.at0of1)
		}
		if _, ok := m.Element(0, c.spec.Entries); ok {
			t.Errorf("%s: an element past the end", c.name)
		}
		if _, ok := m.Element(c.cores, 0); ok && c.spec.Kind == PerCore {
			t.Errorf("%s: a core past the end", c.name)
		}
	}
}

func TestContents(t *testing.T) {
	m, err := New(Spec{Name: "m", Kind: PerCore, ValueSize: 4, Entries: 2, ReadOnly: true, Contents: []byte{1, 2, 3, 4, 5}}, Options{Cores: 3})
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	for core := range 3 {
		if v, ok := m.Value(core, 0); !ok || !bytes.Equal(v, []byte{1, 2, 3, 4}) {
			t.Errorf("core %d starts with %v", core, v)
		}
	}
	if m.Region().Writable {
		t.Error("a read-only map is writable")
	}
}

func TestGivenMemory(t *testing.T) {
	mem, err := memory.Create("given", 64)
	if err != nil {
		t.Fatal(err)
	}
	defer mem.Close()
	mem.Bytes()[0] = 9
	m, err := New(Spec{Name: "m", ValueSize: 8, Entries: 4, Contents: []byte{1}}, Options{Memory: mem})
	if err != nil {
		t.Fatal(err)
	}
	if v, _ := m.Value(0, 0); v[0] != 9 {
		t.Error("given memory was initialised")
	}
	if r := m.Region(); r.Length != 32 || r.Name != "m" {
		t.Errorf("region %+v", r)
	}
	if err := m.Close(); err != nil {
		t.Fatal(err)
	}
	if mem.Bytes()[0] != 9 {
		t.Error("given memory was released")
	}
	if _, err := New(Spec{Name: "m", ValueSize: 8, Entries: 9}, Options{Memory: mem}); err == nil || !strings.Contains(err.Error(), "need 72") {
		t.Errorf("too small memory: %v", err)
	}
}

func TestShared(t *testing.T) {
	m, err := New(Spec{Name: "m", ValueSize: 8, Entries: 1}, Options{Shared: true})
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	if _, ok := m.Memory().FD(); !ok {
		t.Error("shared map without a descriptor")
	}
}

func TestRefused(t *testing.T) {
	for _, c := range []struct {
		spec  Spec
		cores int
	}{
		{Spec{ValueSize: 1, Entries: 1}, 1},
		{Spec{Name: "m", Kind: 7, ValueSize: 1, Entries: 1}, 1},
		{Spec{Name: "m", Entries: 1}, 1},
		{Spec{Name: "m", ValueSize: 1}, 1},
		{Spec{Name: "m", ValueSize: ^uint32(0), Entries: ^uint32(0)}, 1},
		{Spec{Name: "m", ValueSize: 8, Entries: 1, Contents: make([]byte, 9)}, 1},
		{Spec{Name: "m", Kind: PerCore, ValueSize: 1, Entries: 1}, 0},
		{Spec{Name: "m", Kind: PerCore, ValueSize: 1 << 30, Entries: 60}, 100},
	} {
		if m, err := New(c.spec, Options{Cores: c.cores}); err == nil {
			m.Close()
			t.Errorf("%+v on %d cores was accepted", c.spec, c.cores)
		}
	}
}
