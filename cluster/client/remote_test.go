package client

import (
	"crypto/tls"
	"errors"
	"io"
	"net"
	"strings"
	"testing"

	"margay/cluster/control"
	"margay/cluster/login"
	"margay/cluster/site"
	"margay/cluster/trust"
)

// remote makes a login for a port of this host, and returns the socket that stands for it.
func remote(t *testing.T, l net.Listener) (socket string) {
	t.Helper()
	t.Setenv(site.StateVariable, t.TempDir())
	token := trust.UserToken{Number: 3, Secret: trust.NewSecret()}
	if err := login.Save("m", login.Login{Address: l.Addr().String(), Machine: "m", Token: token.String()}); err != nil {
		t.Fatal(err)
	}
	dir, err := login.Dir("m")
	if err != nil {
		t.Fatal(err)
	}
	return site.Socket(dir)
}

func listenTCP(t *testing.T) net.Listener {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return l
}

// Nothing listens at the address of a login: the machine is gone, and the error says so at once.
func TestNoMachineThere(t *testing.T) {
	l := listenTCP(t)
	socket := remote(t, l)
	l.Close()
	_, err := Dial(within(t, patience), socket)
	if !Gone(err) || !strings.Contains(err.Error(), "no machine listens on "+l.Addr().String()) {
		t.Errorf("%v", err)
	}
	if err := login.Remove("m"); err != nil {
		t.Fatal(err)
	}
	if _, err := Dial(within(t, patience), socket); !Gone(err) {
		t.Errorf("after margay logout: %v", err)
	}
}

// An impostor at the address of a login gets neither the token nor a second try.
func TestOtherMachineThere(t *testing.T) {
	impostor, err := trust.NewAuthority("m")
	if err != nil {
		t.Fatal(err)
	}
	config, err := impostor.UsersTLS()
	if err != nil {
		t.Fatal(err)
	}
	l := listenTCP(t)
	socket := remote(t, l)
	got := make(chan error, 1)
	go func() {
		raw, err := l.Accept()
		if err != nil {
			got <- err
			return
		}
		defer raw.Close()
		_, _, err = trust.ReadOpening(tls.Server(raw, config))
		got <- err
	}()
	_, err = Dial(within(t, patience), socket)
	if !errors.Is(err, &control.Failure{Code: control.Code_CODE_REFUSED}) || !strings.Contains(err.Error(), "nothing was sent to it") {
		t.Errorf("%v", err)
	}
	if err := <-got; err == nil {
		t.Error("it has got the token")
	}
}

// A serve that does not answer is waited for as long as the context lasts, and named by its
// address.
func TestSilentThere(t *testing.T) {
	l := listenTCP(t)
	socket := remote(t, l)
	go func() {
		for {
			raw, err := l.Accept()
			if err != nil {
				return
			}
			go io.Copy(io.Discard, raw)
		}
	}()
	_, err := Dial(within(t, 2*remotePause), socket)
	if !errors.Is(err, ErrNoServe) || !strings.Contains(err.Error(), l.Addr().String()) {
		t.Errorf("%v", err)
	}
}

// A login finds its place taken by strangers at first.
func TestLoginTriesAgain(t *testing.T) {
	authority, err := trust.NewAuthority("m")
	if err != nil {
		t.Fatal(err)
	}
	config, err := authority.UsersTLS()
	if err != nil {
		t.Fatal(err)
	}
	l := listenTCP(t)
	served := make(chan error, 1)
	go func() {
		if raw, err := l.Accept(); err == nil {
			raw.Close()
		}
		raw, err := l.Accept()
		if err != nil {
			served <- err
			return
		}
		over := tls.Server(raw, config)
		defer raw.Close()
		if _, _, err = trust.ReadOpening(over); err == nil {
			conn := control.NewConn(over)
			defer conn.Close()
			if _, err = conn.Meet(); err == nil {
				err = conn.Send(&control.Welcome{Version: control.Version, Machine: "m"})
				conn.Flush(patience)
			}
		}
		served <- err
	}()
	token := trust.UserToken{Machine: authority.Fingerprint(), Number: 3, Secret: trust.NewSecret()}
	machine, err := Login(within(t, patience), login.Login{Address: l.Addr().String(), Token: token.String()})
	if machine != "m" || err != nil {
		t.Errorf("%q, %v", machine, err)
	}
	l.Close()
	if err := <-served; err != nil {
		t.Error(err)
	}
}
