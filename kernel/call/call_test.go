package call

import (
	"errors"
	"net"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"margay/ext/message/accumulate"
	"margay/internal/check"
	"margay/internal/rights"
	"margay/kernel/abi/wire"
	"margay/kernel/extension"
	"margay/nimble/engine/portable"
)

// client is a rank's end of a socket whose other end is served.
type client struct {
	t       testing.TB
	socket  *net.UnixConn
	manager *extension.Manager
	set     *extension.Set
	asking  uint64        // see Config; only after stop
	done    chan struct{} // closed when the server has ended
}

// stop ends the server.
func (c *client) stop() {
	c.socket.Close()
	<-c.done
}

// serve starts a server for rank 3 of job 7, with this value of Config.Asking. Config.Join returns
// the error join.
func serve(t testing.TB, asking uint64, join error) *client {
	t.Helper()
	if _, fuzzing := t.(*testing.F); !fuzzing { // which has goroutines of its own
		check.Leaks(t)
	}
	c := &client{t: t, asking: asking, done: make(chan struct{})}
	var err error
	if c.manager, err = extension.NewManager(portable.New(), 1, func(string, ...any) {}); err != nil {
		t.Fatal(err)
	}
	c.set = c.manager.Open(7, 1<<20)
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		t.Fatal(err)
	}
	var ends [2]*net.UnixConn
	for i, fd := range fds {
		f := os.NewFile(uintptr(fd), "end")
		conn, err := net.FileConn(f)
		if err != nil {
			t.Fatal(err)
		}
		f.Close()
		ends[i] = conn.(*net.UnixConn)
	}
	c.socket = ends[0]
	server := New(Config{
		Rank: 3, Socket: ends[1], Set: c.set, Asking: &c.asking, Channel: channelOne, Doorbell: doorbellOne,
		Join: func() ([]*os.File, error) {
			if join != nil {
				return nil, join
			}
			f, err := os.Open(os.DevNull)
			return []*os.File{f}, err
		},
	})
	go func() {
		defer close(c.done)
		server.Serve()
	}()
	t.Cleanup(func() {
		c.stop()
		ends[1].Close()
		if err := c.set.Close(); err != nil {
			t.Error(err)
		}
	})
	return c
}

// channelOne has one channel, with index 1: to rank 9, which is local rank 2.
func channelOne(index uint64) (Channel, error) {
	if index != 1 {
		return Channel{}, errors.New("no such channel")
	}
	f, err := os.Open(os.DevNull)
	if err != nil {
		return Channel{}, err
	}
	bell, err := os.Open(os.DevNull)
	return Channel{Peer: 9, Local: 2, Sends: true, File: f, Doorbell: bell}, err
}

// doorbellOne has the doorbell of local rank 1.
func doorbellOne(local uint64) (*os.File, error) {
	if local != 1 {
		return nil, errors.New("no such doorbell")
	}
	return os.Open(os.DevNull)
}

// send sends a request of any bytes with files.
func (c *client) send(b []byte, files ...*os.File) {
	c.t.Helper()
	if _, _, err := c.socket.WriteMsgUnix(b, rights.Encode(files...), nil); err != nil {
		c.t.Fatal(err)
	}
}

// answer returns the next reply and how many files came with it.
func (c *client) answer() (wire.Reply, int) {
	c.t.Helper()
	buf, oob := make([]byte, wire.ReplySize), make([]byte, rights.Space(4))
	c.socket.SetReadDeadline(time.Now().Add(20 * time.Second))
	n, oobn, _, _, err := c.socket.ReadMsgUnix(buf, oob)
	if err != nil {
		c.t.Fatal(err)
	}
	reply, err := wire.DecodeReply(buf[:n])
	if err != nil {
		c.t.Fatal(err)
	}
	files, err := rights.Decode(oob[:oobn], "reply")
	if err != nil {
		c.t.Fatal(err)
	}
	rights.Close(files)
	return reply, len(files)
}

func (c *client) ask(q wire.Request, files ...*os.File) (wire.Reply, int) {
	c.t.Helper()
	b, err := q.Encode()
	if err != nil {
		c.t.Fatal(err)
	}
	c.send(b, files...)
	return c.answer()
}

