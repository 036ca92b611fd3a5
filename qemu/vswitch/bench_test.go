package vswitch

import (
	"bytes"
	"fmt"
	"io"
	"testing"

	"margay/internal/check"
	"margay/qemu/ether"
)

// BenchmarkForward sends frames of one peer to another, both of this process, as fast as both
// sockets take them. It reports what arrived; what the switch dropped because the receiver was
// slower is shown as a part of what was sent.
func BenchmarkForward(b *testing.B) {
	for _, size := range []int{64, 1514, 9014, ether.MaxFrame} {
		b.Run(fmt.Sprintf("frame=%d", size), func(b *testing.B) {
			l := newLab(b, 2)
			src, dst := l.plug(0), l.plug(1)
			one := ether.Append(nil, frame(dst.mac, src.mac, string(make([]byte, size-ether.HeaderLen))))
			perWrite := max(1, 128<<10/len(one))
			burst := bytes.Repeat(one, perWrite)
			last := ether.Append(nil, frame(dst.mac, src.mac, "end"))
			received := make(chan int)
			go func() {
				n := 0
				for {
					f, err := dst.r.Next()
					if err != nil || len(f) == ether.HeaderLen+len("end") {
						received <- n
						return
					}
					n++
				}
			}()
			b.ReportAllocs()
			for sent := 0; sent < b.N; sent += perWrite {
				src.write(burst[:min(perWrite, b.N-sent)*len(one)])
			}
			check.AwaitFor(b, patience, "the burst to be read", func() bool { return l.Port("p0").Stats().RxFrames == uint64(b.N) })
			// The queue may be full: the mark goes again until it gets through.
			var n int
			for done := false; !done; {
				src.write(last)
				select {
				case n = <-received:
					done = true
				default:
				}
			}
			s := b.Elapsed().Seconds()
			b.ReportMetric(float64(n)/s, "frames/s")
			b.ReportMetric(float64(n)*float64(size)/s/1e6, "MB/s")
			b.ReportMetric(100*float64(b.N-n)/float64(b.N), "%dropped")
		})
	}
}

// BenchmarkRoundTrip sends one frame there and back.
func BenchmarkRoundTrip(b *testing.B) {
	l := newLab(b, 2)
	x, y := l.plug(0), l.plug(1)
	go func() {
		reply := ether.Append(nil, frame(x.mac, y.mac, "pong"))
		for {
			if _, err := y.r.Next(); err != nil {
				return
			}
			if _, err := y.conn.Write(reply); err != nil {
				return
			}
		}
	}()
	b.ReportAllocs()
	for b.Loop() {
		x.send(y.mac, "ping")
		if _, err := x.r.Next(); err != nil && err != io.EOF {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(b.Elapsed().Microseconds())/float64(b.N), "us/round-trip")
}
