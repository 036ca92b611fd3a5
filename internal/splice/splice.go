// Package splice joins two connections, so that the bytes of each go to the other.
package splice

import (
	"io"
	"net"
	"sync"
)

// buffer is how many bytes are read from a side at once.
const buffer = 128 << 10

// Join passes bytes between two connections until one of them ends, and closes both. It reads from
// one side only what the other one takes.
func Join(a, b net.Conn) {
	var both sync.WaitGroup
	pass := func(to, from net.Conn) {
		_, _ = io.CopyBuffer(struct{ io.Writer }{to}, struct{ io.Reader }{from}, make([]byte, buffer))
		a.Close()
		b.Close()
	}
	both.Go(func() { pass(a, b) })
	both.Go(func() { pass(b, a) })
	both.Wait()
}
