package task

import (
	"bytes"
	"fmt"
	"strings"

	"margay/kernel/abi/id"
	"margay/kernel/link"
)

// Exec is what the ranks of a job execute. Its strings are what execve takes: bytes in no encoding,
// without a NUL.
//
// A job init receives them separately, as the payload of Strings: they may be 2 MiB, more than a
// packet holds, and JSON would change strings that are not UTF-8. Each string is followed by a NUL:
// the path and the folder, the arguments, the variables; of each part the path, the arguments and
// the variables. Pieces end anywhere.
type Exec struct {
	Path string   // the executable, an absolute path in the job's root
	Dir  string   // its working directory, an absolute path in the job's root
	Argv []string // its arguments, the program's name first
	Env  []string // its environment, without what a rank adds

	// Parts are further programs of the job, in the order of their ranks.
	Parts []Part
}

// Part is the program of the ranks from First on, up to the next part.
type Part struct {
	First id.Rank
	Path  string   // like Exec.Path
	Argv  []string // like Exec.Argv
	Env   []string // added to the job's environment
}

// Program returns what a rank executes: its path, its arguments, and its additions to the
// environment.
func (e *Exec) Program(rank id.Rank) (path string, argv, env []string) {
	path, argv = e.Path, e.Argv
	for _, p := range e.Parts {
		if rank >= p.First {
			path, argv, env = p.Path, p.Argv, p.Env
		}
	}
	return path, argv, env
}

// CreateBody describes a job to its init, which has got the strings of its Exec before.
type CreateBody struct {
	Spec      Spec
	Arguments int // how many
	Variables int
	Parts     []PartBody `json:",omitempty"`
}

// PartBody describes a Part.
type PartBody struct {
	First                id.Rank
	Arguments, Variables int
}

// pack returns the request for the job's init, and the strings that go ahead of it.
func (s Spec) pack() (create link.Message, packed []byte, err error) {
	body := CreateBody{Spec: s, Arguments: len(s.Argv), Variables: len(s.Env)}
	lists := [][]string{{s.Path, s.Dir}, s.Argv, s.Env}
	for _, p := range s.Parts {
		lists = append(lists, []string{p.Path}, p.Argv, p.Env)
		body.Parts = append(body.Parts, PartBody{p.First, len(p.Argv), len(p.Env)})
	}
	for _, list := range lists {
		for _, text := range list {
			if strings.IndexByte(text, 0) >= 0 {
				return create, nil, fmt.Errorf("argument, variable or path %.40q has a NUL byte, which ends it for Linux", text)
			}
			packed = append(append(packed, text...), 0)
		}
	}
	return link.New(Create, body), packed, nil
}

// Unpack returns the specification with its Exec, of the payload of all Strings.
func (b CreateBody) Unpack(packed []byte) (Spec, error) {
	s := b.Spec
	lists := bytes.Split(packed, []byte{0}) // the last one is what follows the last NUL: nothing
	left := lists[:len(lists)-1]
	ok := len(lists[len(left)]) == 0
	next := func(n int) (list []string) {
		if ok = ok && n >= 0 && n <= len(left); !ok {
			return nil
		}
		for _, text := range left[:n] {
			list = append(list, string(text))
		}
		left = left[n:]
		return list
	}
	if own := next(2); ok {
		s.Exec = Exec{Path: own[0], Dir: own[1], Argv: next(b.Arguments), Env: next(b.Variables)}
	}
	for _, p := range b.Parts {
		if path := next(1); ok {
			s.Parts = append(s.Parts, Part{First: p.First, Path: path[0], Argv: next(p.Arguments), Env: next(p.Variables)})
		}
	}
	if !ok || len(left) > 0 {
		return b.Spec, fmt.Errorf("%d strings of %d bytes have come for a path, a folder, %d arguments, %d variables and %d parts",
			len(lists)-1, len(packed), b.Arguments, b.Variables, len(b.Parts))
	}
	return s, nil
}
