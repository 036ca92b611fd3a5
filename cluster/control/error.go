package control

import (
	"context"
	"errors"
	"fmt"
	"strings"
)

// None is the node or rank of an error that is not about one.
const None = -1

// Allocator is the node of extensions in messages when they are in the machine's allocator,
// which is in serve, and not on a node.
const Allocator = 1<<32 - 1

// Failure is an error that crosses connections: it keeps its code, node and rank.
type Failure struct {
	Code Code
	Text string
	Node int // None when it is not about a node
	Rank int // None when it is not about a rank
}

// Failf makes a Failure that is about no node and no rank.
func Failf(code Code, format string, args ...any) *Failure {
	return &Failure{Code: code, Text: fmt.Sprintf(format, args...), Node: None, Rank: None}
}

// At says which node the failure is about.
func (e *Failure) At(node uint32) *Failure {
	e.Node = int(node)
	return e
}

// Of says which rank the failure is about.
func (e *Failure) Of(rank int) *Failure {
	e.Rank = rank
	return e
}

func (e *Failure) Error() string {
	switch {
	case e.Node != None && e.Rank != None:
		return fmt.Sprintf("rank %d on node%d: %s", e.Rank, e.Node, e.Text)
	case e.Node != None:
		return fmt.Sprintf("node%d: %s", e.Node, e.Text)
	case e.Rank != None:
		return fmt.Sprintf("rank %d: %s", e.Rank, e.Text)
	}
	return e.Text
}

// Is makes errors.Is(err, &Failure{Code: c}) ask for the code alone.
func (e *Failure) Is(target error) bool {
	t, ok := target.(*Failure)
	return ok && t.Text == "" && t.Code == e.Code
}

// FromError turns any error into its message.
func FromError(err error) *Error {
	f := new(Failure)
	if !errors.As(err, &f) {
		f = &Failure{Code: Code_CODE_FAILED, Text: err.Error(), Node: None, Rank: None}
		if errors.Is(err, context.DeadlineExceeded) {
			f.Code = Code_CODE_TIMEOUT
		}
	}
	// Errors name paths, which may be no UTF-8, and then there would be no frame.
	return &Error{Code: f.Code, Text: strings.ToValidUTF8(f.Text, "?"), Node: int32(f.Node), Rank: int32(f.Rank)}
}

// Err turns the message back into an error; nil stays nil.
func (x *Error) Err() error {
	if x == nil {
		return nil
	}
	return &Failure{Code: x.Code, Text: x.Text, Node: int(x.Node), Rank: int(x.Rank)}
}
