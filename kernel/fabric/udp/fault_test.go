package udp

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"margay/internal/check"
	"margay/kernel/abi/id"
	"margay/kernel/fabric"
	"margay/kernel/fabric/fabrictest"
	"margay/kernel/fabric/reliable"
)

// behind starts two nodes behind proxies, which know each other.
func behind(t *testing.T, bad func(*proxy, []byte), change func(*Config)) (ts []*Transport, rs []*fabrictest.Recorder, ps []*proxy) {
	t.Helper()
	check.Leaks(t)
	seed := check.Seed(t)
	m := fabrictest.NewMachine(t)
	var addresses []string
	for i := range id.Node(2) {
		p, r := newProxy(t, seed+uint64(i), bad), fabrictest.NewRecorder()
		tr, address := start(t, m, i, "127.0.0.1:0", r, func(c *Config) {
			c.Port, c.Death = p.port(), 10*time.Second
			if change != nil {
				change(c)
			}
		})
		t.Cleanup(func() { tr.Close() })
		p.aim(tr)
		ts, rs, ps, addresses = append(ts, tr), append(rs, r), append(ps, p), append(addresses, address)
	}
	for i := range id.Node(2) {
		ts[i].Meet(1-i, addresses[1-i])
	}
	return ts, rs, ps
}

// exchange sends frames of both classes in both directions, and checks that each arrives once and
// in order within its class.
func exchange(t *testing.T, ts []*Transport, rs []*fabrictest.Recorder, frames int, longest int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 120*time.Second)
	defer cancel()
	seed := check.Seed(t)
	var senders sync.WaitGroup
	for from := range 2 {
		for class := range fabric.Classes {
			senders.Go(func() {
				random := rand.New(rand.NewPCG(seed, uint64(class)))
				for i := range frames {
					frame := fmt.Appendf(nil, "%d:%d:", class, i)
					frame = append(frame, bytes.Repeat([]byte{byte(i)}, random.IntN(longest))...)
					if err := ts[from].Send(ctx, id.Node(1-from), class, frame); err != nil {
						t.Error(err)
						return
					}
				}
			})
		}
	}
	senders.Wait()
	for at, r := range rs {
		check.AwaitFor(t, 120*time.Second, "all frames", func() bool {
			got, _ := r.Seen()
			return len(got) >= frames*int(fabric.Classes)
		})
		got, breaks := r.Seen()
		if len(breaks) > 0 || len(got) != frames*int(fabric.Classes) {
			t.Errorf("node%d: %d frames, breaks %v", at, len(got), breaks)
		}
		inOrder(t, got, frames)
	}
}

func inOrder(t *testing.T, all []string, frames int) {
	t.Helper()
	next := make(map[string]int)
	for _, f := range all {
		words := strings.SplitN(f, ":", 4) // source, class, number, content
		content := string([]byte{byte(next[words[1]])})
		if words[2] != fmt.Sprint(next[words[1]]) || strings.Count(words[3], content) != len(words[3]) {
			t.Fatalf("frame %s of class %s arrived instead of %d", words[2], words[1], next[words[1]])
		}
		next[words[1]]++
	}
	for class, n := range next {
		if n != frames {
			t.Errorf("%d frames of class %s", n, class)
		}
	}
}

// A network that loses a fifth of all datagrams, repeats, delays and reorders them, and is
// interrupted for three seconds, loses no frame and changes no order.
func TestLossy(t *testing.T) {
	ts, rs, ps := behind(t, lossy, nil)
	partition := time.AfterFunc(100*time.Millisecond, func() {
		for _, p := range ps {
			p.cut.Store(true)
		}
		time.AfterFunc(3*time.Second, func() {
			for _, p := range ps {
				p.cut.Store(false)
			}
		})
	})
	defer partition.Stop()
	begin := time.Now()
	exchange(t, ts, rs, 400, 4000)
	t.Logf("%v, %d and %d datagrams", time.Since(begin), ps[0].passed.Load(), ps[1].passed.Load())
}

