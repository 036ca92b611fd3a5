package link

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"os"
	"testing"
	"time"
)

func pair(t *testing.T) (a, b *Conn) {
	t.Helper()
	a, far, err := Pair()
	if err != nil {
		t.Fatal(err)
	}
	if b, err = NewConn(far); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { a.Close(); b.Close() })
	return a, b
}

func TestMessageWithFiles(t *testing.T) {
	a, b := pair(t)
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	m := New("thing", map[string]int{"n": 3})
	m.Payload = []byte("payload")
	m.Files = []*os.File{w}
	if err := a.Send(m); err != nil {
		t.Fatal(err)
	}
	w.Close()
	got, err := b.Recv()
	if err != nil {
		t.Fatal(err)
	}
	var body map[string]int
	if err := got.Decode(&body); err != nil || body["n"] != 3 || got.Kind != "thing" || string(got.Payload) != "payload" {
		t.Fatalf("received %+v, %v", got, err)
	}
	if len(got.Files) != 1 {
		t.Fatalf("%d files", len(got.Files))
	}
	got.Files[0].WriteString("through the pipe")
	got.CloseFiles()
	text, err := io.ReadAll(r)
	if err != nil || string(text) != "through the pipe" {
		t.Fatalf("read %q, %v", text, err)
	}
}

func TestEndAndDeadline(t *testing.T) {
	a, b := pair(t)
	b.SetReadDeadline(time.Now().Add(20 * time.Millisecond))
	if _, err := b.Recv(); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Fatalf("Recv without a message: %v", err)
	}
	b.SetReadDeadline(time.Time{})
	dup, err := a.Dup()
	if err != nil {
		t.Fatal(err)
	}
	a.Close()
	b.SetReadDeadline(time.Now().Add(20 * time.Millisecond))
	if _, err := b.Recv(); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Fatalf("Recv while a copy of the other end is open: %v", err)
	}
	dup.Close()
	b.SetReadDeadline(time.Time{})
	if _, err := b.Recv(); err != io.EOF {
		t.Fatalf("Recv after the end: %v", err)
	}
}

// An end whose duplicate is sent over another link keeps its deadlines, and can be closed while a
// receiver waits.
func TestDuplicateIsSent(t *testing.T) {
	a, _ := pair(t)
	keeper, holder := pair(t)
	dup, err := a.Dup()
	if err != nil {
		t.Fatal(err)
	}
	err = keeper.Send(Message{Kind: "keep", Files: []*os.File{dup}})
	dup.Close()
	if err != nil {
		t.Fatal(err)
	}
	m, err := holder.Recv()
	if err != nil || len(m.Files) != 1 {
		t.Fatalf("received %+v, %v", m, err)
	}
	defer m.CloseFiles()
	a.SetReadDeadline(time.Now().Add(20 * time.Millisecond))
	if _, err := a.Recv(); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Fatalf("Recv without a message: %v", err)
	}
	a.SetReadDeadline(time.Time{})
	ended := make(chan error, 1)
	go func() {
		_, err := a.Recv()
		ended <- err
	}()
	time.Sleep(20 * time.Millisecond) // the receiver waits, most likely; the verdict does not depend on it
	a.Close()
	if err := <-ended; !errors.Is(err, os.ErrClosed) {
		t.Fatalf("Recv of a closed end: %v", err)
	}
}

func TestLimits(t *testing.T) {
	a, b := pair(t)
	if err := a.Send(Message{Kind: "big", Payload: make([]byte, MaxPayload+1)}); err == nil {
		t.Fatal("payload over the limit was sent")
	}
	if err := a.Send(Message{Kind: "fits", Payload: make([]byte, MaxPayload)}); err != nil {
		t.Fatal(err)
	}
	if m, err := b.Recv(); err != nil || len(m.Payload) != MaxPayload {
		t.Fatal(len(m.Payload), err)
	}
}

// A payload from Recv outlives the next message. One from Next is not copied.
func TestPayloads(t *testing.T) {
	a, b := pair(t)
	bound(t, a, b)
	for _, text := range []string{"first", "second", "third"} {
		if err := a.Send(Message{Kind: text, Payload: []byte(text)}); err != nil {
			t.Fatal(err)
		}
	}
	var kept Message
	for _, k := range []struct {
		receive func() (Message, error)
		want    string
	}{{b.Recv, "first"}, {b.Next, "second"}, {b.Next, "third"}} {
		m, err := k.receive()
		if err != nil || m.Kind != k.want || string(m.Payload) != k.want {
			t.Errorf("received %q with %q, %v", m.Kind, m.Payload, err)
		}
		if k.want == "first" {
			kept = m
		}
	}
	if string(kept.Payload) != "first" {
		t.Errorf("the first payload became %q", kept.Payload)
	}
}

func FuzzDecode(f *testing.F) {
	good, err := encode(Message{Kind: "kind", Body: json.RawMessage(`{"a":1}`), Payload: []byte("x")})
	if err != nil {
		f.Fatal(err)
	}
	f.Add(good)
	f.Add([]byte{255, 255, 255, 255, 1})
	f.Fuzz(func(t *testing.T, packet []byte) {
		m, err := decode(packet)
		if err != nil {
			return
		}
		again, err := encode(m)
		if err != nil {
			return // it was near the limit and grows when encoded again
		}
		m2, err := decode(again)
		if err != nil || m2.Kind != m.Kind || !bytes.Equal(m2.Payload, m.Payload) {
			t.Fatalf("%+v became %+v, %v", m, m2, err)
		}
	})
}
