package boot

import (
	"bufio"
	"context"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"margay/internal/check"
)

// Nodes have their turns in the order in which they have asked; a turn ends when its node is done,
// is silent, or takes too long, and a wait when its node does not ask again.
func TestTurns(t *testing.T) {
	turns, now := NewTurns(2), start
	mac := func(n int) MAC { return host(n).MAC }
	ask := func(n int, want bool, before int) {
		t.Helper()
		if ok, got, next := turns.Ask(now, mac(n)); ok != want || got != before || len(next) > 0 && (len(next) > 1 || next[0] != mac(n)) {
			t.Errorf("node %d asks: %t with %d before it, next %v; want %t, %d", n, ok, got, next, want, before)
		}
	}
	begins := func(next []MAC, want ...int) {
		t.Helper()
		var macs []MAC
		for _, n := range want {
			macs = append(macs, mac(n))
		}
		if !slices.Equal(next, macs) {
			t.Errorf("the turns of %v begin, want %v", next, macs)
		}
	}
	ask(0, true, 0)
	ask(1, true, 0)
	ask(2, false, 0)
	ask(3, false, 1)
	ask(4, false, 2)
	ask(2, false, 0)
	ask(0, true, 0)
	begins(turns.Leave(now, mac(3)))
	begins(turns.Leave(now, mac(0)), 2)
	ask(2, true, 0)
	ask(4, false, 0)

	now = now.Add(paceTime)
	turns.Moved(mac(1), leastPace)
	turns.Moved(mac(2), leastPace-1)
	ask(4, false, 0)
	now = now.Add(1)
	begins(turns.Expire(now), 4) // node 2 was too slow
	for now.Sub(start) <= turnTime {
		ask(5, false, 0)
		now = now.Add(paceTime + 1)
		turns.Moved(mac(1), leastPace)
		turns.Moved(mac(4), leastPace)
	}
	ask(5, true, 0) // the turn of node 1 was too long
	ask(6, false, 0)
	now = now.Add(waiterTime + 1)
	begins(turns.Leave(now, mac(5))) // node 6 has not asked again
	if len(turns.waiting) != 0 {
		t.Errorf("%v wait", turns.waiting)
	}
}

// Random requests: there are never more turns than allowed, no turn is free while a node waits, and
// a node that asks again and again has its turn before nodes that have asked after it.
func TestTurnsModel(t *testing.T) {
	const most, nodes = 3, 12
	turns, random := NewTurns(most), seeded(t)
	now := start
	since, last := map[MAC]int{}, map[MAC]time.Time{} // when a node that waits has asked first, and last
	for step := range 20_000 {
		now = now.Add(time.Duration(random.Int64N(int64(paceTime / 4))))
		mac := host(random.IntN(nodes)).MAC
		var next []MAC
		switch random.IntN(4) {
		case 0:
			next = turns.Leave(now, mac)
			delete(since, mac)
		case 1:
			turns.Moved(mac, leastPace)
			continue
		default:
			if since[mac] == 0 || now.Sub(last[mac]) > waiterTime {
				since[mac] = step + 1
			}
			last[mac] = now
			var ok bool
			ok, _, next = turns.Ask(now, mac)
			if _, running := turns.running[mac]; ok != running {
				t.Fatalf("step %d: answer %t, its turn %t", step, ok, running)
			}
		}
		for m := range since {
			if turns.place(m) < 0 && !slices.Contains(next, m) {
				delete(since, m) // it has not asked again
			}
		}
		for _, m := range next {
			for other, asked := range since {
				if asked < since[m] && !slices.Contains(next, other) {
					t.Fatalf("step %d: %v has its turn before %v", step, m, other)
				}
			}
		}
		for _, m := range next {
			delete(since, m)
		}
		if len(turns.running) > most || len(turns.running) < most && len(turns.waiting) > 0 || len(turns.waiting) > nodes {
			t.Fatalf("step %d: %d turns, %d wait", step, len(turns.running), len(turns.waiting))
		}
	}
}

// A node whose turn it is not waits for its script. It gets it at once when another one has fetched
// everything, and otherwise, after a while, one that asks again.
func TestPaced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, r := services(t, func(c *Config) {
			local(c)
			c.Turns = 1
		})
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		p := check.NewPipes()
		ended := make(chan error, 1)
		go func() { ended <- s.Serve(ctx, Sockets{DHCP: play(), TFTP: play(), HTTP: p}) }()
		get := func(from, path string) string {
			c := dial(t, p, from)
			defer c.Close()
			if _, err := io.WriteString(c, "GET "+path+" HTTP/1.1\r\nHost: x\r\n\r\n"); err != nil {
				t.Fatal(err)
			}
			answer, err := http.ReadResponse(bufio.NewReader(c), nil)
			if err != nil {
				t.Fatal(err)
			}
			text, err := io.ReadAll(answer.Body)
			if err != nil {
				t.Fatal(err)
			}
			return string(text)
		}
		const first, second = "127.0.0.1:1000", "127.0.0.3:1000"
		if text := get(first, ScriptPath); !strings.Contains(text, "kernel --name") {
			t.Fatalf("the first node gets %q", text)
		}
		begun := time.Now()
		if text := get(second, ScriptPath); !strings.Contains(text, "chain --replace http://127.0.0.2/boot.ipxe") || strings.Contains(text, "kernel") {
			t.Errorf("the second node gets %q", text)
		}
		if waited := time.Since(begun); waited < turnWait || waited > 2*turnWait {
			t.Errorf("it was answered after %v", waited)
		}
		if !strings.Contains(r.all(), "node1: it waits") {
			t.Errorf("reports:\n%s", r.all())
		}
		got := make(chan string)
		begun = time.Now()
		go func() { got <- get(second, ScriptPath) }()
		synctest.Wait()
		get(first, KernelPath)
		get(first, ImagePath)
		if text := <-got; !strings.Contains(text, "kernel --name") || time.Since(begun) >= turnWait {
			t.Errorf("after %v the second node gets %q", time.Since(begun), text)
		}
		// A node that gives up waiting is not waited for.
		c := dial(t, p, first)
		if _, err := io.WriteString(c, "GET "+ScriptPath+" HTTP/1.1\r\nHost: x\r\n\r\n"); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		c.Close()
		synctest.Wait()
		s.mu.Lock()
		if len(s.turns.waiting) != 0 || len(s.called) != 0 {
			t.Errorf("%v wait", s.turns.waiting)
		}
		s.mu.Unlock()
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}
