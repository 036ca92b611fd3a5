// Package client connects to a machine's serve as the command line does.
package client

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/user"
	"path/filepath"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"

	"margay/cluster/control"
	"margay/cluster/login"
	"margay/cluster/site"
)

// ErrNoServe reports that no process listens on the machine's socket.
var ErrNoServe = errors.New("serve does not answer")

// How often Dial tries again: on this host, and on another one.
const (
	retryPause  = 50 * time.Millisecond
	remotePause = 500 * time.Millisecond
)

// Dial connects to the serve that listens on a unix socket. While the socket is dead it tries again
// until ctx ends: serve may just be starting. When the socket's folder is gone, so is the machine,
// and with site.EndingName in it there is no serve any more: then it fails at once with an error
// that Gone knows. It refuses a serve that is neither root's
// nor this user's, and sends it nothing. Behind a door (Door), serve may be the door's owner's
// instead. The socket of a login (package login) stands for the serve of another host.
func Dial(ctx context.Context, socket string) (*control.Conn, error) {
	return retry(ctx, socket, &control.Hello{Role: control.Role_ROLE_CLIENT})
}

// DialFiles is Dial for the stream of the files that a job of this client shares with its ranks on
// a node.
func DialFiles(ctx context.Context, socket string, job, node uint32) (net.Conn, error) {
	conn, err := retry(ctx, socket, &control.Hello{Role: control.Role_ROLE_FILES, Job: job, Node: node})
	if err != nil {
		return nil, err
	}
	return conn.Stream(), nil
}

// DialDebug is Dial for the stream of a debugger of a rank (kernel/abi/gdb).
func DialDebug(ctx context.Context, socket string, job, rank uint32) (net.Conn, error) {
	conn, err := retry(ctx, socket, &control.Hello{Role: control.Role_ROLE_DEBUG, Job: job, Rank: rank})
	if err != nil {
		return nil, err
	}
	return conn.Stream(), nil
}

// retry is Dial with any opening.
func retry(ctx context.Context, socket string, hello *control.Hello) (*control.Conn, error) {
	pause := retryPause
	if _, is := login.Of(socket); is {
		pause = remotePause
	}
	for {
		conn, err := dial(ctx, socket, hello)
		if err == nil {
			return conn, nil
		}
		var refused *control.Failure
		if errors.As(err, &refused) {
			return nil, err
		}
		if _, err := os.Stat(filepath.Dir(socket)); errors.Is(err, fs.ErrNotExist) {
			return nil, control.Failf(control.Code_CODE_DOWN, "the machine is gone")
		}
		if _, err := os.Stat(filepath.Join(filepath.Dir(socket), site.EndingName)); err == nil {
			return nil, control.Failf(control.Code_CODE_DOWN, "the machine goes down: margay machine down waits until it has ended")
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return nil, noServe(socket, err)
		}
	}
}

// noServe says that serve does not answer, why, and which folder has its log if this user may read
// that.
func noServe(socket string, err error) error {
	if _, is := doorOwner(socket); is {
		return fmt.Errorf("%w on %s: %w", ErrNoServe, socket, err)
	}
	if dir, is := login.Of(socket); is {
		socket = dir
		if l, err := login.Read(dir); err == nil {
			socket = l.Address
		}
		return fmt.Errorf("%w on %s: %w", ErrNoServe, socket, err)
	}
	return fmt.Errorf("%w on %s: %w; its log is in %s", ErrNoServe, socket, err, filepath.Join(filepath.Dir(socket), "log"))
}

// Gone reports whether an error says that the machine has ended or is about to, so that no serve
// need be looked for.
func Gone(err error) bool {
	var f *control.Failure
	return errors.As(err, &f) && f.Code == control.Code_CODE_DOWN && f.Node == control.None // what a node says is not for the machine
}

func dial(ctx context.Context, socket string, hello *control.Hello) (*control.Conn, error) {
	raw, err := connect(ctx, socket)
	if err != nil {
		return nil, err
	}
	conn := control.NewConn(raw)
	stop := context.AfterFunc(ctx, conn.Close)
	defer stop()
	hello.Program = program
	if _, err := conn.Greet(hello); err != nil {
		conn.Close()
		return nil, err
	}
	return conn, nil
}

// program is what clients call themselves.
const program = "this margay"

// connect returns a stream to a trusted serve.
func connect(ctx context.Context, socket string) (net.Conn, error) {
	if dir, is := login.Of(socket); is {
		l, err := login.Read(dir)
		if errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
		if err != nil { // it stays so
			return nil, control.Failf(control.Code_CODE_REFUSED, "%v", err)
		}
		return dialLogin(ctx, l)
	}
	raw, err := new(net.Dialer).DialContext(ctx, "unix", socket)
	if err != nil {
		return nil, err
	}
	if err := checkServe(raw.(*net.UnixConn), socket); err != nil {
		raw.Close()
		return nil, err
	}
	return raw, nil
}

// checkServe reports whether a process of an untrusted user listens on a socket.
func checkServe(c *net.UnixConn, socket string) error {
	peer, err := control.PeerOf(c)
	if err != nil {
		return err
	}
	own, out := uint32(os.Getuid()), "set MARGAY_DIR to a folder of your own"
	if owner, is := doorOwner(socket); is {
		own, out = owner, fmt.Sprintf("it should be one of user %d", owner)
	}
	if !mayServe(peer.UID, own) {
		return control.Failf(control.Code_CODE_REFUSED, "a process of user %d listens on %s: %s", peer.UID, socket, out)
	}
	return nil
}

// mayServe reports whether a process of a user may be the serve of a machine of user own.
func mayServe(uid, own uint32) bool { return uid == own || uid == 0 }

// Await waits until the serve on a socket ends, and returns why, or until ctx does.
func Await(ctx context.Context, socket string) error {
	conn, err := Dial(ctx, socket)
	if err != nil {
		return err
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, conn.Close)()
	return conn.Serve(func(*control.Frame) {})
}

// Ask makes one request to the serve on a socket.
func Ask[Answer proto.Message](ctx context.Context, socket string, request proto.Message) (Answer, error) {
	var none Answer
	conn, err := Dial(ctx, socket)
	if err != nil {
		return none, err
	}
	defer conn.Close()
	go conn.Serve(func(*control.Frame) {})
	asked := time.Now()
	m, err := conn.Call(ctx, request)
	if errors.Is(err, context.DeadlineExceeded) {
		err = fmt.Errorf("%s has no answer after %v: %w", request.ProtoReflect().Descriptor().Name(), time.Since(asked).Round(100*time.Millisecond), err)
		return none, noServe(socket, err)
	}
	if err != nil {
		return none, err
	}
	answer, ok := m.(Answer)
	if !ok {
		return none, fmt.Errorf("serve answered %T with %T", request, m)
	}
	return answer, nil
}

// UserName is the name of this user, fit for a line of /etc/passwd.
func UserName() string {
	u, err := user.Current()
	if err != nil || u.Username == "" || strings.ContainsAny(u.Username, ":\n/") {
		return fmt.Sprintf("user%d", os.Getuid())
	}
	return u.Username
}