// object returns a file with an extension.
func object(t *testing.T) *os.File {
	t.Helper()
	f, err := os.CreateTemp(t.TempDir(), "")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	if _, err := f.Write(accumulate.Object); err != nil {
		t.Fatal(err)
	}
	return f
}

// Each operation has one row with a name and a handler.
func TestTable(t *testing.T) {
	for op := wire.OpHello; op <= wire.OpDoorbell; op++ {
		if row := rowOf(op); row == nil || row.name == "" || row.do == nil {
			t.Errorf("operation %d: %+v", op, row)
		}
	}
	if len(table) != int(wire.OpDoorbell) || rowOf(0) != nil || rowOf(wire.OpDoorbell+1) != nil {
		t.Errorf("%d rows", len(table))
	}
}

// Each request gets its answer, and its refusal is logged if its row says so.
func TestRequests(t *testing.T) {
	c := serve(t, 0, nil)
	stranger := c.manager.Open(99, 1<<20)
	defer stranger.Close()
	theirs, err := stranger.Insert(extension.Request{Object: accumulate.Object})
	if err != nil {
		t.Fatal(err)
	}
	inserted, _ := c.ask(wire.Request{Op: wire.OpInsert, Name: "mine", Settings: []wire.Setting{{Kind: wire.SetConstant, Name: "handler", Value: 5}}}, object(t))
	if inserted.Status != wire.StatusOK {
		t.Fatalf("insert: %+v", inserted)
	}
	mine, other := inserted.Handle, uint32(theirs.Handle())
	for _, step := range []struct {
		name   string
		q      wire.Request
		files  int // of an object
		status wire.Status
		values [8]uint64
		gets   int
		note   string // that is logged; empty: none
	}{
		{"hello", wire.Request{Op: wire.OpHello, Value: wire.Version}, 0, wire.StatusOK, [8]uint64{wire.Version}, 1, ""},
		{"hello, old", wire.Request{Op: wire.OpHello, Value: 1}, 0, wire.StatusVersion, [8]uint64{wire.Version}, 0, "the library speaks version 1"},
		{"region", wire.Request{Op: wire.OpRegion, Name: "r", Value: 100}, 0, wire.StatusOK, [8]uint64{100, 3: 1 << 44}, 1, ""},
		{"region again", wire.Request{Op: wire.OpRegion, Name: "r"}, 0, wire.StatusOK, [8]uint64{100, 3: 1 << 44}, 1, ""},
		{"no region", wire.Request{Op: wire.OpRegion, Name: "s"}, 0, wire.StatusNotFound, [8]uint64{}, 0, ""},
		{"huge region", wire.Request{Op: wire.OpRegion, Name: "s", Value: 1 << 40}, 0, wire.StatusNoRoom, [8]uint64{}, 0, `region "s"`},
		{"stats", wire.Request{Op: wire.OpStats, Handle: mine}, 0, wire.StatusOK, [8]uint64{}, 0, ""},
		{"state", wire.Request{Op: wire.OpState, Handle: mine, Name: "table"}, 0, wire.StatusOK, [8]uint64{80 * 1024, 1024, 80}, 1, ""},
		{"no state", wire.Request{Op: wire.OpState, Handle: mine, Name: "chair"}, 0, wire.StatusNotFound, [8]uint64{}, 0, ""},
		{"their state", wire.Request{Op: wire.OpState, Handle: other, Name: "table"}, 0, wire.StatusNotFound, [8]uint64{}, 0, "one of job 99"},
		{"insert, no file", wire.Request{Op: wire.OpInsert}, 0, wire.StatusInvalid, [8]uint64{}, 0, "insert: 0 files came"},
		{"insert, odd setting", wire.Request{Op: wire.OpInsert, Settings: []wire.Setting{{Kind: 9}}}, 1, wire.StatusInvalid, [8]uint64{}, 0, "unknown kind 9"},
		{"insert nowhere", wire.Request{Op: wire.OpInsert, Where: "kitchen"}, 1, wire.StatusRefused, [8]uint64{}, 0, ""},
		{"remove", wire.Request{Op: wire.OpRemove, Handle: mine}, 0, wire.StatusOK, [8]uint64{}, 0, ""},
		{"remove again", wire.Request{Op: wire.OpRemove, Handle: mine}, 0, wire.StatusNotFound, [8]uint64{}, 0, ""},
		{"remove theirs", wire.Request{Op: wire.OpRemove, Handle: other}, 0, wire.StatusNotFound, [8]uint64{}, 0, "one of job 99"},
		{"channel", wire.Request{Op: wire.OpChannel, Value: 1}, 0, wire.StatusOK, [8]uint64{9, 1, 2}, 2, ""},
		{"no channel", wire.Request{Op: wire.OpChannel, Value: 1 << 63}, 0, wire.StatusInvalid, [8]uint64{}, 0, "no such channel"},
		{"doorbell", wire.Request{Op: wire.OpDoorbell, Value: 1}, 0, wire.StatusOK, [8]uint64{}, 1, ""},
		{"no doorbell", wire.Request{Op: wire.OpDoorbell, Value: 2}, 0, wire.StatusInvalid, [8]uint64{}, 0, "no such doorbell"},
		{"unknown", wire.Request{Op: 77}, 2, wire.StatusInvalid, [8]uint64{}, 0, "request 77 is unknown"},
	} {
		var files []*os.File
		for range step.files {
			files = append(files, object(t))
		}
		before := len(c.manager.Notes(0))
		reply, gets := c.ask(step.q, files...)
		if reply.Status != step.status || reply.Values != step.values || gets != step.gets || (reply.Text == "") != (step.status == wire.StatusOK) {
			t.Errorf("%s: %d files came with %+v", step.name, gets, reply)
		}
		var logged []string
		for _, n := range c.manager.Notes(0)[before:] {
			if strings.HasPrefix(n.Text, "rank 3 is refused") {
				logged = append(logged, n.Text)
			}
		}
		if len(logged) != min(1, len(step.note)) || len(logged) == 1 && !strings.Contains(logged[0], step.note) {
			t.Errorf("%s: %q is logged, want %q", step.name, logged, step.note)
		}
	}
	if c.stop(); c.asking != 0 {
		t.Errorf("request %d was not answered", c.asking-1)
	}
}

