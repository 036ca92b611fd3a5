package splice

import (
	"io"
	"net"
	"testing"
)

func TestJoin(t *testing.T) {
	a, near := net.Pipe()
	b, far := net.Pipe()
	joined := make(chan struct{})
	go func() {
		defer close(joined)
		Join(near, far)
	}()
	for from, to := range map[net.Conn]net.Conn{a: b, b: a} {
		go from.Write([]byte("word"))
		text := make([]byte, 4)
		if _, err := io.ReadFull(to, text); err != nil || string(text) != "word" {
			t.Errorf("%q, %v", text, err)
		}
	}
	a.Close()
	if _, err := b.Read(make([]byte, 1)); err != io.EOF {
		t.Errorf("one side has ended, the other one reads %v", err)
	}
	<-joined
}
