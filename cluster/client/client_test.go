package client

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"

	"margay/cluster/control"
	"margay/cluster/site"
)

// patience bounds every wait of these tests.
const patience = 20 * time.Second

// listen makes a socket on which talk is held with every client.
func listen(t *testing.T, talk func(*control.Conn)) (socket string) {
	t.Helper()
	dir, err := os.MkdirTemp("", "margay")
	if err != nil {
		t.Fatal(err)
	}
	socket = filepath.Join(dir, "s")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for {
			raw, err := l.Accept()
			if err != nil {
				return
			}
			conn := control.NewConn(raw)
			talk(conn)
			conn.Close()
		}
	}()
	t.Cleanup(func() {
		l.Close()
		<-ended
		os.RemoveAll(dir)
	})
	return socket
}

// answering plays a serve that answers every request in one way.
func answering(body proto.Message, err error) func(*control.Conn) {
	return func(conn *control.Conn) {
		if hello, err := conn.Meet(); err != nil || hello.Role != control.Role_ROLE_CLIENT {
			return
		}
		_ = conn.Send(&control.Welcome{Version: control.Version})
		_ = conn.Serve(func(f *control.Frame) { conn.Answer(f, body, err) })
	}
}

func within(t *testing.T, d time.Duration) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), d)
	t.Cleanup(cancel)
	return ctx
}

func TestAsk(t *testing.T) {
	before := runtime.NumGoroutine()
	t.Run("ask", func(t *testing.T) {
		socket := listen(t, answering(&control.Nodes{Nodes: []*control.NodeState{{Node: 3}}}, nil))
		nodes, err := Ask[*control.Nodes](within(t, patience), socket, new(control.ListNodes))
		if err != nil || nodes.Nodes[0].Node != 3 {
			t.Errorf("%v, %v", nodes, err)
		}
		if _, err := Ask[*control.Jobs](within(t, patience), socket, new(control.ListJobs)); err == nil || err.Error() != "serve answered *control.ListJobs with *control.Nodes" {
			t.Errorf("an answer of another type: %v", err)
		}
		socket = listen(t, answering(nil, control.Failf(control.Code_CODE_NOT_FOUND, "no such job").Of(2)))
		if _, err := Ask[*control.Nodes](within(t, patience), socket, new(control.ListNodes)); !errors.Is(err, &control.Failure{Code: control.Code_CODE_NOT_FOUND}) || err.Error() != "rank 2: no such job" {
			t.Errorf("a failure arrives as %v", err)
		}
		socket = listen(t, func(conn *control.Conn) {
			conn.Meet()
			conn.Send(&control.Welcome{Version: control.Version})
			conn.Flush(patience)
		})
		if _, err := Ask[*control.Nodes](within(t, patience), socket, new(control.ListNodes)); err == nil {
			t.Error("a serve that hangs up has answered")
		}
	})
	for deadline := time.Now().Add(patience); runtime.NumGoroutine() > before; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%d goroutines, before there were %d", runtime.NumGoroutine(), before)
		}
	}
}

// An answer that does not come in time is reported with the request and the folder of the log.
func TestNoAnswer(t *testing.T) {
	asked := make(chan struct{})
	socket := listen(t, func(conn *control.Conn) {
		_, _ = conn.Meet()
		_ = conn.Send(&control.Welcome{Version: control.Version})
		_ = conn.Serve(func(*control.Frame) { close(asked) })
	})
	ctx, stop := context.WithCancelCause(t.Context())
	defer stop(nil)
	go func() {
		<-asked
		stop(context.DeadlineExceeded)
	}()
	_, err := Ask[*control.Nodes](ctx, socket, new(control.ListNodes))
	if !errors.Is(err, ErrNoServe) || !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("%v", err)
	}
	for _, part := range []string{socket, "ListNodes", filepath.Join(filepath.Dir(socket), "log")} {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("%q does not name %s", err, part)
		}
	}
}

// With no listener, or a silent one, the wait ends with the context, and the error names the
// socket.
func TestNoServe(t *testing.T) {
	silent := listen(t, func(conn *control.Conn) { io.Copy(io.Discard, conn.NetConn()) })
	dead := filepath.Join(t.TempDir(), "dead")
	l, err := net.Listen("unix", dead)
	if err != nil {
		t.Fatal(err)
	}
	l.(*net.UnixListener).SetUnlinkOnClose(false)
	l.Close()
	for _, socket := range []string{filepath.Join(t.TempDir(), "nothing"), dead, silent} {
		ended := make(chan error, 1)
		go func() {
			_, err := Dial(within(t, 100*time.Millisecond), socket)
			ended <- err
		}()
		select {
		case err := <-ended:
			if !errors.Is(err, ErrNoServe) || !strings.Contains(err.Error(), socket) {
				t.Errorf("%s: %v", socket, err)
			}
		case <-time.After(control.HelloTimeout / 2):
			t.Errorf("%s: the context has no say", socket)
		}
	}
}

// serve may just be starting.
func TestDialWaits(t *testing.T) {
	dir := t.TempDir()
	socket := filepath.Join(dir, "s")
	dialed := make(chan error, 1)
	go func() {
		conn, err := Dial(within(t, patience), socket)
		if err == nil {
			conn.Close()
		}
		dialed <- err
	}()
	time.Sleep(2 * retryPause)
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	first, err := l.Accept() // which goes away again at once
	if err != nil {
		t.Fatal(err)
	}
	first.Close()
	raw, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	conn := control.NewConn(raw)
	defer conn.Close()
	if _, err := conn.Meet(); err != nil {
		t.Fatal(err)
	}
	if err := conn.Send(&control.Welcome{Version: control.Version}); err != nil {
		t.Fatal(err)
	}
	if err := <-dialed; err != nil {
		t.Error(err)
	}
}

