package machine

import (
	"math/rand/v2"
	"testing"
	"time"

	"margay/internal/check"
)

// A node that ends again and again is started less and less often, and then stays off until an
// order.
func TestLife(t *testing.T) {
	now := time.Unix(0, 0)
	var l life
	ends := func(off bool, want verdict) {
		t.Helper()
		if got := l.end(off, now); got != want {
			t.Errorf("after %d starts: %+v, not %+v", l.boots, got, want)
		}
	}
	starts := func(up bool) {
		l.start()
		if up {
			l.registered()
		}
	}
	starts(false)
	ends(true, verdict{})
	for range bootRetries {
		starts(false)
		ends(false, verdict{Again: true})
	}
	starts(true)
	ends(false, verdict{Again: true, Pause: restPause})
	for range bootRetries {
		starts(false)
		ends(false, verdict{Again: true})
	}
	starts(false)
	ends(false, verdict{}) // it does not boot any more

	l.order()
	for i := range mostEnds {
		starts(true)
		ends(false, verdict{Again: true, Pause: restPause << i})
		now = now.Add(time.Minute)
	}
	starts(true)
	ends(false, verdict{Reason: "it has ended 4 times within 10m0s"})

	l.order()
	for range 10 {
		starts(true)
		ends(false, verdict{Again: true, Pause: restPause})
		now = now.Add(endsWindow)
	}

	starts(true)
	l.switchOff("switched off by somebody")
	ends(false, verdict{})
	l.order()
	starts(true)
	ends(false, verdict{Again: true, Pause: restPause})
}

// Without orders, a node that does not stay up is not started for ever: in each window there are at
// most mostEnds starts after it was up, and bootRetries after each.
func TestLifeIsBounded(t *testing.T) {
	r := rand.New(rand.NewPCG(check.Seed(t), 0))
	for range 200 {
		var l life
		now := time.Unix(0, 0)
		began, starts := now, 1
		l.start()
		for again := true; again && now.Sub(began) < endsWindow; {
			if r.IntN(2) == 0 {
				l.registered()
			}
			now = now.Add(time.Duration(r.IntN(int(time.Minute))))
			v := l.end(r.IntN(50) == 0, now)
			if again = v.Again; again {
				now = now.Add(v.Pause)
				l.start()
				starts++
			}
		}
		if most := 1 + bootRetries + mostEnds*(1+bootRetries); starts > most {
			t.Fatalf("%d starts within %v, at most %d", starts, now.Sub(began), most)
		}
	}
}
