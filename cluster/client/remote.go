package client

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"time"

	"golang.org/x/sys/unix"

	"margay/cluster/control"
	"margay/cluster/login"
	"margay/cluster/trust"
)

// dialLogin connects to the serve of a login, which has shown that it is the machine of the token,
// and shows it the token. Serve has not judged the token yet.
func dialLogin(ctx context.Context, l login.Login) (net.Conn, error) {
	token, err := trust.ParseToken(l.Token)
	if err != nil {
		return nil, err
	}
	raw, err := new(net.Dialer).DialContext(ctx, "tcp", l.Address)
	if errors.Is(err, unix.ECONNREFUSED) { // the port stays open between two serves of a machine
		return nil, control.Failf(control.Code_CODE_DOWN, "no machine listens on %s: it is down, or listens elsewhere now", l.Address)
	}
	if err != nil {
		return nil, err
	}
	if err := control.Probe(raw.(*net.TCPConn)); err != nil {
		raw.Close()
		return nil, fmt.Errorf("%s: %w", l.Address, err)
	}
	c := tls.Client(raw, trust.ToServeOf(token.Machine))
	err = c.HandshakeContext(ctx)
	if errors.Is(err, trust.ErrOtherMachine) {
		err = control.Failf(control.Code_CODE_REFUSED, "%s: %v: nothing was sent to it; if a new machine is there, ask for a token of that one", l.Address, err)
	}
	if err == nil {
		_, err = c.Write(token.Opening())
	}
	if err != nil {
		raw.Close()
		return nil, fmt.Errorf("%s: %w", l.Address, err)
	}
	return c, nil
}

// Login tries a login, and returns the name of the machine on its own host. When serve ends the
// connection without a reason, because it has no room for strangers or is just starting, Login
// tries again until ctx ends.
func Login(ctx context.Context, l login.Login) (machine string, err error) {
	for {
		machine, err = loginOnce(ctx, l)
		refused, dialed := new(control.Failure), new(net.OpError)
		if err == nil || errors.As(err, &refused) || errors.As(err, &dialed) && dialed.Op == "dial" {
			return machine, err
		}
		select {
		case <-time.After(remotePause):
		case <-ctx.Done():
			return "", err
		}
	}
}

// loginOnce is Login without another try.
func loginOnce(ctx context.Context, l login.Login) (machine string, err error) {
	raw, err := dialLogin(ctx, l)
	if err != nil {
		return "", err
	}
	conn := control.NewConn(raw)
	defer conn.Close()
	defer context.AfterFunc(ctx, conn.Close)()
	welcome, err := conn.Greet(&control.Hello{Role: control.Role_ROLE_CLIENT, Program: program})
	if err != nil {
		return "", err
	}
	return welcome.Machine, nil
}