// Nothing is sent to a socket of another user's process.
func TestStrangerListens(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("only root can listen as another user")
	}
	dir, err := os.MkdirTemp("", "margay") // the test's own is closed to other users
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	socket := filepath.Join(dir, "s")
	if err := os.Chmod(dir, 0o777); err != nil {
		t.Fatal(err)
	}
	l := listenAs(t, 65534, socket)
	defer l.Close()
	sent := make(chan []byte, 1)
	go func() {
		raw, err := l.Accept()
		if err != nil {
			close(sent)
			return
		}
		defer raw.Close()
		text, _ := io.ReadAll(raw)
		sent <- text
	}()
	_, err = Dial(within(t, patience), socket)
	if !errors.Is(err, &control.Failure{Code: control.Code_CODE_REFUSED}) || !strings.Contains(err.Error(), "user 65534 listens on "+socket) {
		t.Errorf("the error is %v", err)
	}
	if text := <-sent; len(text) > 0 {
		t.Errorf("%q is sent", text)
	}
}

// listenAs listens on a socket with the credentials of another user.
func listenAs(t *testing.T, uid int, socket string) net.Listener {
	t.Helper()
	runtime.LockOSThread() // credentials belong to the thread
	defer runtime.UnlockOSThread()
	become := func(uid int) {
		if _, _, err := unix.RawSyscall(unix.SYS_SETRESUID, ^uintptr(0), uintptr(uid), ^uintptr(0)); err != 0 {
			t.Fatal(err)
		}
	}
	become(uid)
	l, err := net.Listen("unix", socket)
	become(0)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// A user's serve may be a process of that user or of root.
func TestMayServe(t *testing.T) {
	for _, c := range []struct {
		user, own uint32
		may       bool
	}{{7, 7, true}, {0, 7, true}, {0, 0, true}, {8, 7, false}, {7, 0, false}, {65534, 7, false}} {
		if may := mayServe(c.user, c.own); may != c.may {
			t.Errorf("user %d for user %d: %v", c.user, c.own, may)
		}
	}
}

// When the machine's folder is removed, no serve is waited for. While it is there, the wait goes
// on.
func TestDialOfGoneMachine(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "m")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	late := time.AfterFunc(patience, cancel)
	defer late.Stop()
	dialed := make(chan error, 1)
	go func() {
		_, err := Dial(ctx, filepath.Join(dir, "s"))
		dialed <- err
	}()
	select {
	case err := <-dialed:
		t.Fatalf("the folder is there: %v", err)
	case <-time.After(2 * retryPause):
	}
	if err := os.Remove(dir); err != nil {
		t.Fatal(err)
	}
	if err := <-dialed; !Gone(err) || errors.Is(err, ErrNoServe) || err.Error() != "the machine is gone" {
		t.Errorf("it is said: %v", err)
	}
}

// That a node is down ends no machine.
func TestGone(t *testing.T) {
	down := control.Failf(control.Code_CODE_DOWN, "x")
	for err, want := range map[error]bool{
		down: true, fmt.Errorf("job 3: %w", down): true, control.Failf(control.Code_CODE_DOWN, "x").At(0): false,
		control.Failf(control.Code_CODE_NODE_LOST, "x"): false, control.ErrClosed: false, nil: false,
	} {
		if Gone(err) != want {
			t.Errorf("%v: %v", err, !want)
		}
	}
}

// A refusal is final.
func TestRefused(t *testing.T) {
	var tries atomic.Int32
	socket := listen(t, func(conn *control.Conn) {
		tries.Add(1)
		conn.Meet()
		conn.Refuse(control.Failf(control.Code_CODE_VERSION, "too old"))
	})
	if _, err := Dial(within(t, patience), socket); !errors.Is(err, &control.Failure{Code: control.Code_CODE_VERSION}) || errors.Is(err, ErrNoServe) || tries.Load() != 1 {
		t.Errorf("%d tries, %v", tries.Load(), err)
	}
}

// A path of a door says whose it is.
func TestDoorOwner(t *testing.T) {
	for path, want := range map[string]uint32{Door(1000, "m"): 1000, Door(0, "m"): 0, "/x/margay-users-7/m/serve.sock": 7} {
		if owner, is := doorOwner(path); !is || owner != want {
			t.Errorf("%s: user %d, %v", path, owner, is)
		}
	}
	for _, path := range []string{"/tmp/margay-1000/m/serve.sock", "/x/margay-users-/m/serve.sock", "/x/margay-users--1/m/serve.sock", "/x/margay-users-4294967296/m/s", "serve.sock", ""} {
		if owner, is := doorOwner(path); is {
			t.Errorf("%s is a door of user %d", path, owner)
		}
	}
}

// While the machine goes down, nothing waits for a serve.
func TestDialWhileEnding(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, site.EndingName), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Dial(within(t, patience), site.Socket(dir)); !Gone(err) || !strings.Contains(err.Error(), "the machine goes down: margay machine down waits") {
		t.Error(err)
	}
}
