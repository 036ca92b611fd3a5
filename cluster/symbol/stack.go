package symbol

import (
	"fmt"
	"path"
	"strings"

	"margay/cluster/control"
	"margay/internal/printable"
	"margay/kernel/stack"
)

// Frame is a frame of a stack with its names.
type Frame struct {
	Place
	Module  string // path of the executable or library; empty: code without a file
	Address uint64 // in the numbers of the file
}

// String writes a frame for people: work() in main.c:12, or +0x1139 in libc.so.6.
func (f Frame) String() string {
	name := f.Function
	switch {
	case name == "":
		name = fmt.Sprintf("%#x", f.Address)
	case !strings.HasSuffix(name, ")"):
		name += "()"
	}
	switch {
	case f.File != "" && f.Line > 0:
		name += fmt.Sprintf(" in %s:%d", path.Base(f.File), f.Line)
	case f.Module != "":
		name += " in " + path.Base(f.Module)
	}
	return printable.Line(name)
}

// Stack names the frames of a stack, innermost first. An address in inlined code becomes several
// frames. Frames beyond the bound of a correct node
// are left out.
func (t *Table) Stack(files []*control.CodeFile, s *control.CodeStack) (frames []Frame) {
	addresses := s.GetAddresses()
	for i, addr := range addresses[:min(len(addresses), stack.MaxFrames)] {
		f := Frame{Address: addr}
		var places []Place
		if i < len(s.Files) && s.Files[i] >= 0 && int(s.Files[i]) < len(files) {
			file := files[s.Files[i]]
			f.Module = file.Path
			places = t.Places(file.Path, file.Build, addr)
		}
		if len(places) == 0 {
			frames = append(frames, f)
		}
		for _, f.Place = range places {
			frames = append(frames, f)
		}
	}
	return frames
}

// Known reports whether the line of the source is known.
func (p Place) Known() bool { return p.File != "" && p.Line > 0 }