// Forged, truncated, changed and repeated datagrams change nothing.
func TestHostile(t *testing.T) {
	ts, rs, _ := behind(t, hostile, nil)
	exchange(t, ts, rs, 300, 3000)
	for _, tr := range ts {
		tr.mu.Lock()
		if len(tr.connections) != 1 || len(tr.peers) != 1 {
			t.Errorf("%d connections with %d peers", len(tr.connections), len(tr.peers))
		}
		tr.mu.Unlock()
	}
}

// A peer that has gone without a word is dead after the time set.
func TestDeadPeer(t *testing.T) {
	ts, rs, ps := behind(t, (*proxy).pass, func(c *Config) { c.Death = 3 * time.Second })
	exchange(t, ts, rs, 1, 1)
	ps[0].cut.Store(true)
	ts[1].streams.Close()
	if err := ts[0].Send(t.Context(), 1, fabric.User, []byte("x")); err != nil {
		t.Fatal(err)
	}
	rs[0].Await(t, "break", func() bool { return len(rs[0].Breaks) == 1 })
	if _, breaks := rs[0].Seen(); !errors.Is(breaks[0], reliable.ErrDead) {
		t.Error(breaks[0])
	}
}

// A node that was killed and started again, without a word to its peer, is noticed when either of
// them sends. Later frames arrive. A frame that was never sent to an earlier incarnation may reach
// the later one, in order and once.
func TestKilledAndRestarted(t *testing.T) {
	for name, first := range map[string]int{"the survivor sends": 0, "the restarted one sends": 1} {
		t.Run(name, func(t *testing.T) {
			check.Leaks(t)
			m := fabrictest.NewMachine(t)
			survivor := fabrictest.NewRecorder()
			ts := make([]*Transport, 2)
			var addresses [2]string
			ts[0], addresses[0] = start(t, m, 0, "127.0.0.1:0", survivor, nil)
			t.Cleanup(func() { ts[0].Close() })
			addresses[1] = "127.0.0.1:0"
			breaks, last := 0, [2]int{-1}
			for round := range 5 {
				r := fabrictest.NewRecorder()
				ts[1], addresses[1] = start(t, m, 1, addresses[1], r, nil)
				ts[0].Meet(1, addresses[1])
				ts[1].Meet(0, addresses[0])
				sendUntil(t, ts[first], id.Node(1-first), round, []*fabrictest.Recorder{survivor, r}[1-first])
				sendUntil(t, ts[1-first], id.Node(first), round, []*fabrictest.Recorder{survivor, r}[first])
				survivor.Await(t, "breaks", func() bool { return len(survivor.Breaks) >= breaks })
				if _, got := survivor.Seen(); len(got) != breaks {
					t.Errorf("round %d: breaks %v", round, got)
				}
				breaks++
				kill(ts[1])
				frames, _ := r.Seen()
				for _, f := range frames {
					var next [2]int
					if _, err := fmt.Sscanf(f, "0:%d %d", &next[0], &next[1]); err != nil || slices.Compare(next[:], last[:]) <= 0 || next[0] > round {
						t.Errorf("round %d: frame %q after %d, %v", round, f, last, err)
					}
					last = next
				}
			}
		})
	}
}

// A node that was killed while nothing was on its way, and started again, costs its peer no frame.
func TestKilledWhileIdle(t *testing.T) {
	check.Leaks(t)
	m := fabrictest.NewMachine(t)
	survivor := fabrictest.NewRecorder()
	first, address := start(t, m, 0, "127.0.0.1:0", survivor, nil)
	t.Cleanup(func() { first.Close() })
	other := "127.0.0.1:0"
	for round := range 4 {
		r := fabrictest.NewRecorder()
		var second *Transport
		second, other = start(t, m, 1, other, r, nil)
		first.Meet(1, other)
		second.Meet(0, address)
		for _, class := range []fabric.Class{fabric.System, fabric.User, fabric.Prompt} {
			if err := first.Send(t.Context(), 1, class, fmt.Append(nil, "round ", round)); err != nil {
				t.Fatal(err)
			}
		}
		r.Await(t, "frames", func() bool { return len(r.Frames) == 3 })
		if frames, _ := r.Seen(); slices.ContainsFunc(frames, func(f string) bool { return f != fmt.Sprint("0:round ", round) }) {
			t.Errorf("round %d: frames %q", round, frames)
		}
		kill(second)
		time.Sleep(50 * time.Millisecond) // longer than a peer counts as alive
	}
	survivor.Await(t, "breaks", func() bool { return len(survivor.Breaks) == 3 })
}

