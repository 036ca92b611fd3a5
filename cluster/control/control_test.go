package control

import (
	"bytes"
	"context"
	"errors"
	"io"
	"math"
	"net"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
)

func connect(t *testing.T) (a, b *Conn) {
	t.Helper()
	x, y := net.Pipe()
	a, b = NewConn(x), NewConn(y)
	t.Cleanup(func() { a.Close(); b.Close() })
	return a, b
}

func TestOpening(t *testing.T) {
	a, b := connect(t)
	go func() {
		hello, err := b.Meet()
		if err != nil || hello.Role != Role_ROLE_NODE {
			t.Errorf("met %v, %v", hello, err)
		}
		b.Send(&Welcome{Version: Version, Machine: "m"})
	}()
	w, err := a.Greet(&Hello{Role: Role_ROLE_NODE, Program: "test"})
	if err != nil || w.Machine != "m" {
		t.Fatal(w, err)
	}
}

// Every message is wrapped, unwrapped, encoded and decoded as by reflection.
func TestFrames(t *testing.T) {
	for name, field := range bodies() {
		body := new(Frame).ProtoReflect().NewField(field).Message()
		want := new(Frame)
		want.ProtoReflect().Set(field, protoreflect.ValueOfMessage(body))
		f := NewFrame(body.Interface())
		if !proto.Equal(f, want) || f.Message() != body.Interface() {
			t.Errorf("%s became %v, with %v", name, f, f.Message())
		}
		f.Call, f.Answer = 7, math.MaxUint64
		packet, err := encode(f)
		if err != nil {
			t.Fatal(err)
		}
		if want, _ := proto.Marshal(f); !bytes.Equal(packet[lengthSize:], want) {
			t.Errorf("%s was encoded as %x, not %x", name, packet, want)
		}
		if got, err := parseFrame(packet[lengthSize:], unlimited); err != nil || !proto.Equal(got, f) {
			t.Errorf("%s came back as %v, %v", name, got, err)
		}
	}
	if m := new(Frame).Message(); m != nil {
		t.Errorf("an empty frame has %v", m)
	}
}

// Frames are decoded as by protobuf.
func FuzzFrame(f *testing.F) {
	for _, frame := range []*Frame{
		NewFrame(&Hello{Version: 7, Token: "token"}), NewFrame(&Attach{Job: 3}), NewFrame(&RunRequest{Spec: &JobSpec{Ranks: 2}, Files: []byte("files")}), {Answer: 5},
	} {
		packet, err := encode(frame)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(packet[lengthSize:])
		f.Add(slices.Concat(packet[lengthSize:], packet[lengthSize:]))
		f.Add(slices.Concat(packet[lengthSize:], []byte{0x08, 0x80}))
	}
	f.Add([]byte{0xf2, 0x00, 0x00})       // an unknown field with a long tag
	f.Add([]byte{0x52, 0x01, 0x0a})       // a Hello that is cut off
	f.Add([]byte{0x52, 0x00, 0x5a, 0x00}) // two messages: the last one counts
	f.Fuzz(func(t *testing.T, packet []byte) {
		if err := sameFrame(packet); err != nil {
			t.Error(err)
		}
	})
}

func TestVersionMismatch(t *testing.T) {
	a, b := connect(t)
	go func() {
		if _, err := b.Meet(); err != nil {
			b.Refuse(err)
		}
	}()
	_, err := a.Greet(&Hello{Version: Version + 1, Program: "node image 9"})
	if !errors.Is(err, &Failure{Code: Code_CODE_VERSION}) {
		t.Fatalf("error %v is no version failure", err)
	}
}

