package netstack

import (
	"fmt"
	"io"
	"net"
	"testing"
	"time"
)

// BenchmarkTransfer sends one TCP stream from one stack through the switch to another, all in this
// process.
func BenchmarkTransfer(b *testing.B) {
	for _, mtu := range []int{1500, 9000, MaxMTU} {
		b.Run(fmt.Sprintf("mtu=%d", mtu), func(b *testing.B) {
			stacks, sw := network(b, 2, mtu)
			client, server := connect(b, stacks[0], stacks[1])
			block := make([]byte, 128<<10)
			b.SetBytes(int64(len(block)))
			b.ReportAllocs()
			b.ResetTimer()
			go func() {
				for range b.N {
					client.Write(block)
				}
			}()
			if n, err := io.CopyN(io.Discard, server, int64(b.N)*int64(len(block))); err != nil {
				b.Fatal(n, err)
			}
			b.ReportMetric(float64(sw.Stats().Drops.Total()), "drops")
		})
	}
}

// BenchmarkRoundTrip sends 64 bytes there and back over TCP through the switch.
func BenchmarkRoundTrip(b *testing.B) {
	stacks, _ := network(b, 2, 0)
	client, server := connect(b, stacks[0], stacks[1])
	go io.Copy(struct{ io.Writer }{server}, struct{ io.Reader }{server})
	msg := make([]byte, 64)
	for b.Loop() {
		roundTrip(b, client, msg)
	}
	b.ReportMetric(float64(b.Elapsed())/float64(b.N)/float64(time.Microsecond), "us/round-trip")
}

func roundTrip(b *testing.B, c net.Conn, msg []byte) {
	if _, err := c.Write(msg); err != nil {
		b.Fatal(err)
	}
	if _, err := io.ReadFull(c, msg); err != nil {
		b.Fatal(err)
	}
}
