package wayback

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"sync"
	"testing"
)

// Several connections at a time carry what both ends write, and their ends.
func TestConnections(t *testing.T) {
	service, far := listen(t), listen(t)
	go func() {
		for {
			c, err := service.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				text, err := io.ReadAll(c) // until the other end is shut
				if err == nil {
					_, _ = c.Write(append([]byte("echo "), text...))
				}
			}()
		}
	}()
	toNode, fromClient := io.Pipe()
	toClient, fromNode := io.Pipe()
	var sides sync.WaitGroup
	sides.Go(func() {
		if err := ServeNode(far, toNode, fromNode); err != nil {
			t.Errorf("the node's side: %v", err)
		}
		fromNode.Close()
	})
	sides.Go(func() {
		dial := func() (net.Conn, error) { return net.Dial("tcp", service.Addr().String()) }
		if err := ServeClient(dial, toClient, fromClient); err != nil {
			t.Errorf("the client's side: %v", err)
		}
	})
	var users sync.WaitGroup
	for i := range 20 {
		users.Go(func() {
			c, err := net.Dial("tcp", far.Addr().String())
			if err != nil {
				t.Error(err)
				return
			}
			defer c.Close()
			text := bytes.Repeat(fmt.Append(nil, i, " "), i*i*100)
			go func() {
				_, _ = c.Write(text)
				_ = c.(*net.TCPConn).CloseWrite()
			}()
			if got, err := io.ReadAll(c); err != nil || string(got) != "echo "+string(text) {
				t.Errorf("connection %d has %d bytes back, %v", i, len(got), err)
			}
		})
	}
	users.Wait()
	fromClient.Close()
	sides.Wait()
}

// answering is a client's side that writes data of a connection as soon as it knows the connection,
// and ends.
type answering struct{ toNode *io.PipeWriter }

func (a answering) Write(b []byte) (int, error) {
	if kind(b[0]) == open {
		_, _ = a.toNode.Write(encode([]frame{{data, binary.BigEndian.Uint32(b[1:]), []byte("welcome")}}))
		a.toNode.Close()
	}
	return len(b), nil
}

// The data of a service that writes first arrive, however early.
func TestFirstWord(t *testing.T) {
	far := listen(t)
	toNode, fromClient := io.Pipe()
	ended := make(chan error, 1)
	go func() { ended <- ServeNode(far, toNode, answering{fromClient}) }()
	c, err := net.Dial("tcp", far.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if text, err := io.ReadAll(c); err != nil || string(text) != "welcome" {
		t.Errorf("the connection has brought %q, %v", text, err)
	}
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// A connection too many is shut, and the others go on.
func TestTooMany(t *testing.T) {
	var in []frame
	for number := range uint32(maxConns + 1) {
		in = append(in, frame{kind: open, number: number})
	}
	dialled := 0
	dial := func() (net.Conn, error) {
		dialled++
		near, far := net.Pipe()
		t.Cleanup(func() { far.Close() })
		return near, nil
	}
	if err := ServeClient(dial, bytes.NewReader(encode(in)), io.Discard); err != nil || dialled != len(in) {
		t.Errorf("%v, after %d connections", err, dialled)
	}
}

// A connection without an answer ends. A side that breaks the rules is left.
func TestRefused(t *testing.T) {
	for name, in := range map[string][]frame{
		"data without a connection": {{data, 7, []byte("x")}, {kind: shut, number: 8}},
		"no such service":           {{kind: open, number: 1}, {data, 1, []byte("x")}},
	} {
		var out bytes.Buffer
		err := ServeClient(func() (net.Conn, error) { return nil, io.ErrClosedPipe }, bytes.NewReader(encode(in)), &out)
		if want := encode([]frame{{kind: shut, number: 1}}); err != nil || in[0].kind == open && !bytes.Equal(out.Bytes(), want) {
			t.Errorf("%s: %v, and the answer %x", name, err, out.Bytes())
		}
	}
	for name, in := range map[string][]byte{
		"kind":      {9, 0, 0, 0, 1, 0, 0, 0, 0},
		"length":    {byte(data), 0, 0, 0, 1, 0xff, 0, 0, 0},
		"no data":   {byte(data), 0, 0, 0, 1, 0, 0, 0, 0},
		"open data": {byte(open), 0, 0, 0, 1, 0, 0, 0, 1, 'x'},
		"cut":       {byte(data), 0, 0, 0, 1, 0, 0, 0, 2, 'x'},
	} {
		if err := ServeClient(nil, bytes.NewReader(in), io.Discard); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
	if err := ServeNode(listen(t), bytes.NewReader(encode([]frame{{kind: open, number: 1}})), io.Discard); err == nil {
		t.Error("the client's side may open connections")
	}
	near, _ := net.Pipe()
	dial := func() (net.Conn, error) { return near, nil }
	if err := ServeClient(dial, bytes.NewReader(encode([]frame{{kind: open, number: 1}, {kind: open, number: 1}})), io.Discard); err == nil {
		t.Error("two connections have one number")
	}
}

func encode(frames []frame) (b []byte) {
	for _, f := range frames {
		b = f.append(b)
	}
	return b
}

func listen(t *testing.T) net.Listener {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return l
}

// A frame that can be read is the same when it is written.
func FuzzFrame(f *testing.F) {
	f.Add(encode([]frame{{kind: open, number: 1}, {data, 1, []byte("hello")}, {kind: shut, number: 1}}))
	f.Add([]byte{byte(data), 0, 0, 0, 1, 0, 0, 0x80, 0})
	f.Fuzz(func(t *testing.T, in []byte) {
		r := bytes.NewReader(in)
		for {
			before := len(in) - r.Len()
			got, err := readFrame(r)
			if err != nil {
				return
			}
			if again := got.append(nil); !bytes.Equal(again, in[before:len(in)-r.Len()]) {
				t.Fatalf("%x is read as %v and written as %x", in[before:], got, again)
			}
		}
	})
}