// A node that is asked for a meeting twice while it stands still, and then starts again, costs its
// peer no frame, whether the two have met before or not.
func TestStoppedWhileMeeting(t *testing.T) {
	for name, met := range map[string]bool{"that it has met": true, "that it has not met": false} {
		t.Run(name, func(t *testing.T) {
			check.Leaks(t)
			m := fabrictest.NewMachine(t)
			first, address := start(t, m, 0, "127.0.0.1:0", fabrictest.NewRecorder(), nil)
			t.Cleanup(func() { first.Close() })
			other := "127.0.0.1:0"
			if met {
				r := fabrictest.NewRecorder()
				var second *Transport
				second, other = start(t, m, 1, other, r, nil)
				first.Meet(1, other)
				sendUntil(t, first, 1, 0, r)
				kill(second)
				time.Sleep(50 * time.Millisecond) // longer than a peer counts as alive
			}
			stopped, err := net.Listen("tcp", other)
			if err != nil {
				t.Fatal(err)
			}
			other = stopped.Addr().String()
			first.Meet(1, other)
			if err := first.Send(t.Context(), 1, fabric.User, []byte("frame")); err != nil {
				t.Fatal(err)
			}
			for range 2 {
				silent, err := stopped.Accept()
				if err != nil {
					t.Fatal(err)
				}
				defer silent.Close()
			}
			stopped.Close()
			r := fabrictest.NewRecorder()
			second, _ := start(t, m, 1, other, r, nil)
			defer second.Close()
			second.Meet(0, address)
			// Frames of sendUntil that were not acknowledged come before it.
			r.Await(t, "frame", func() bool { return slices.Contains(r.Frames, "0:frame") })
		})
	}
}

// sendUntil sends numbered frames until one has arrived at the receiver.
func sendUntil(t *testing.T, from *Transport, to id.Node, round int, r *fabrictest.Recorder) {
	t.Helper()
	before, _ := r.Seen()
	n := 0
	check.Await(t, "frame", func() bool {
		if err := from.Send(t.Context(), to, fabric.User, fmt.Appendf(nil, "%d %d", round, n)); err != nil {
			t.Fatal(err)
		}
		n++
		now, _ := r.Seen()
		return len(now) > len(before)
	})
}

// kill closes a transport that cannot notify its peers any more.
func kill(tr *Transport) {
	tr.socket.conn.Close()
	tr.Close()
}

// Two nodes that differ in whether the wire is trusted do not exchange frames, and say why.
func TestTrustDiffers(t *testing.T) {
	check.Leaks(t)
	m := fabrictest.NewMachine(t)
	var log check.Buffer
	var ts [2]*Transport
	var rs [2]*fabrictest.Recorder
	var addresses [2]string
	for i := range id.Node(2) {
		rs[i] = fabrictest.NewRecorder()
		ts[i], addresses[i] = start(t, m, i, "127.0.0.1:0", rs[i], func(c *Config) {
			c.Trusted, c.Death = i == 1, 200*time.Millisecond
			c.Log = func(format string, args ...any) { fmt.Fprintf(&log, format+"\n", args...) }
		})
		t.Cleanup(func() { ts[i].Close() })
	}
	ts[0].Meet(1, addresses[1])
	if err := ts[0].Send(t.Context(), 1, fabric.User, []byte("x")); err != nil {
		t.Fatal(err)
	}
	rs[0].Await(t, "break", func() bool { return len(rs[0].Breaks) > 0 })
	check.Await(t, "reason", func() bool { return strings.Contains(log.String(), "only one trusts the wire") })
	if frames, _ := rs[1].Seen(); len(frames) > 0 {
		t.Errorf("frames %v", frames)
	}
}
