package tcp

import (
	"io"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"margay/kernel/fabric"
)

// A node that takes frames slowly, but takes some all the time, gets all of them, however many are
// queued.
func TestSlowNode(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		near, far := net.Pipe()
		p := newPeer(nil, 1)
		p.conn = near
		const frames, size = 16, 16 << 10
		for range frames {
			p.queues[fabric.User] = append(p.queues[fabric.User], make([]byte, size))
		}
		go p.write(near)
		for taken := 0; taken < frames*(size+4); {
			time.Sleep(writeTimeout / 4)
			n, err := io.ReadAtLeast(far, make([]byte, size), 1)
			if err != nil {
				t.Fatalf("after %d bytes: %v", taken, err)
			}
			taken += n
		}
		p.mu.Lock()
		p.conn = nil
		p.changed.Broadcast()
		p.mu.Unlock()
		near.Close()
	})
}
