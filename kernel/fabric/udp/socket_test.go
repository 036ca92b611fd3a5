package udp

import (
	"bytes"
	"fmt"
	"net"
	"testing"
	"time"
)

func TestRun(t *testing.T) {
	for _, c := range []struct {
		sizes    []int
		n, bytes int
	}{
		{[]int{5}, 1, 5},
		{[]int{5, 5, 5}, 3, 15},
		{[]int{5, 5, 3, 5}, 3, 13},
		{[]int{3, 5}, 1, 3},
		{[]int{5, 3, 3}, 2, 8},
		{make([]int, 2*batchDatagrams), batchDatagrams, 0},
		{[]int{batchBytes/2 + 1, batchBytes/2 + 1}, 1, batchBytes/2 + 1},
	} {
		if n, bytes := run(c.sizes); n != c.n || bytes != c.bytes {
			t.Errorf("%v: %d datagrams of %d bytes", c.sizes, n, bytes)
		}
	}
}

// Datagrams of all sizes arrive with their boundaries, in batches or singly.
func TestSocket(t *testing.T) {
	for _, single := range []bool{false, true} {
		t.Run(fmt.Sprint("single ", single), func(t *testing.T) {
			var ends [2]*socket
			for i := range ends {
				c, err := net.ListenUDP("udp", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
				if err != nil {
					t.Fatal(err)
				}
				defer c.Close()
				c.SetDeadline(time.Now().Add(20 * time.Second))
				ends[i] = newSocket(c)
			}
			ends[0].single.Store(single)
			sizes := []int{100, 1408, 1408, 1408, 1408, 700, 1408, 1408, 1, 1408, 64, 64, 64}
			var b []byte
			for i, size := range sizes {
				b = append(b, bytes.Repeat([]byte{byte(i)}, size)...)
			}
			ends[0].send(b, sizes, ends[1].conn.LocalAddr().(*net.UDPAddr).AddrPort())
			in := make([]byte, 64<<10)
			for i := 0; i < len(sizes); {
				n, size, _, err := ends[1].receive(in)
				if err != nil {
					t.Fatal(err)
				}
				for rest := in[:n]; len(rest) > 0; i++ {
					one := rest[:min(size, len(rest))]
					rest = rest[len(one):]
					if len(one) != sizes[i] || one[0] != byte(i) {
						t.Fatalf("datagram %d has %d bytes of %d", i, len(one), one[0])
					}
				}
			}
		})
	}
}
