// Package relay is the process of a job on a node that has the job's shared folders: it mounts
// them, and passes what ranks do under them to margay run (package share). Most writes it answers
// itself, and carries them out behind the rank.
//
// The job's init starts it in the namespaces of the job, before the ranks. It is not the init
// itself: Go stops the scheduling of a process that starts another until that has executed its
// program, which may be in a shared folder. When it ends, Linux fails all that waits for its
// folders. It survives the node kernel, which gives it a stream to margay run, and another one when
// that breaks.
//
// Locks, outermost first: stream.sending is held while a frame is written, relay.mu guards the
// queue of requests and the current stream.
package relay

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"margay/kernel/abi/fuse"
	"margay/kernel/abi/share"
	"margay/kernel/link"
	"margay/kernel/task"
)

// Descriptors that the job's init gives to the relay, and what it is started with.
const (
	LinkFD   = 3 // streams come over it
	DeviceFD = 4 // /dev/fuse, opened with O_PATH
	Word     = "share"
)

// patience is how long requests wait while there is no stream: margay run looks for a new serve for
// 20 s. Then they fail with EIO, and so do all later ones.
const patience = 30 * time.Second

// greetingWait bounds how long margay run takes to answer the first frame of a stream. A stopped
// one may take longer, and gets another stream.
const greetingWait = 20 * time.Second

// Config says what a relay mounts.
type Config struct {
	UID, GID int // of the ranks
	Folders  []task.SharedFolder
}

// Argument returns the argument that Main reads a configuration from.
func (c Config) Argument() string {
	text, err := json.Marshal(c)
	if err != nil {
		panic(fmt.Sprintf("relay: configuration: %v", err)) // it is plain
	}
	return string(text)
}

// Main mounts the folders, closes standard output when that is done, with the reason if it has
// failed, and passes requests on until the process is killed.
func Main(argument string) error {
	var c Config
	if err := json.Unmarshal([]byte(argument), &c); err != nil {
		return fmt.Errorf("relay: configuration: %w", err)
	}
	conn, err := link.NewConn(os.NewFile(LinkFD, "link"))
	if err != nil {
		return err
	}
	r := newRelay(c, time.Now())
	for _, f := range c.Folders {
		device, err := mount(c, f)
		if err != nil {
			fmt.Fprint(os.Stdout, err)
			return err
		}
		r.devices = append(r.devices, device)
	}
	os.Stdout.Close()
	r.await()
	for i, d := range r.devices {
		go r.take(uint8(i), d)
	}
	for {
		m, err := conn.Recv()
		if err != nil {
			return err
		}
		for _, f := range m.Files {
			go r.open(f)
		}
	}
}

// mount mounts a shared folder and returns the device with its requests.
func mount(c Config, f task.SharedFolder) (*os.File, error) {
	fd, err := unix.Open(fmt.Sprintf("/proc/self/fd/%d", DeviceFD), unix.O_RDWR|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, fmt.Errorf("open /dev/fuse: %w", err)
	}
	flags := uintptr(unix.MS_NOSUID | unix.MS_NODEV)
	if f.ReadOnly {
		flags |= unix.MS_RDONLY
	}
	options := fmt.Sprintf("fd=%d,rootmode=40000,user_id=%d,group_id=%d,allow_other,max_read=%d", fd, c.UID, c.GID, fuse.MaxData)
	if err := unix.Mount("margay", f.Path, "fuse", flags, options); err != nil {
		return nil, errors.Join(fmt.Errorf("mount %s: %w", f.Path, err), unix.Close(fd))
	}
	// Only now: Linux reports no requests to an epoll that has got the device before.
	return os.NewFile(uintptr(fd), "/dev/fuse"), nil
}

// relay has the requests that are not answered, and passes them on.
type relay struct {
	config  Config
	devices []*os.File // by folder
	end     func()     // ends the process

	mu      sync.Mutex
	changed sync.Cond
	queue   *share.Queue
	stream  *stream // nil: none
	timer   *time.Timer
}

// stream is a connection to margay run.
type stream struct {
	net.Conn
	in      *bufio.Reader
	sending sync.Mutex // the floors of requests do not fall
	header  []byte     // guarded by sending

	wake  chan struct{}    // has a value when there is something in ready
	ready []*share.Pending // to be sent by pass; guarded by relay.mu
}

func newRelay(c Config, now time.Time) *relay {
	r := &relay{config: c, end: func() { os.Exit(1) }, queue: share.NewQueue(patience, now)}
	r.changed.L = &r.mu
	return r
}

// await lets requests fail after a while without a stream.
func (r *relay) await() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.timer != nil {
		r.timer.Stop()
	}
	r.timer = time.AfterFunc(patience, r.expire)
}

// expire fails the requests that have waited for a stream for too long. If data are lost that ranks
// take for written, it ends the process, and the job's init then kills the ranks: many would not
// notice that their close has failed.
func (r *relay) expire() {
	r.mu.Lock()
	todo := r.queue.Expire(time.Now())
	r.changed.Broadcast()
	r.mu.Unlock()
	r.reply(todo)
	if todo.Lost {
		fmt.Fprintf(os.Stderr, "margay: shared folders: margay run was away for %v, and data that ranks have written are lost\n", patience)
		r.end()
	}
}

// reply gives Linux the answers of todo. It may not wait for them any more.
func (r *relay) reply(todo share.Todo) {
	for _, reply := range todo.Replies {
		r.answer(reply.Folder, reply.Body)
	}
}

