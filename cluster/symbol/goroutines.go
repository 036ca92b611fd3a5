package symbol

import (
	"debug/dwarf"

	"margay/cluster/control"
)

// GoLayout returns where Go's runtime keeps the goroutines of a program, nil if the file is none
// that was built by Go with debug information.
func (t *Table) GoLayout(file *control.CodeFile) *control.GoLayout {
	f := t.file(file.Path, file.Build)
	if f == nil || f.lines == nil || f.debug == nil {
		return nil
	}
	l := &control.GoLayout{File: file}
	defer func() { _ = recover() }() // a damaged file: l is not returned
	for _, e := range f.elfs {
		symbols, err := e.Symbols()
		if err != nil {
			continue
		}
		for _, s := range symbols {
			if s.Name == "runtime.allgs" {
				l.All = s.Value
			}
		}
	}
	g := f.structure("runtime.g")
	if l.All == 0 || g == nil {
		return nil
	}
	found := 0
	for _, field := range g.Field {
		kind := field.Type
		if named, ok := kind.(*dwarf.TypedefType); ok {
			kind = named.Type
		}
		switch inner, _ := kind.(*dwarf.StructType); {
		case field.Name == "atomicstatus":
			l.Status = uint64(field.ByteOffset)
			found++
		case field.Name == "sched" && inner != nil:
			for _, r := range inner.Field {
				if at := map[string]*uint64{"sp": &l.Sp, "pc": &l.Pc, "bp": &l.Bp}[r.Name]; at != nil {
					*at = uint64(field.ByteOffset + r.ByteOffset)
					found++
				}
			}
		}
	}
	if found < 4 {
		return nil
	}
	return l
}

// structure returns a type of Go's runtime, nil if the debug information does not have it.
func (f *file) structure(name string) *dwarf.StructType {
	r := f.debug.Reader()
	for {
		unit, err := r.Next()
		if err != nil || unit == nil {
			return nil
		}
		if unit.Tag != dwarf.TagCompileUnit || unit.Val(dwarf.AttrName) != "runtime" {
			r.SkipChildren()
			continue
		}
		for {
			e, err := r.Next()
			if err != nil || e == nil || e.Tag == 0 {
				break
			}
			if e.Tag == dwarf.TagStructType && e.Val(dwarf.AttrName) == name {
				t, err := f.debug.Type(e.Offset)
				s, _ := t.(*dwarf.StructType)
				if err != nil {
					return nil
				}
				return s
			}
			r.SkipChildren()
		}
	}
}
