package ctest

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"margay/internal/check"
	"margay/kernel/abi/pace"
)

// paceProgram decides for each line, which has a path word and a time, how a rank waits, and begins
// again after it has slept. A line with the time 0 is a poll of the program.
const paceProgram = `#include <stdio.h>
#include "pace.h"
int main(void)
{
	struct pace p = {0};
	unsigned path;
	long long now;
	int in_vain = 0;
	while (scanf("%u %lld", &path, &now) == 2) {
		if (now == 0) {
			printf("poll %d\n", pace_polled(&in_vain, path, path & 1));
			continue;
		}
		int action = pace_next(&p, path, pace_looks(&p, path) ? now : 0, -1);
		if (action == PACE_SLEEP)
			p = (struct pace){0};
		printf("%d\n", action);
	}
	return 0;
}
`

// C and Go wait alike.
func TestPace(t *testing.T) {
	r := rand.New(rand.NewPCG(check.Seed(t), 0))
	var input, want bytes.Buffer
	var p pace.Pace
	var inVain uint32
	path, now := uint32(0), time.Duration(1)
	for range 20000 {
		if r.IntN(500) == 0 {
			path = r.Uint32N(16)
		}
		if r.IntN(4) == 0 {
			fmt.Fprintf(&input, "%d 0\n", path)
			var yields bool
			inVain, yields = pace.Polled(inVain, path, path&1 != 0)
			fmt.Fprintf(&want, "poll %d\n", map[bool]int{true: 1}[yields])
			continue
		}
		now += time.Duration(r.ExpFloat64() * 200)
		fmt.Fprintf(&input, "%d %d\n", path, now)
		var at time.Duration
		if p.Looks(path) {
			at = now
		}
		action := p.Next(path, at)
		if action == pace.Sleep {
			p = pace.Pace{}
		}
		fmt.Fprintf(&want, "%d\n", action)
	}
	agree(t, build(t, paceProgram), &input, want.String())
}
