package launch

import (
	"errors"
	"fmt"
	"margay/internal/printable"
	"strings"
)

// ErrTooLong reports arguments and an environment that Linux does not give to a process (E2BIG).
var ErrTooLong = errors.New("argument list too long")

// Limits of what ranks get, in bytes, with the NUL after each string (execve(2)).
const (
	maxString  = 128 << 10           // of one argument or variable: MAX_ARG_STRLEN
	maxStrings = 2<<20 - nodeStrings // of all, with a pointer to each: a quarter of the usual stack limit, less what a node adds

	nodeStrings = 5 << 10 // the path, at most 4 KiB, and the variables of the rank
)

// pointerSize is what execve counts for each string besides its bytes.
const pointerSize = 8

// maxName is how much of a variable's name an error shows, in bytes.
const maxName = 40

// CheckStrings refuses what execve would refuse on a node.
func CheckStrings(argv, env []string) error {
	total, longest, name := 0, 0, ""
	look := func(text string, what func() string) {
		total += len(text) + 1 + pointerSize
		if len(text)+1 > longest {
			longest, name = len(text)+1, what()
		}
	}
	for i, text := range argv {
		look(text, func() string { return fmt.Sprint("argument ", i) })
	}
	for _, text := range env {
		look(text, func() string {
			name, _, _ := strings.Cut(text, "=")
			return "variable " + printable.Short(name, maxName)
		})
	}
	const wayOut = "put long strings into a file (--with) or on standard input"
	if longest > maxString {
		return fmt.Errorf("%w: %s is %d bytes, at most %d fit in one; %s", ErrTooLong, name, longest-1, maxString-1, wayOut)
	}
	if total > maxStrings {
		return fmt.Errorf("%w: arguments and environment are %d bytes with a NUL and a pointer for each, at most %d fit; the longest is %s of %d bytes; %s",
			ErrTooLong, total, maxStrings, name, longest-1, wayOut)
	}
	return nil
}

// Bytes returns arguments or variables as they are sent.
func Bytes(list []string) [][]byte {
	out := make([][]byte, 0, len(list))
	for _, text := range list {
		out = append(out, []byte(text))
	}
	return out
}
