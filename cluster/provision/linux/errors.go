package linux

import (
	"context"
	"errors"
)

var (
	// ErrNotCached says that the cache holds no kernel and that the network was not to be used.
	ErrNotCached = errors.New("no kernel is cached and the network is not to be used")
	// ErrNoPackage says that a suite has no kernel package that would do.
	ErrNoPackage = errors.New("no kernel package")
)

// Error is what Find returns: what was being done, to what, and why it could not be.
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
