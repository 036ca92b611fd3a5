// Package power switches the hardware of nodes on and off. A Driver does it for one node; the
// packages below have one each, and cluster/power/file makes them from a machine file.
//
// A node whose power is off runs nothing, so switching it off fences it. Carry therefore succeeds
// only when the hardware has reported the state that was asked for.
package power

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// State is whether a node has power.
type State int

const (
	Unknown State = iota // also while it changes
	On
	Off
)

func (s State) String() string {
	switch s {
	case On:
		return "on"
	case Off:
		return "off"
	}
	return "unknown"
}

// Action is an action on the power of a node.
type Action string

const (
	SwitchOn  Action = "on"
	SwitchOff Action = "off"
	Reset     Action = "reset"
	Look      Action = "status"
)

// Driver switches one node. Each method returns when the hardware has accepted the request, or
// when ctx ends. A driver is not safe for concurrent use.
type Driver interface {
	On(ctx context.Context) error
	Off(ctx context.Context) error   // at once, without the node's cooperation
	Reset(ctx context.Context) error // of a node that is on
	Status(ctx context.Context) (State, error)
}

// ErrUnsupported reports that a driver's hardware cannot do what was asked.
var ErrUnsupported = errors.New("not supported")

// pollPause is the time between two questions whether a node has the state that was asked for.
const pollPause = time.Second

// Carry carries out an action and returns the state of the node. It asks for the state before, so a
// node that is on is not switched on, and afterwards, until the node has the right one. Without an
// answer it succeeds only with a driver that cannot report the state, which is then Unknown.
func Carry(ctx context.Context, d Driver, a Action) (State, error) {
	before, err := d.Status(ctx)
	blind := errors.Is(err, ErrUnsupported)
	if err != nil && (!blind || a == Look) {
		return Unknown, err
	}
	switch a {
	case Look:
		return before, nil
	case SwitchOn:
		return settle(ctx, d, before, On, blind, d.On)
	case SwitchOff:
		return settle(ctx, d, before, Off, blind, d.Off)
	case Reset:
		if before == Off {
			return Off, errors.New("it is off, so it cannot be reset")
		}
		return settle(ctx, d, Unknown, On, blind, d.Reset)
	}
	return Unknown, fmt.Errorf("there is no action %q", a)
}

// settle changes the state of a node unless it is as wanted, and waits until it is.
func settle(ctx context.Context, d Driver, now, want State, blind bool, do func(context.Context) error) (State, error) {
	if now == want {
		return now, nil
	}
	if err := do(ctx); err != nil || blind {
		return Unknown, err
	}
	for {
		now, err := d.Status(ctx)
		if err != nil || now == want {
			return now, err
		}
		select {
		case <-time.After(pollPause):
		case <-ctx.Done():
			return now, fmt.Errorf("the request was accepted, but the power is %v, not %v: %w", now, want, context.Cause(ctx))
		}
	}
}