// answer gives Linux an answer.
func (r *relay) answer(folder uint8, answer []byte) { _, _ = r.devices[folder].Write(answer) }

// take takes requests from a device until its folder is unmounted.
func (r *relay) take(folder uint8, device *os.File) {
	// Linux fills all of it when it has many nodes to forget, and margay run takes no longer
	// request.
	buffer := make([]byte, fuse.MaxRequest)
	for {
		n, err := device.Read(buffer)
		switch {
		case errors.Is(err, unix.ENOENT): // a request was given up before it was read
			continue
		case err != nil:
			return
		}
		r.request(folder, bytes.Clone(buffer[:n]))
	}
}

// request takes a request, when there is room for it.
func (r *relay) request(folder uint8, body []byte) {
	h, err := fuse.ReadHeader(body)
	if err != nil {
		return
	}
	switch h.Opcode {
	case fuse.Init:
		answer, err := fuse.AnswerInit(body)
		if err != nil {
			fmt.Fprintf(os.Stderr, "margay: shared folders: %v\n", err)
			answer = fuse.Failed(h.Unique, unix.EPROTO)
		}
		r.answer(folder, answer)
		return
	case fuse.Interrupt: // the answer comes soon, or never
		return
	}
	r.mu.Lock()
	for !r.queue.Room(body) {
		r.changed.Wait()
	}
	todo, s := r.queue.Take(folder, body), r.stream
	r.mu.Unlock()
	r.reply(todo)
	if s != nil {
		for _, p := range todo.Send {
			r.send(s, p)
		}
	}
}

// send sends a request over a stream if it is not answered yet. If the stream is gone, it is sent
// over the next one.
func (r *relay) send(s *stream, p *share.Pending) {
	s.sending.Lock()
	defer s.sending.Unlock()
	r.mu.Lock()
	f, open := r.queue.Frame(p)
	r.mu.Unlock()
	if !open {
		return
	}
	s.header = f.AppendHeader(s.header[:0])
	packet := net.Buffers{s.header, f.Body} // in one call, without a copy
	if _, err := packet.WriteTo(s.Conn); err != nil {
		s.Close() // its reader sees that
	}
}

// pass sends the requests that are ready, until the stream has ended. The goroutine that takes
// answers does not send: margay run may wait until it goes on.
func (r *relay) pass(s *stream) {
	for range s.wake {
		r.mu.Lock()
		ready := s.ready
		s.ready = nil
		r.mu.Unlock()
		for _, p := range ready {
			r.send(s, p)
		}
	}
}

// later has pass send requests. The caller holds relay.mu.
func (s *stream) later(send []*share.Pending) {
	if len(send) == 0 {
		return
	}
	s.ready = append(s.ready, send...)
	select {
	case s.wake <- struct{}{}:
	default: // it has not looked yet
	}
}

// open begins with a new stream, which takes the place of the last one.
func (r *relay) open(f *os.File) {
	conn, err := net.FileConn(f)
	f.Close()
	if err != nil {
		return
	}
	s := &stream{Conn: conn, in: bufio.NewReader(conn), wake: make(chan struct{}, 1)}
	defer s.Close()
	window, err := r.greet(s)
	if err != nil {
		return
	}
	r.mu.Lock()
	if old := r.stream; old != nil {
		old.Close()
	}
	r.stream = s
	s.later(r.queue.Connected(window))
	r.changed.Broadcast()
	r.mu.Unlock()
	go r.pass(s)
	r.answers(s)
	r.mu.Lock()
	defer r.mu.Unlock()
	close(s.wake)
	if r.stream == s {
		r.stream = nil
		r.queue.Disconnected(time.Now())
		go r.await()
	}
}

// greet opens the conversation of a stream.
func (r *relay) greet(s *stream) (window int, err error) {
	s.SetDeadline(time.Now().Add(greetingWait))
	defer s.SetDeadline(time.Time{})
	hello := share.Greeting{UID: uint32(r.config.UID), GID: uint32(r.config.GID)}
	if _, err := s.Write(hello.Frame().Append(nil)); err != nil {
		return 0, err
	}
	f, err := share.ReadFrame(s.in)
	if err != nil {
		return 0, err
	}
	return share.ReadWelcome(f)
}

// answers takes answers from a stream until its end.
func (r *relay) answers(s *stream) {
	for {
		f, err := share.ReadFrame(s.in)
		if err != nil || f.Kind != share.Answer {
			return
		}
		r.mu.Lock()
		p, todo := r.queue.Answered(f.Number, f.Body)
		if r.stream != nil { // which is another one if this has just been replaced
			r.stream.later(todo.Send)
		}
		r.changed.Broadcast()
		r.mu.Unlock()
		r.reply(todo)
		if p != nil {
			r.deliver(p, f.Body)
		}
	}
}

// deliver gives Linux the answer to a request.
func (r *relay) deliver(p *share.Pending, answer []byte) {
	h, err := fuse.ReadHeader(p.Body)
	switch {
	case err != nil || !h.Opcode.Answered():
	case fuse.Valid(answer, h.Unique):
		if news := fuse.Changed(h, answer); news != nil {
			r.answer(p.Folder, news)
		}
		r.answer(p.Folder, answer)
	default:
		r.answer(p.Folder, fuse.Failed(h.Unique, unix.EIO))
	}
}
