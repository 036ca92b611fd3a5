package relay

import (
	"encoding/binary"
	"net"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"margay/kernel/abi/fuse"
	"margay/kernel/abi/share"
)

// patienceOfTest bounds every wait.
const patienceOfTest = time.Minute

// pair returns two connected sockets.
func pair(t *testing.T, kind int) (net.Conn, *os.File) {
	t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, kind|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		t.Fatal(err)
	}
	own := os.NewFile(uintptr(fds[0]), "near")
	defer own.Close()
	near, err := net.FileConn(own)
	if err != nil {
		t.Fatal(err)
	}
	near.SetDeadline(time.Now().Add(patienceOfTest))
	t.Cleanup(func() { near.Close() })
	return near, os.NewFile(uintptr(fds[1]), "far")
}

// start starts a relay with a folder whose device the test plays.
func start(t *testing.T, now time.Time) (*relay, net.Conn) {
	linux, device := pair(t, unix.SOCK_SEQPACKET)
	r := newRelay(Config{UID: 3, GID: 4}, now)
	r.devices = []*os.File{device}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		r.take(0, device)
	}()
	t.Cleanup(func() {
		device.Close()
		<-ended
	})
	return r, linux
}

// request makes a request.
func request(opcode fuse.Opcode, unique uint64, body ...byte) []byte {
	b := make([]byte, fuse.HeaderSize, fuse.HeaderSize+len(body))
	binary.LittleEndian.PutUint32(b[4:], uint32(opcode))
	binary.LittleEndian.PutUint64(b[8:], unique)
	b = append(b, body...)
	binary.LittleEndian.PutUint32(b, uint32(len(b)))
	return b
}

func write(t *testing.T, to net.Conn, b []byte) {
	t.Helper()
	if _, err := to.Write(b); err != nil {
		t.Fatal(err)
	}
}

// answer reads the next answer that Linux gets.
func answer(t *testing.T, linux net.Conn, unique uint64) unix.Errno {
	t.Helper()
	b := make([]byte, 4096)
	n, err := linux.Read(b)
	if err != nil || !fuse.Valid(b[:n], unique) {
		t.Fatalf("answer to request %d: %x, %v", unique, b[:n], err)
	}
	return unix.Errno(-int32(binary.LittleEndian.Uint32(b[4:])))
}

// connect gives the relay a stream, and returns the other side after the opening.
func connect(t *testing.T, r *relay) net.Conn {
	t.Helper()
	run, far := pair(t, unix.SOCK_STREAM)
	go r.open(far)
	f, err := share.ReadFrame(run)
	if err != nil {
		t.Fatal(err)
	}
	if g, err := share.ReadGreeting(f); err != nil || g != (share.Greeting{UID: 3, GID: 4}) {
		t.Fatalf("%+v, %v", g, err)
	}
	write(t, run, share.WelcomeFrame(share.MinWindow).Append(nil))
	return run
}

// awaitStream waits until there is a stream: requests from before it are sent by another goroutine,
// so later ones may overtake them.
func (r *relay) awaitStream() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for r.stream == nil {
		r.changed.Wait()
	}
}

// next reads the next request that margay run gets.
func next(t *testing.T, run net.Conn) (f share.Frame, unique uint64) {
	t.Helper()
	f, err := share.ReadFrame(run)
	if err != nil || f.Kind != share.Request {
		t.Fatalf("%+v, %v", f, err)
	}
	h, err := fuse.ReadHeader(f.Body)
	if err != nil {
		t.Fatal(err)
	}
	return f, h.Unique
}

func reply(t *testing.T, run net.Conn, f share.Frame, body []byte) {
	t.Helper()
	write(t, run, share.Frame{Kind: share.Answer, Number: f.Number, Body: body}.Append(nil))
}

// TestStreams: a request survives the streams that it is sent over.
func TestStreams(t *testing.T) {
	r, linux := start(t, time.Now())
	write(t, linux, request(fuse.Init, 1, make([]byte, 16)...))
	if errno := answer(t, linux, 1); errno != unix.EPROTO { // version 0.0
		t.Errorf("Init: %v", errno)
	}
	write(t, linux, request(fuse.MkDir, 2, []byte("xxxxxxxxa\x00")...))
	first := connect(t, r)
	if _, unique := next(t, first); unique != 2 {
		t.Errorf("request %d comes first", unique)
	}
	write(t, linux, request(fuse.Interrupt, 3, make([]byte, 8)...))
	write(t, linux, request(fuse.Forget, 4, make([]byte, 8)...))
	if _, unique := next(t, first); unique != 4 {
		t.Errorf("request %d comes second", unique)
	}
	first.Close()
	second := connect(t, r)
	f, unique := next(t, second)
	if unique != 2 || f.Number != 0 || f.Floor != 0 {
		t.Errorf("request %d is sent again as %d with floor %d", unique, f.Number, f.Floor)
	}
	forget, unique := next(t, second)
	if unique != 4 {
		t.Errorf("request %d is sent again after it", unique)
	}
	reply(t, second, forget, fuse.Finish(fuse.NewAnswer(4, 0))) // before the other one, whose answer shows that the relay has read both
	reply(t, second, f, fuse.Failed(2, unix.EEXIST))
	if errno := answer(t, linux, 2); errno != unix.EEXIST {
		t.Errorf("MkDir: %v", errno)
	}
	reply(t, second, f, fuse.Failed(2, unix.EIO)) // once more: for nothing
	third := connect(t, r)                        // in place of the second
	write(t, linux, request(fuse.GetAttr, 5))
	f, unique = next(t, third)
	if unique != 5 || f.Floor != f.Number {
		t.Errorf("request %d with floor %d of %d", unique, f.Floor, f.Number)
	}
	reply(t, third, f, []byte("nonsense"))
	if errno := answer(t, linux, 5); errno != unix.EIO {
		t.Errorf("a malformed answer: %v", errno)
	}
	for unique, flags := range map[uint64]uint32{6: fuse.KeepCache, 7: 0} {
		write(t, linux, request(fuse.Open, unique, make([]byte, 8)...))
		f, _ = next(t, third)
		reply(t, third, f, fuse.Finish(fuse.AppendOpen(fuse.NewAnswer(unique, 16), 1, flags)))
		if flags == 0 {
			_ = answer(t, linux, 0) // what Linux knows of the file is stale
		}
		if errno := answer(t, linux, unique); errno != 0 {
			t.Errorf("open: %v", errno)
		}
	}
}

