package stack

import (
	"encoding/binary"
	"fmt"
	"slices"
	"strings"
)

// Report is where the ranks of a job are on one node. Equal stacks are there once.
type Report struct {
	Modules []Module
	Groups  []Group
	Unread  []Unread
	Left    int // threads that are left out
}

// Group is a stack, and the ranks that have it.
type Group struct {
	Stack Stack
	Cut   bool
	Ranks []Member

	Goroutine bool // as in Threads
}

// Member is a rank with threads in a group.
type Member struct {
	Rank    uint32
	Threads int
	Main    bool // its first thread is one of them
}

// Unread is a rank that could not be read.
type Unread struct {
	Rank uint32
	Why  string
}

// Bounds of a report, which keep it far below what a frame of the control protocol holds.
const (
	maxReportFrames = 20000 // in all groups
	maxGroups       = 2000
	maxMembers      = 50000     // in all groups
	maxPaths        = 512 << 10 // bytes of the paths of modules
)

// Builder makes a report.
type Builder struct {
	Report
	groups  map[string]int // by their stacks
	modules map[string]int // by path and build id
	frames  int
	members int
	paths   int
}

// NewBuilder makes an empty report.
func NewBuilder() *Builder {
	return &Builder{groups: make(map[string]int), modules: make(map[string]int)}
}

// Add adds a rank. Ranks must come in ascending order.
func (b *Builder) Add(rank uint32, p *Process) {
	b.Left += p.Left
	for _, t := range p.Threads {
		stack := b.renumber(t.Stack, p.Modules)
		k := key(stack, t.Cut, t.Goroutine)
		i, known := b.groups[k]
		switch {
		case b.members == maxMembers, !known && (len(b.Groups) == maxGroups || b.frames+len(stack) > maxReportFrames):
			b.Left += t.Count
			continue
		case !known:
			i = len(b.Groups)
			b.groups[k] = i
			b.Groups = append(b.Groups, Group{Stack: stack, Cut: t.Cut, Goroutine: t.Goroutine})
			b.frames += len(stack)
		}
		b.members++
		g := &b.Groups[i]
		g.Ranks = append(g.Ranks, Member{Rank: rank, Threads: t.Count, Main: t.Main})
	}
}

// Fail notes that a rank could not be read.
func (b *Builder) Fail(rank uint32, err error) {
	b.Unread = append(b.Unread, Unread{rank, err.Error()})
}

// renumber returns a stack with this report's numbers of modules.
func (b *Builder) renumber(stack Stack, modules []Module) Stack {
	out := slices.Clone(stack)
	for i, f := range out {
		if f.Module >= 0 && f.Module < len(modules) {
			out[i].Module = b.module(modules[f.Module])
		}
	}
	return out
}

// module returns this report's number of a module, -1 if there is no room for it.
func (b *Builder) module(m Module) int {
	key := m.Path + "\x00" + string(m.Build)
	i, known := b.modules[key]
	if !known {
		if b.paths += len(m.Path); b.paths > maxPaths {
			return -1
		}
		i = len(b.Modules)
		b.modules[key] = i
		b.Modules = append(b.Modules, m)
	}
	return i
}

// key is the same for equal stacks.
func key(s Stack, cut, goroutine bool) string {
	var k strings.Builder
	fmt.Fprint(&k, cut, goroutine)
	for _, f := range s {
		var word [10]byte
		binary.LittleEndian.PutUint16(word[:], uint16(f.Module))
		binary.LittleEndian.PutUint64(word[2:], f.Addr)
		k.Write(word[:])
	}
	return k.String()
}

// Shorten bounds the frames of a fault, and the bytes of the paths of their modules: further frames
// are left out.
func (f *Fault) Shorten(frames, paths int) {
	b := NewBuilder()
	stack := f.Stack[:min(frames, len(f.Stack))]
	for i, frame := range stack {
		if frame.Module >= 0 && frame.Module < len(f.Modules) {
			before := len(b.Modules)
			frame.Module = b.module(f.Modules[frame.Module])
			if len(b.Modules) > before {
				paths -= len(b.Modules[before].Path)
			}
			if paths < 0 {
				stack, b.Modules = stack[:i], b.Modules[:before]
				break
			}
			stack[i] = frame
		}
	}
	f.Stack, f.Modules = stack, b.Modules
}
