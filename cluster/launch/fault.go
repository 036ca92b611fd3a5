package launch

import (
	"fmt"
	"slices"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"

	"margay/cluster/control"
	"margay/cluster/symbol"
)

// about lists the signals that are about an address.
var about = []unix.Signal{unix.SIGSEGV, unix.SIGBUS, unix.SIGILL}

// divisions are the values of si_code of SIGFPE that need words (sigaction(2)).
var divisions = map[int32]string{1: " (integer division by zero)", 3: " (division by zero)"}

// describeFault says what a signal that has ended a rank was about, and where the rank was.
func describeFault(exit *control.ExitStatus) string {
	f := exit.GetFault()
	if f == nil {
		return ""
	}
	text := ""
	sig := unix.Signal(exit.Signal)
	switch {
	case f.Code <= 0 || f.Code == siKernel: // sent by a process, or without an address
	case slices.Contains(about, sig):
		text = fmt.Sprintf(" (address %#x)", f.Address)
	case sig == unix.SIGFPE:
		text = divisions[f.Code]
	}
	return text + placed.of(f)
}

// placed are the texts of places that were named: the ranks of a job often fault at the same place,
// and debug information takes long to read.
var placed placeTexts

type placeTexts struct {
	mu    sync.Mutex
	texts map[string]string // by files and stack, encoded
}

// maxPlaceTexts bounds how many are remembered.
const maxPlaceTexts = 1024

// of returns the text of a place.
func (p *placeTexts) of(f *control.RankFault) string {
	key, err := proto.MarshalOptions{Deterministic: true}.Marshal(&control.RankFault{Files: f.Files, Stack: f.Stack})
	if err != nil {
		return ""
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	text, known := p.texts[string(key)]
	if !known {
		table := symbol.NewTable()
		defer table.Close()
		if text = placeOf(table.Stack(f.Files, f.Stack)); p.texts == nil || len(p.texts) >= maxPlaceTexts {
			p.texts = make(map[string]string)
		}
		p.texts[string(key)] = text
	}
	return text
}

// placeOf says where a rank was: in its own code, or in a function of a library that its own code
// has called.
func placeOf(frames []symbol.Frame) string {
	if len(frames) == 0 {
		return ""
	}
	own := slices.IndexFunc(frames, func(f symbol.Frame) bool { return f.Known() && !ofSystem(f.Module) && !ofSystem(f.File) })
	if own < 0 {
		own = max(0, slices.IndexFunc(frames, func(f symbol.Frame) bool { return f.Module != "" && !ofSystem(f.Module) }))
	}
	if own == 0 {
		return " at " + frames[0].String()
	}
	called := frames[own-1]
	called.File = "" // its line does not help
	return fmt.Sprintf(" in %v, called at %v", called, frames[own])
}

// ofSystem reports whether a file is of the distribution, such as a header of the C++ library, and
// not the user's own code.
func ofSystem(file string) bool {
	return slices.ContainsFunc([]string{"/lib/", "/lib64/", "/usr/lib/", "/usr/lib64/", "/usr/include/"}, func(dir string) bool { return strings.HasPrefix(file, dir) })
}

// siKernel is the si_code of a fault that the processor gives no address of.
const siKernel = 0x80

// alike returns a rank with a known place that the same signal has ended, if the place of r is
// unknown: ranks that fault at the same time in one folder can overwrite each other's dump.
func alike(ranks []*control.RankState, r *control.RankState) *control.RankState {
	if r.Exit.GetSignal() == 0 || r.Exit.Fault != nil {
		return nil
	}
	for _, other := range ranks {
		if other.Exit.GetSignal() == r.Exit.Signal && other.Exit.Fault != nil {
			return other
		}
	}
	return nil
}
