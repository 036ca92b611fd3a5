// Package splice joins two connections, so that the bytes of each go to the other.
package splice

import (
	"net"
	"sync"
)

// buffer is how many bytes are read from a side at once.
const buffer = 128 << 10

// Join passes bytes between two connections until one of them ends, and closes both. It reads from
// one side only what the other one takes. What a side has sent before its end reaches the other
// one, also if that still sends.
func Join(a, b net.Conn) {
	var both sync.WaitGroup
	pass := func(to, from net.Conn) {
		bytes := make([]byte, buffer)
		for {
			n, err := from.Read(bytes)
			if n > 0 {
				if _, err := to.Write(bytes[:n]); err != nil {
					return // to has ended: the other direction passes its last bytes on, and closes both
				}
			}
			if err != nil {
				break
			}
		}
		a.Close()
		b.Close()
	}
	both.Go(func() { pass(a, b) })
	both.Go(func() { pass(b, a) })
	both.Wait()
	a.Close() // where neither took what the other one sent
	b.Close()
}
