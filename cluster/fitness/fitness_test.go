package fitness

import (
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"margay/internal/check"
)

var (
	fine  = Vitals{Memory: 1 << 30, Space: 1 << 30}
	limit = Limits{MemoryMiB: 16, SpaceMiB: 4, Clock: 4 * time.Second}
)

func TestComplaints(t *testing.T) {
	for _, c := range []struct {
		change func(*Vitals)
		ill    bool
		want   string
	}{
		{func(*Vitals) {}, false, ""},
		{func(v *Vitals) { v.Memory = 16 << 20 }, false, ""},
		{func(v *Vitals) { v.Memory = 16<<20 - 1 }, false, "15 MiB of its memory are free, and 16 MiB are needed"},
		{func(v *Vitals) { v.Memory = 19 << 20 }, true, "19 MiB of its memory are free, and 16 MiB are needed"},
		{func(v *Vitals) { v.Memory = 20 << 20 }, true, ""},
		{func(v *Vitals) { v.Memory, v.Space, v.ClockError = -1, -1, -1; v.Clock = time.Hour }, false, ""},
		{func(v *Vitals) { v.Space = 0 }, false, "0 MiB are free in its /tmp, and 4 MiB are needed"},
		{func(v *Vitals) { v.Clock = 4 * time.Second }, false, ""},
		{func(v *Vitals) { v.Clock = 4 * time.Second }, true, "its clock is 4s ahead of the service node's, and 4s are allowed"},
		{func(v *Vitals) { v.Clock, v.ClockError = -5*time.Second, time.Second }, false, ""},
		{func(v *Vitals) { v.Clock, v.ClockError = -5*time.Second, 999*time.Millisecond }, false, "its clock is 5s behind the service node's, and 4s are allowed"},
	} {
		v := fine
		c.change(&v)
		if got := limit.complaint(v, c.ill); got != c.want {
			t.Errorf("%+v: %q, not %q", v, got, c.want)
		}
		if got := (Limits{}).complaint(v, c.ill); got != "" {
			t.Errorf("%+v without limits: %q", v, got)
		}
	}
}

func TestState(t *testing.T) {
	low := fine
	low.Memory = 0
	var s State
	for i, step := range []struct {
		at      time.Duration
		v       Vitals
		idle    bool
		changed bool
		ill     bool
	}{
		{0, low, false, false, false}, // a job may use all memory
		{1, low, true, true, true},    // the first idle reading decides
		{2, fine, true, false, true},
		{2 + Settle - 1, fine, true, false, true},
		{2 + Settle, low, true, false, true}, // it starts over
		{3 + Settle, fine, true, false, true},
		{3 + 2*Settle, fine, true, true, false},
		{4 + 2*Settle, low, true, false, false},
		{4 + 3*Settle, low, false, false, false}, // a job has begun
		{5 + 3*Settle, low, true, false, false},
		{5 + 4*Settle, low, true, true, true},
	} {
		if changed := s.Read(time.Unix(0, 0).Add(step.at), limit, step.v, step.idle); changed != step.changed || (s.Ill() != "") != step.ill {
			t.Fatalf("step %d: changed %v, ill %q", i, changed, s.Ill())
		}
	}
}

// Whatever the readings are: a node becomes ill only while it is idle, a state lasts at least
// Settle after it was contradicted first, and readings that stay decide within Settle.
func TestStateModel(t *testing.T) {
	rng := rand.New(rand.NewPCG(check.Seed(t), 0))
	for range 200 {
		var s State
		now, changes := time.Unix(0, 0), 0
		last, began := now, now // the last change; when the readings became what they are
		v := fine
		for range 200 {
			now = now.Add(time.Duration(rng.Int64N(int64(2 * time.Second))))
			idle := rng.IntN(4) > 0
			if rng.IntN(5) == 0 {
				v = fine
				if rng.IntN(2) == 0 {
					v.Memory = rng.Int64N(32 << 20)
				}
				began = now
			}
			was := s.Ill() != ""
			first := !s.read
			changed := s.Read(now, limit, v, idle)
			is := s.Ill() != ""
			switch {
			case changed != (was != is):
				t.Fatalf("changed %v, from %v to %v", changed, was, is)
			case changed && is && !idle:
				t.Fatal("a node with a job becomes ill")
			case changed && !first && now.Sub(last) < Settle && changes > 0:
				t.Fatalf("two changes within %v", now.Sub(last))
			case is && v.Memory >= 20<<20 && now.Sub(began) > Settle+4*time.Second:
				t.Fatalf("ill for %v with good readings", now.Sub(began))
			}
			if changed {
				last = now
				changes++
			}
		}
	}
}

func FuzzParse(f *testing.F) {
	for _, text := range []string{"off", "memory=64", "memory=64,space=0,clock=2s", "clock=1", "memory=-1", "x=1", "", "memory=1e9"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		l, err := Parse(text)
		if err != nil {
			if l != (Limits{}) || !strings.Contains(err.Error(), ": ") {
				t.Fatalf("%q: %v, %v", text, l, err)
			}
			return
		}
		if l.MemoryMiB < 0 || l.SpaceMiB < 0 || l.Clock < 0 || int64(l.MemoryMiB)<<20 < 0 {
			t.Fatalf("%q: %+v", text, l)
		}
		if again, err := Parse(l.String()); err != nil || again != l {
			t.Fatalf("%q is %v, which is read as %v, %v", text, l, again, err)
		}
	})
}
