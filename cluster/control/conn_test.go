package control

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/proto"
)

// An answer that came just before the end of the connection counts.
func TestAnswerAndHangUp(t *testing.T) {
	for range 50 {
		synctest.Test(t, func(t *testing.T) {
			a, b := connect(t)
			go func() {
				b.Serve(func(f *Frame) {
					b.Answer(f, &Done{}, nil)
					b.Flush(time.Second)
					go b.Close()
				})
			}()
			go a.Serve(func(*Frame) {})
			if _, err := a.Call(t.Context(), &Status{}); err != nil {
				t.Fatal(err)
			}
		})
	}
}

// The opening is bounded in time, and a peer that begins with something else receives the reason.
func TestBadOpening(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := connect(t)
		if _, err := a.Meet(); err == nil || !strings.Contains(err.Error(), "control: opening: ") {
			t.Errorf("nobody says Hello: %v", err)
		}
		if _, err := b.Greet(new(Hello)); err == nil {
			t.Error("nobody answers, and yet")
		}
		a, b = connect(t)
		b.Send(new(Status))
		if _, err := a.Meet(); err == nil || err.Error() != "control: conversation begins with *control.Status, not Hello" {
			t.Errorf("the opening is %v", err)
		}
		a, b = connect(t)
		go func() {
			b.Meet()
			b.Send(new(Nodes))
		}()
		if _, err := a.Greet(new(Hello)); err == nil || !strings.HasSuffix(err.Error(), "answered Hello with *control.Nodes") {
			t.Errorf("the answer is %v", err)
		}
		x, y := net.Pipe()
		c := NewConn(x)
		defer c.Close()
		go func() {
			y.Write([]byte("GET / HTTP/1.1\r\n"))
			io.Copy(io.Discard, y)
		}()
		if _, err := c.Meet(); err == nil || !strings.Contains(err.Error(), "frame of 1195725856 bytes, at most 65536 are allowed") {
			t.Errorf("a browser says %v", err)
		}
		y.Close()
	})
}

// A peer that does not read cannot delay Flush, and with it Refuse, beyond the limit.
func TestFlushIsBounded(t *testing.T) {
	for range 50 {
		synctest.Test(t, func(t *testing.T) {
			a, _ := connect(t)
			if err := a.Send(new(Done)); err != nil {
				t.Fatal(err)
			}
			begin := time.Now()
			a.Flush(time.Minute)
			if d := time.Since(begin); d != time.Minute {
				t.Errorf("it took %v", d)
			}
			a.Refuse(errors.New("no"))
			<-a.Done()
			a.Flush(time.Hour)
			if d := time.Since(begin); d != time.Minute+time.Second {
				t.Errorf("then it took %v", d)
			}
		})
	}
}

// slowClose is a stream that takes a while to close, as one of TLS does whose other side does not
// read.
type slowClose struct{ net.Conn }

func (s slowClose) Close() error {
	time.Sleep(5 * time.Second)
	return s.Conn.Close()
}

// Only Close waits until a stream is closed.
func TestEndIsQuick(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		near, far := net.Pipe()
		c := NewConn(slowClose{near})
		begin := time.Now()
		go c.Serve(func(*Frame) {})
		far.Close()
		<-c.Done()
		if err := c.Send(new(Done)); !errors.Is(err, ErrClosed) || time.Since(begin) != 0 {
			t.Errorf("after %v Send says %v", time.Since(begin), err)
		}
		c.Close()
		if d := time.Since(begin); d != 5*time.Second {
			t.Errorf("it was closed after %v", d)
		}
	})
}

func TestFlush(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := connect(t)
		var got int
		go func() {
			time.Sleep(time.Second)
			b.Serve(func(*Frame) { got++ })
		}()
		for range 100 {
			if err := a.Send(&LogLine{Text: strings.Repeat("x", 1000)}); err != nil {
				t.Fatal(err)
			}
		}
		begin := time.Now()
		a.Flush(time.Hour)
		synctest.Wait()
		if got != 100 || time.Since(begin) != time.Second {
			t.Errorf("%d frames came after %v", got, time.Since(begin))
		}
	})
}

// A bulk sender waits for a slow reader, and stops waiting when the connection or its context ends.
func TestSendBulk(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		because := errors.New("because")
		for _, end := range []string{"context", "connection"} {
			a, _ := connect(t)
			ctx, cancel := context.WithCancelCause(t.Context())
			ended := make(chan error)
			sent := 0
			go func() {
				for {
					if err := a.SendBulk(ctx, &FileChunk{Data: make([]byte, 1<<20)}); err != nil {
						ended <- err
						return
					}
					sent++
				}
			}()
			synctest.Wait()
			if sent < 1 || sent > 3 {
				t.Errorf("%d MiB are queued for nobody", sent)
			}
			if end == "context" {
				cancel(because)
				if err := <-ended; err != because {
					t.Errorf("the %s ended: %v", end, err)
				}
			} else {
				a.Close()
				if err := <-ended; !errors.Is(err, ErrClosed) {
					t.Errorf("the %s ended: %v", end, err)
				}
			}
			cancel(nil)
		}
	})
}

func TestFrameTooLong(t *testing.T) {
	var out bytes.Buffer
	long := NewFrame(&FileChunk{Data: make([]byte, MaxFrame)})
	if err := WriteFrame(&out, long); err == nil || out.Len() != 0 {
		t.Errorf("%d bytes were written, %v", out.Len(), err)
	}
	a, _ := connect(t)
	if err := a.Send(&FileChunk{Data: make([]byte, MaxFrame)}); err == nil || a.Err() != nil {
		t.Errorf("a frame that is too long: %v, and the connection is %v", err, a.Err())
	}
	if _, err := a.Call(t.Context(), &InsertExtension{Object: make([]byte, MaxFrame)}); err == nil || len(a.calls) != 0 {
		t.Errorf("a request that is too long: %v", err)
	}
}

