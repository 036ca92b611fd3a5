package control

import (
	"bytes"
	"errors"
	"net"
	"reflect"
	"testing"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
)

// anyRoom has room for every frame.
type anyRoom struct{}

func (anyRoom) Enter(int) error { return nil }
func (anyRoom) Leave(int)       {}

// A frame whose content takes much more memory than its length is not decoded on a connection with
// a Room. A command of many words is.
func TestMemory(t *testing.T) {
	words := make([][]byte, 1e5)
	for name, c := range map[string]struct {
		body proto.Message
		err  error
	}{
		"parts":  {&RunRequest{Exec: &Exec{Parts: many(1e5, new(Part))}}, errSpread},
		"places": {&RunReply{Places: many(1e5, new(Place))}, errSpread},
		"words":  {&RunRequest{Exec: &Exec{Argv: words, Env: words}}, nil},
		"nodes":  {&ResumeNodes{Nodes: make([]uint32, 1e5)}, nil},
	} {
		near, far := net.Pipe()
		in, out := NewConn(near), NewConn(far)
		in.Within(anyRoom{})
		got := make(chan proto.Message, 1)
		ended := make(chan error, 1)
		go func() { ended <- in.Serve(func(f *Frame) { got <- f.Message(); in.Close() }) }()
		if err := out.Send(c.body); err != nil {
			t.Fatal(err)
		}
		if err := <-ended; c.err != nil && !errors.Is(err, c.err) {
			t.Errorf("%s: the connection ends with %v", name, err)
		}
		if c.err == nil && (len(got) != 1 || !proto.Equal(<-got, c.body)) {
			t.Errorf("%s: it does not come", name)
		}
		in.Close()
		out.Close()
	}
}

func many[T any](n int, v T) []T {
	list := make([]T, n)
	for i := range list {
		list[i] = v
	}
	return list
}

// A frame of many messages, one after the other, is bounded too.
func TestMemoryOfBodies(t *testing.T) {
	var packet []byte
	for field := protowire.Number(1); field < 400; field++ {
		if body := emptyBody(field); body != nil {
			packet = protowire.AppendBytes(protowire.AppendTag(packet, field, protowire.BytesType), nil)
			if size := int(reflect.TypeOf(body).Elem().Size()); size > bodySize {
				t.Errorf("%T has %d bytes", body, size)
			}
		}
	}
	if _, err := parseFrame(bytes.Repeat(packet, 1000), spread*1000*len(packet)); !errors.Is(err, errSpread) {
		t.Errorf("it is decoded: %v", err)
	}
}