// If the previous node kernel did not answer a request, the rank gets StatusAgain before all else.
func TestAgain(t *testing.T) {
	c := serve(t, 1+41, nil)
	if reply, _ := c.answer(); reply.Call != 41 || reply.Status != wire.StatusAgain {
		t.Errorf("%+v", reply)
	}
	if reply, _ := c.ask(wire.Request{Op: wire.OpHello, Call: 42, Value: wire.Version}); reply.Call != 42 || reply.Status != wire.StatusOK {
		t.Errorf("%+v", reply)
	}
}

// A rank that cannot join gets the reason.
func TestCannotJoin(t *testing.T) {
	c := serve(t, 0, errors.New("no memory"))
	if reply, files := c.ask(wire.Request{Op: wire.OpHello, Value: wire.Version}); reply.Status != wire.StatusFailed || reply.Text != "no memory" || files != 0 {
		t.Errorf("%+v", reply)
	}
}

// Whatever a rank sends, it gets one answer, and the server continues. The job stays within its
// bounds.
func FuzzRequest(f *testing.F) {
	for op := range wire.OpDoorbell + 2 {
		b, err := wire.Request{Op: op, Value: 1 << 12, Name: "n", Where: "message", Settings: []wire.Setting{{Kind: 1, Name: "x"}}}.Encode()
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	c := serve(f, 0, nil)
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) == 0 || len(b) > 2*wire.MaxRequest {
			return // the first ends the connection
		}
		c.t = t
		c.send(b)
		reply, _ := c.answer()
		if !slices.Contains([]wire.Status{0, 1, 2, 3, 4, 5, 6}, reply.Status) {
			t.Errorf("%+v", reply)
		}
	})
}
