package share

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"math/rand/v2"
	"os"
	"slices"
	"testing"
	"time"

	"margay/internal/check"
	"margay/kernel/abi/fuse"
)

// request makes the header of a request, which is all that this package reads.
func request(opcode fuse.Opcode, unique uint64, size int) []byte {
	b := make([]byte, fuse.HeaderSize+size)
	binary.LittleEndian.PutUint32(b, uint32(len(b)))
	binary.LittleEndian.PutUint32(b[4:], uint32(opcode))
	binary.LittleEndian.PutUint64(b[8:], unique)
	return b
}

// histories is how many random histories the model plays.
func histories() int {
	if os.Getenv("MARGAY_SOAK") != "" {
		return 20000
	}
	return 100
}

// world is a relay and margay run, and a stream between them that breaks at random.
type world struct {
	t        *testing.T
	random   *rand.Rand
	now      time.Time
	requests *Requests
	answers  *Answers
	up, down []Frame         // on their way over the stream
	open     bool            // there is a stream, and the relay is welcome
	carried  map[uint64]int  // by unique number: how often it was carried out
	working  []Frame         // being carried out
	sending  []Frame         // with their answers, being sent
	due      map[uint64]bool // by unique number: requests that Linux waits for
	keeps    map[uint64]bool // of these, the ones that must not be carried out twice
	last     uint64
}

const patience = 30 * time.Second

func (w *world) pass(p *Pending) {
	if f, ok := w.requests.Frame(p); ok && w.open {
		w.up = append(w.up, f)
	}
}

// step does one thing at random. It makes no new requests when the history is to end.
func (w *world) step(more bool) {
	switch w.random.IntN(10) {
	case 0, 1:
		if more {
			w.ask()
		}
	case 2:
		if w.open && w.random.IntN(4) == 0 {
			w.open, w.up, w.down = false, nil, nil
			w.requests.Disconnected(w.now)
		}
	case 3:
		if !w.open && w.random.IntN(2) == 0 {
			w.open = true
			for _, p := range w.requests.Connected(MinWindow) {
				w.pass(p)
				if w.random.IntN(4) == 0 {
					w.pass(p) // its sender and the one that sends all again
				}
			}
		}
	case 4, 5:
		w.receive()
	case 6:
		if len(w.working) > 0 {
			i := w.random.IntN(len(w.working)) // in any order
			f := w.working[i]
			w.working = slices.Delete(w.working, i, i+1)
			h, _ := fuse.ReadHeader(f.Body)
			w.carried[h.Unique]++
			answer := fuse.Finish(fuse.NewAnswer(h.Unique, 0))
			w.answers.Executed(f, answer)
			if w.open {
				w.down = append(w.down, Frame{Kind: Answer, Number: f.Number, Body: answer})
			}
			w.sending = append(w.sending, f)
		}
	case 7:
		if len(w.sending) > 0 {
			w.answers.Sent(w.sending[0])
			w.sending = w.sending[1:]
		}
	case 8:
		w.answered()
	case 9:
		w.now = w.now.Add(time.Duration(w.random.Int64N(int64(patience) / 40)))
		if w.random.IntN(40) == 0 {
			w.now = w.now.Add(patience)
		}
		for _, p := range w.requests.Expire(w.now) {
			w.end(p)
		}
	}
}

// ask makes a request, if there is room.
func (w *world) ask() {
	kinds := []fuse.Opcode{fuse.Create, fuse.Write, fuse.Read, fuse.Unlink, fuse.GetAttr}
	opcode := kinds[w.random.IntN(len(kinds))]
	size := w.random.IntN(64)
	if opcode == fuse.Write {
		size = w.random.IntN(fuse.MaxData)
	}
	body := request(opcode, w.last+1, size)
	if !w.requests.Room(body) {
		return
	}
	w.last++
	p := w.requests.Add(0, body)
	if p == nil {
		return // EIO at once
	}
	w.due[w.last], w.keeps[w.last] = true, !opcode.Repeatable()
	w.pass(p)
}

// receive lets margay run take a frame.
func (w *world) receive() {
	if len(w.up) == 0 {
		return
	}
	f := w.up[0]
	if !w.answers.Room(f) {
		return
	}
	w.up = w.up[1:]
	do, answer, err := w.answers.Request(f)
	switch {
	case err != nil:
		w.t.Fatalf("an honest request is refused: %v", err)
	case do:
		w.working = append(w.working, f)
	case answer != nil:
		w.down = append(w.down, Frame{Kind: Answer, Number: f.Number, Body: answer})
	}
}

// answered lets the relay take a frame.
func (w *world) answered() {
	if len(w.down) == 0 {
		return
	}
	f := w.down[0]
	w.down = w.down[1:]
	if p := w.requests.Answered(f.Number); p != nil {
		h, _ := fuse.ReadHeader(p.Body)
		if !fuse.Valid(f.Body, h.Unique) {
			w.t.Fatalf("request %d has the answer of another one", h.Unique)
		}
		if w.carried[h.Unique] == 0 {
			w.t.Fatalf("request %d is answered and was not carried out", h.Unique)
		}
		w.end(p)
	}
}

