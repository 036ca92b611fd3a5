package linux

import (
	"bytes"
	"fmt"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"margay/nimble/memory"
)

// twinSpec describes a map in the kernel, an array.
type twinSpec struct {
	name          string
	size, entries uint32 // bytes of an element, number of elements
	writable      bool   // by the program
}

// twin is the kernel's copy of a map or context.
type twin struct {
	*ebpf.Map
	memory *ebpf.Memory // nil: not mapped, because the program may not write it
	stride int          // bytes from one element to the next
	has    []byte       // contents of a twin that is not mapped; nil: not written yet
}

func newTwin(s twinSpec) (*twin, error) {
	spec := &ebpf.MapSpec{Type: ebpf.Array, KeySize: 4, ValueSize: s.size, MaxEntries: s.entries}
	if s.writable {
		spec.Flags = unix.BPF_F_MMAPABLE
	} else {
		spec.Flags = unix.BPF_F_RDONLY_PROG
	}
	m, err := ebpf.NewMap(spec)
	if err != nil {
		return nil, fmt.Errorf("map %q in the kernel: %w", s.name, err)
	}
	t := &twin{Map: m, stride: int(s.size+7) &^ 7}
	if s.writable {
		if t.memory, err = m.Memory(); err != nil {
			m.Close()
			return nil, fmt.Errorf("map %q in the kernel: %w", s.name, err)
		}
	}
	return t, nil
}

// in copies bytes into the kernel's map, from its beginning on.
func (t *twin) in(b []byte) error {
	if t.memory != nil {
		_, err := t.memory.WriteAt(b, 0)
		return err
	}
	if t.has != nil && bytes.Equal(t.has, b) {
		return nil
	}
	t.has = bytes.Clone(b)
	for index := uint32(0); len(b) > 0; index++ {
		value := make([]byte, t.ValueSize())
		copy(value, b)
		if err := t.Put(index, value); err != nil {
			return err
		}
		b = b[min(t.stride, len(b)):]
	}
	return nil
}

// out copies the map into b, unless the program cannot write the map.
func (t *twin) out(b []byte) error {
	if t.memory == nil {
		return nil
	}
	_, err := t.memory.ReadAt(b, 0)
	return err
}

// view returns the bytes of a region.
func view(r memory.Region) []byte { return memory.View(r.Base, r.Length) }
