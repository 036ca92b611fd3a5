package agent

import (
	"context"
	"time"

	"margay/cluster/control"
)

// offset is how far the clock of the node is ahead of serve's.
type offset struct {
	ahead time.Duration
	err   time.Duration // how far that may be wrong, in both directions; negative: it is not known
}

// reply is the result of a heartbeat.
type reply struct {
	offset offset
	err    error
}

// call sends a heartbeat and waits for the answer.
func call(ctx context.Context, conn *control.Conn, beat *control.Heartbeat) reply {
	sent := time.Now()
	answer, err := conn.Call(ctx, beat)
	m, _ := answer.(*control.Heartbeat)
	return reply{compareWith(sent, m.GetTimeNs()), err}
}

// compareWith compares the clock, which shows sent at the time of a request, with the clock of
// serve in the answer that has just arrived; 0: the answer has no time.
func compareWith(sent time.Time, answered int64) offset {
	if answered == 0 {
		return offset{err: -1}
	}
	return compare(sent, time.Since(sent), time.Unix(0, answered))
}

// compare returns the offset of the clock that shows sent from the clock that shows read some time
// later, but not later than wait: it was read halfway, give or take half of wait. wait is measured,
// so a clock that is set in that time does not matter.
func compare(sent time.Time, wait time.Duration, read time.Time) offset {
	half := wait / 2
	return offset{sent.Round(0).Add(half).Sub(read), wait - half}
}