// end notes that Linux has an answer.
func (w *world) end(p *Pending) {
	h, _ := fuse.ReadHeader(p.Body)
	if !w.due[h.Unique] {
		w.t.Fatalf("request %d is answered twice", h.Unique)
	}
	delete(w.due, h.Unique)
}

// TestModel plays random histories: each request gets one answer, also if streams break and answers
// are lost, and none that changes something is carried out twice.
func TestModel(t *testing.T) {
	seed := check.Seed(t)
	for history := range histories() {
		w := &world{
			t: t, random: rand.New(rand.NewPCG(seed, uint64(history))), answers: NewAnswers(MinWindow),
			carried: make(map[uint64]int), due: make(map[uint64]bool), keeps: make(map[uint64]bool), now: time.Unix(1, 0),
		}
		w.requests = NewRequests(patience, w.now)
		for range 400 {
			w.step(true)
		}
		for range 1000000 {
			if len(w.due) == 0 && len(w.working)+len(w.sending) == 0 {
				break
			}
			w.step(false)
		}
		if len(w.due) > 0 {
			t.Fatalf("history %d: %d requests have no answer", history, len(w.due))
		}
		for unique, times := range w.carried {
			if times > 1 && w.keeps[unique] {
				t.Errorf("history %d: request %d was carried out %d times", history, unique, times)
			}
		}
		if w.requests.used != 0 || w.answers.used != 0 {
			t.Errorf("history %d: %d and %d bytes are still counted", history, w.requests.used, w.answers.used)
		}
	}
}

// TestHostileWindow: a node that has given up requests, or says so, gets no room by that.
func TestHostileWindow(t *testing.T) {
	a := NewAnswers(MinWindow)
	taken := 0
	for n := range uint64(100) {
		f := Frame{Kind: Request, Number: n, Floor: n, Body: request(fuse.Write, n, fuse.MaxData)}
		if !a.Room(f) {
			continue
		}
		if do, _, err := a.Request(f); !do || err != nil {
			t.Fatalf("request %d: %v, %v", n, do, err)
		}
		taken++
	}
	if taken != 2 || len(a.entries) != 2 {
		t.Errorf("%d requests are carried out at once, %d are remembered", taken, len(a.entries))
	}
}

// TestHostileNode: a node that does not keep to its own numbers is cut off.
func TestHostileNode(t *testing.T) {
	for name, frames := range map[string][]Frame{
		"falling floor": {{Number: 9, Floor: 9}, {Number: 9, Floor: 8}},
		"below floor":   {{Number: 8, Floor: 9}},
		"far ahead":     {{Number: MaxAhead}},
		"another kind":  {{Kind: Answer}},
	} {
		t.Run(name, func(t *testing.T) {
			a := NewAnswers(MinWindow)
			var err error
			for _, f := range frames {
				if f.Kind == 0 {
					f.Kind = Request
				}
				f.Body = request(fuse.Write, 1, fuse.MaxData+40)
				if _, _, err = a.Request(f); err != nil {
					break
				}
			}
			if !errors.Is(err, ErrProtocol) {
				t.Errorf("%v", err)
			}
			if len(a.entries) > 2 {
				t.Errorf("%d requests are remembered", len(a.entries))
			}
		})
	}
}

func TestFrames(t *testing.T) {
	want := []Frame{
		Greeting{UID: 7, GID: 8}.Frame(), WelcomeFrame(Window(3)),
		{Kind: Request, Folder: 3, Number: 1 << 40, Floor: 9, Body: []byte("body")}, {Kind: Answer, Number: 5, Body: []byte{}},
	}
	var b []byte
	for _, f := range want {
		b = f.Append(b)
	}
	in := bytes.NewReader(b)
	for _, w := range want {
		f, err := ReadFrame(in)
		if err != nil || f.Kind != w.Kind || f.Folder != w.Folder || f.Number != w.Number || f.Floor != w.Floor || !bytes.Equal(f.Body, w.Body) {
			t.Fatalf("%+v, %v; want %+v", f, err, w)
		}
	}
	if _, err := ReadFrame(in); err != io.EOF {
		t.Errorf("at the end: %v", err)
	}
	if g, err := ReadGreeting(want[0]); err != nil || g != (Greeting{7, 8}) {
		t.Errorf("%+v, %v", g, err)
	}
	if n, err := ReadWelcome(want[1]); err != nil || n != MaxWindow {
		t.Errorf("%d, %v", n, err)
	}
	if n := Window(1 << 20); n < MinWindow {
		t.Errorf("the window of many nodes is %d", n)
	}
}

func FuzzReadFrame(f *testing.F) {
	f.Add(Greeting{}.Frame().Append(nil))
	f.Add(Frame{Kind: Request, Number: 3, Body: request(fuse.Lookup, 1, 5)}.Append(nil))
	f.Fuzz(func(t *testing.T, b []byte) {
		frame, err := ReadFrame(bytes.NewReader(b))
		if err != nil {
			return
		}
		_, _ = ReadGreeting(frame)
		_, _ = ReadWelcome(frame)
		if encoded := frame.Append(nil); !bytes.Equal(encoded, b[:len(encoded)]) {
			t.Errorf("%x is encoded as %x", b, encoded)
		}
	})
}