// part is a write of an open file, the handle 1.
func part(unique, offset uint64, text string) []byte {
	b := binary.LittleEndian.AppendUint64(nil, 1)
	b = binary.LittleEndian.AppendUint64(b, offset)
	b = binary.LittleEndian.AppendUint64(b, uint64(len(text)))
	return request(fuse.Write, unique, append(append(b, make([]byte, 16)...), text...)...)
}

// TestBehind: ranks do not wait for their writes, which go to margay run as few large ones. A close
// waits for all of them.
func TestBehind(t *testing.T) {
	r, linux := start(t, time.Now())
	first := connect(t, r)
	r.awaitStream()
	for i, text := range []string{"one", "two", "six"} {
		write(t, linux, part(uint64(i), uint64(3*i), text))
		if errno := answer(t, linux, uint64(i)); errno != 0 {
			t.Errorf("write %d: %v", i, errno)
		}
	}
	write(t, linux, request(fuse.Flush, 3, binary.LittleEndian.AppendUint64(make([]byte, 0, 24), 1)[:24]...))
	var frames []share.Frame
	for _, want := range []string{"one", "twosix"} {
		f, unique := next(t, first)
		if w, err := fuse.Parse(f.Body); err != nil || string(w.Data) != want || !w.Behind {
			t.Errorf("%+v, %v; want a write of %q", w, err, want)
		}
		frames = append(frames, f)
		reply(t, first, f, fuse.Finish(fuse.AppendWritten(fuse.NewAnswer(unique, 8), len(want))))
	}
	f, unique := next(t, first)
	if unique != 3 {
		t.Errorf("request %d comes after the writes", unique)
	}
	first.Close()
	second := connect(t, r)
	if f, unique = next(t, second); unique != 3 || f.Floor != frames[1].Number+1 {
		t.Errorf("request %d with floor %d comes over the next stream", unique, f.Floor)
	}
	reply(t, second, f, fuse.Failed(3, unix.ENOSPC))
	if errno := answer(t, linux, 3); errno != unix.ENOSPC {
		t.Errorf("close: %v", errno)
	}
}

// TestLost: without margay run, requests fail after a while, and then at once.
func TestLost(t *testing.T) {
	r, linux := start(t, time.Now().Add(-patience))
	write(t, linux, request(fuse.MkDir, 2, []byte("xxxxxxxxa\x00")...))
	r.expire()
	if errno := answer(t, linux, 2); errno != unix.EIO {
		t.Errorf("MkDir: %v", errno)
	}
	write(t, linux, request(fuse.GetAttr, 3))
	if errno := answer(t, linux, 3); errno != unix.EIO {
		t.Errorf("GetAttr: %v", errno)
	}
}

// TestLostWrite: if a write that has returned is lost, the relay ends.
func TestLostWrite(t *testing.T) {
	r, linux := start(t, time.Now().Add(-patience))
	ended := false
	r.end = func() { ended = true }
	write(t, linux, part(2, 0, "lost"))
	if errno := answer(t, linux, 2); errno != 0 {
		t.Errorf("Write: %v", errno)
	}
	if r.expire(); !ended {
		t.Error("the relay goes on")
	}
}

// The window bounds the requests that the relay takes from Linux.
func TestWindow(t *testing.T) {
	r, linux := start(t, time.Now())
	run := connect(t, r)
	r.awaitStream()
	big := func(unique uint64) []byte { return request(fuse.Write, unique, make([]byte, 40+90<<10)...) }
	go func() {
		for unique := range uint64(12) {
			if _, err := linux.Write(big(unique)); err != nil {
				return
			}
		}
	}()
	for unique := range uint64(12) {
		f, got := next(t, run)
		if got != unique {
			t.Fatalf("request %d comes after %d", got, unique)
		}
		r.mu.Lock()
		room := r.queue.Room(big(0))
		r.mu.Unlock()
		if unique < 4 {
			continue // they fit together
		}
		if unique == 4 && room {
			t.Error("there is room for more than the window")
		}
		if unique == 4 {
			for n := range uint64(5) {
				reply(t, run, share.Frame{Number: n}, fuse.Finish(fuse.NewAnswer(n, 0)))
			}
			continue
		}
		reply(t, run, f, fuse.Finish(fuse.NewAnswer(unique, 0)))
	}
}