func TestCall(t *testing.T) {
	a, b := connect(t)
	go a.Serve(func(*Frame) {})
	go b.Serve(func(f *Frame) {
		switch f.Message().(type) {
		case *ListNodes:
			b.Answer(f, &Nodes{Nodes: []*NodeState{{Node: 3}}}, nil)
		case *Status:
			// never answered
		default:
			b.Answer(f, nil, Failf(Code_CODE_NOT_FOUND, "no such job").At(2).Of(5))
		}
	})
	m, err := a.Call(t.Context(), &ListNodes{})
	if err != nil || m.(*Nodes).Nodes[0].Node != 3 {
		t.Fatal(m, err)
	}
	_, err = a.Call(t.Context(), &Kill{})
	var f *Failure
	if !errors.As(err, &f) || f.Node != 2 || f.Rank != 5 || err.Error() != "rank 5 on node2: no such job" {
		t.Fatalf("error %v", err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	if _, err := a.Call(ctx, &Status{}); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("unanswered call: %v", err)
	}
	b.Close()
	if _, err := a.Call(t.Context(), &Status{}); err == nil {
		t.Fatal("call over a closed connection succeeded")
	}
}

func TestSlowPeerDoesNotBlockSender(t *testing.T) {
	a, _ := connect(t) // without a reader
	chunk := &FileChunk{Data: make([]byte, 1<<20)}
	var err error
	for range 2 * queueLimit >> 20 {
		if err = a.Send(chunk); err != nil {
			break
		}
	}
	if err == nil {
		t.Fatal("an unread connection took without bound")
	}
	b, _ := connect(t)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	for err = nil; err == nil; {
		err = b.SendBulk(ctx, chunk)
	}
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("bulk to an unread connection: %v", err)
	}
}

func TestEveryBodyRoundTrips(t *testing.T) {
	for name, field := range bodies() {
		f := new(Frame)
		f.ProtoReflect().Set(field, f.ProtoReflect().NewField(field))
		var buf bytes.Buffer
		if err := WriteFrame(&buf, f); err != nil {
			t.Fatal(err)
		}
		got, err := ReadFrame(&buf)
		if err != nil || got.Message() == nil || got.Message().ProtoReflect().Descriptor().FullName() != name {
			t.Errorf("%s came back as %v, %v", name, got, err)
		}
	}
}

// Errors may name paths that are not UTF-8.
func TestErrorIsText(t *testing.T) {
	var buf bytes.Buffer
	if err := WriteFrame(&buf, NewFrame(FromError(errors.New("open /\xff: no such file")))); err != nil {
		t.Fatal(err)
	}
	if f, err := ReadFrame(&buf); err != nil || f.GetError().GetText() != "open /?: no such file" {
		t.Errorf("it came as %v, %v", f, err)
	}
}

func FuzzReadFrame(f *testing.F) {
	var buf bytes.Buffer
	WriteFrame(&buf, NewFrame(&Register{Node: 1, Info: &NodeInfo{Cores: []uint32{1, 2}}}))
	f.Add(buf.Bytes())
	f.Add([]byte{255, 255, 255, 255})
	f.Add([]byte{0, 0, 0, 2, 8, 1})
	f.Fuzz(func(t *testing.T, data []byte) {
		r := bytes.NewReader(data)
		for {
			frame, err := ReadFrame(r)
			if err != nil {
				if err == io.EOF && r.Len() != 0 {
					t.Fatal("end of input reported before the end")
				}
				return
			}
			frame.Message()
			if _, err := proto.Marshal(frame); err != nil {
				t.Fatal(err)
			}
		}
	})
}

// Linux reports the process at the other end of a unix socket, and its user with all groups.
func TestPeerOf(t *testing.T) {
	l, err := net.Listen("unix", filepath.Join(t.TempDir(), "s"))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	near, err := net.Dial("unix", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer near.Close()
	far, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer far.Close()
	groups, err := os.Getgroups()
	if err != nil {
		t.Fatal(err)
	}
	for _, end := range []net.Conn{near, far} {
		peer, err := PeerOf(end)
		if err != nil || peer.UID != uint32(os.Getuid()) || peer.PID != int32(os.Getpid()) {
			t.Errorf("%v, %v", peer, err)
		}
		for _, gid := range append(groups, os.Getgid()) {
			if !slices.Contains(peer.GIDs, uint32(gid)) {
				t.Errorf("group %d is not among %v", gid, peer.GIDs)
			}
		}
	}
	pipe, _ := net.Pipe()
	if peer, err := PeerOf(pipe); err == nil {
		t.Errorf("%v is at the end of a pipe", peer)
	}
}
