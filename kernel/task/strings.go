package task

import (
	"bytes"
	"fmt"
	"strings"

	"margay/kernel/link"
)

// Exec is what the ranks of a job execute. Its strings are what execve takes: bytes in no encoding,
// without a NUL.
//
// A job init receives them separately, as the payload of Strings: they may be 2 MiB, more than a
// packet holds, and JSON would change strings that are not UTF-8. Each string is followed by a NUL:
// the path and the folder, the arguments, the variables. Pieces end anywhere.
type Exec struct {
	Path string   // the executable, an absolute path in the job's root
	Dir  string   // its working directory, an absolute path in the job's root
	Argv []string // its arguments, the program's name first
	Env  []string // its environment, without what a rank adds
}

// CreateBody describes a job to its init, which has got the strings of its Exec before.
type CreateBody struct {
	Spec      Spec
	Arguments int // how many
	Variables int
}

// pack returns the request for the job's init, and the strings that go ahead of it.
func (s Spec) pack() (create link.Message, packed []byte, err error) {
	for _, list := range [][]string{{s.Path, s.Dir}, s.Argv, s.Env} {
		for _, text := range list {
			if strings.IndexByte(text, 0) >= 0 {
				return create, nil, fmt.Errorf("argument, variable or path %.40q has a NUL byte, which ends it for Linux", text)
			}
			packed = append(append(packed, text...), 0)
		}
	}
	return link.New(Create, CreateBody{Spec: s, Arguments: len(s.Argv), Variables: len(s.Env)}), packed, nil
}

// Unpack returns the specification with its Exec, of the payload of all Strings.
func (b CreateBody) Unpack(packed []byte) (Spec, error) {
	s := b.Spec
	lists := bytes.Split(packed, []byte{0}) // the last one is what follows the last NUL: nothing
	if n := len(lists) - 1; b.Arguments < 0 || b.Variables < 0 || n != 2+b.Arguments+b.Variables || len(lists[n]) > 0 {
		return s, fmt.Errorf("%d strings of %d bytes have come for a path, a folder, %d arguments and %d variables", n, len(packed), b.Arguments, b.Variables)
	}
	all := make([]string, 0, len(lists))
	for _, text := range lists[:len(lists)-1] {
		all = append(all, string(text))
	}
	variables := 2 + b.Arguments
	s.Exec = Exec{Path: all[0], Dir: all[1], Argv: all[2:variables], Env: all[variables:]}
	return s, nil
}