// An end within a frame is not a clean end.
func TestTornFrame(t *testing.T) {
	var out bytes.Buffer
	if err := WriteFrame(&out, NewFrame(&LogLine{Text: "hello"})); err != nil {
		t.Fatal(err)
	}
	for n := range out.Len() {
		_, err := ReadFrame(bytes.NewReader(out.Bytes()[:n]))
		if (n == 0) != (err == io.EOF) || n > 0 && !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Errorf("%d of %d bytes: %v", n, out.Len(), err)
		}
	}
}

func TestStrangeBody(t *testing.T) {
	f := new(Frame)
	if err := proto.Unmarshal([]byte{0xfa, 0x3f, 0}, f); err != nil { // field 1023, which a later version may have
		t.Fatal(err)
	}
	if m := f.Message(); m != nil {
		t.Errorf("the frame carries %v", m)
	}
	defer func() {
		if recover() == nil {
			t.Error("a frame carries what is no message of its own")
		}
	}()
	NewFrame(new(Place))
}

func TestFailure(t *testing.T) {
	cases := []struct {
		err  error
		code Code
		want string
	}{
		{Failf(Code_CODE_NO_ROOM, "%d", 1), Code_CODE_NO_ROOM, "1"},
		{Failf(Code_CODE_NO_ROOM, "x").At(0), Code_CODE_NO_ROOM, "node0: x"},
		{Failf(Code_CODE_NO_ROOM, "x").Of(0), Code_CODE_NO_ROOM, "rank 0: x"},
		{Failf(Code_CODE_NO_ROOM, "x").Of(2).At(1), Code_CODE_NO_ROOM, "rank 2 on node1: x"},
		{fmt.Errorf("wrapped: %w", Failf(Code_CODE_REFUSED, "x")), Code_CODE_REFUSED, "x"},
		{fmt.Errorf("late: %w", context.DeadlineExceeded), Code_CODE_TIMEOUT, "late: context deadline exceeded"},
		{io.EOF, Code_CODE_FAILED, "EOF"},
	}
	for _, k := range cases {
		err := FromError(k.err).Err()
		if err.Error() != k.want || !errors.Is(err, &Failure{Code: k.code}) || errors.Is(err, &Failure{Code: Code_CODE_VERSION}) {
			t.Errorf("%v arrives as %v", k.err, err)
		}
	}
	if err := (*Error)(nil).Err(); err != nil {
		t.Errorf("no error arrives as %v", err)
	}
}

// A dismissed peer gets the reason, even while it waits for an answer. Dismiss waits at most a
// second for a peer that does not read.
func TestDismiss(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := connect(t)
		served := make(chan error, 1)
		go func() { served <- a.Serve(func(*Frame) {}) }()
		asked := make(chan error, 1)
		go func() {
			_, err := a.Call(t.Context(), new(Status))
			asked <- err
		}()
		go b.Serve(func(*Frame) {})
		synctest.Wait()
		begun := time.Now()
		b.Dismiss(Failf(Code_CODE_DOWN, "the machine goes down"))
		if took := time.Since(begun); took != 0 {
			t.Errorf("the other side has ended, and is waited for for %v", took)
		}
		for _, err := range []error{<-served, <-asked, a.Err()} {
			if !errors.Is(err, &Failure{Code: Code_CODE_DOWN}) || err.Error() != "the machine goes down" {
				t.Errorf("it is told: %v", err)
			}
		}
		a, b = connect(t)
		begun = time.Now()
		b.Dismiss(errors.New("x"))
		if took := time.Since(begun); took != time.Second {
			t.Errorf("a side that does not listen is waited for for %v", took)
		}
	})
}

// No frame is written into a plain stream when its connection is dismissed.
func TestDismissStream(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := connect(t)
		near, far := a.Stream(), b.Stream()
		go near.Write([]byte("word"))
		word := make([]byte, 4)
		if _, err := io.ReadFull(far, word); err != nil || string(word) != "word" {
			t.Fatalf("%q, %v", word, err)
		}
		go a.Dismiss(errors.New("serve ends"))
		if rest, err := io.ReadAll(far); err != nil || len(rest) > 0 {
			t.Errorf("%q, %v", rest, err)
		}
	})
}

// What no frame can carry is answered with an error that says so, and the connection goes on.
func TestAnswerThatDoesNotFit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := connect(t)
		bodies := []proto.Message{&Samples{Trouble: strings.Repeat("x", MaxFrame)}, &Samples{Trouble: "\xff"}, &Samples{Trouble: "x"}}
		go b.Serve(func(f *Frame) {
			body := bodies[0]
			bodies = bodies[1:]
			b.Answer(f, body, nil)
		})
		go a.Serve(func(*Frame) {})
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		for _, want := range []string{"the answer, Samples, cannot be sent: control: frame of ", "the answer, Samples, cannot be sent: control: encode frame: "} {
			if _, err := a.Call(ctx, &TakeSamples{}); err == nil || !strings.HasPrefix(err.Error(), want) {
				t.Errorf("it is answered with %v", err)
			}
		}
		if answer, err := a.Call(t.Context(), &TakeSamples{}); err != nil {
			t.Errorf("the next request is answered with %v, %v", answer, err)
		}
	})
}
