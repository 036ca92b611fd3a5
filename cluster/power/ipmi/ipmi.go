// Package ipmi switches nodes by the management controllers that speak IPMI 2.0 over UDP (RMCP+),
// with a user and a password. Section numbers in comments refer to the specification, version
// 2.0, revision 1.1.
//
// Each action is a session of its own: its beginning, in which both sides prove that they know
// the password, one command, and its end. Packets are encrypted with AES-CBC-128 and signed, with
// SHA-256 if the controller has that (cipher suite 17), else with SHA-1 (suite 3). Weaker suites
// are not used. IPMI itself is weak: a controller answers each question that names a user with a
// hash that the password can be guessed from.
package ipmi

import (
	"context"
	"errors"
	"fmt"
	"net"
	"time"

	"margay/cluster/power"
)

// Network functions and commands (appendix G).
const (
	functionChassis = 0x00
	functionApp     = 0x06

	commandChassisStatus  = 0x01
	commandChassisControl = 0x02
	commandSetPrivilege   = 0x3b
	commandCloseSession   = 0x3c
)

// What the command to control a chassis can ask for (section 28.3).
const (
	controlOff   = 0
	controlOn    = 1
	controlReset = 3
)

// The privilege level of a session, and the flag that the user is found by the name alone.
const (
	operator = 3
	nameOnly = 0x10
)

// Bounds of the specification, in bytes.
const (
	MaxUser     = 16
	MaxPassword = 20
)

// Port is the UDP port of a controller.
const Port = "623"

// closeWait bounds how long the end of a session waits for its answer. A controller ends a session
// that has no requests.
const closeWait = time.Second

// Controller is the management controller of a node. It implements power.Driver.
type Controller struct {
	Address        string // host and port
	User, Password string // at most MaxUser and MaxPassword bytes
}

// On implements power.Driver.
func (c Controller) On(ctx context.Context) error { return c.control(ctx, controlOn) }

// Off implements power.Driver.
func (c Controller) Off(ctx context.Context) error { return c.control(ctx, controlOff) }

// Reset implements power.Driver.
func (c Controller) Reset(ctx context.Context) error { return c.control(ctx, controlReset) }

// Status implements power.Driver.
func (c Controller) Status(ctx context.Context) (state power.State, err error) {
	err = c.within(ctx, func(s *session) error {
		got, err := s.ask(ctx, functionChassis, commandChassisStatus)
		switch {
		case err != nil:
		case len(got) == 0:
			err = errors.New("its answer has no power state")
		case got[0]&1 != 0:
			state = power.On
		default:
			state = power.Off
		}
		return err
	})
	return state, err
}

func (c Controller) control(ctx context.Context, what byte) error {
	return c.within(ctx, func(s *session) error {
		_, err := s.ask(ctx, functionChassis, commandChassisControl, what)
		return err
	})
}

// within calls do within a session of its own.
func (c Controller) within(ctx context.Context, do func(*session) error) error {
	conn, err := new(net.Dialer).DialContext(ctx, "udp", c.Address)
	if err != nil {
		if ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		return c.failed(err)
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { conn.Close() })()
	tag := byte(0)
	for _, u := range suites {
		s := &session{conn: conn, tag: tag}
		err = s.begin(ctx, u, c.User, c.Password)
		if refused := status(0); errors.As(err, &refused) && refused.otherSuite() {
			tag = s.tag // the refusal may come once more
			continue
		}
		if err == nil {
			err = do(s)
		}
		if s.keys.cipher != nil && ctx.Err() == nil {
			s.end(ctx)
		}
		break
	}
	if err != nil {
		return c.failed(err)
	}
	return nil
}

// end ends the session, which would else take one of the controller's few places for a minute.
func (s *session) end(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, closeWait)
	defer cancel()
	id := s.remote
	_, _ = s.ask(ctx, functionApp, commandCloseSession, byte(id), byte(id>>8), byte(id>>16), byte(id>>24))
}

func (c Controller) failed(err error) error { return fmt.Errorf("IPMI at %s: %w", c.Address, err) }
