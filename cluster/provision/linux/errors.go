package linux

import (
	"context"
	"errors"
)

var (
	// ErrNotCached reports an empty cache when the network must not be used.
	ErrNotCached = errors.New("no kernel is cached and the network must not be used")
	// ErrNoPackage reports a suite without a suitable kernel package.
	ErrNoPackage = errors.New("no kernel package")
)

// Error is returned by Find: an operation, its object and the cause.
type Error struct {
	Op     string // for people: "read the package index"
	Object string // what Op was applied to
	Err    error
}

func (e *Error) Error() string {
	s := "guest kernel: " + e.Op + " " + e.Object + ": " + e.Err.Error()
	if !errors.Is(e.Err, context.Canceled) {
		s += " (to use a kernel of your own, set KERNEL to its image or to a directory with image and modules)"
	}
	return s
}

func (e *Error) Unwrap() error { return e.Err }
