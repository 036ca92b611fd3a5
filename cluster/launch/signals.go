package launch

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"margay/cluster/control"
)

// insist is how soon a second interrupt must follow the first to end the job whatever its ranks do.
const insist = 3 * time.Second

// hangUp is how long ranks have after their terminal has gone before the job is ended.
const hangUp = time.Second

var errHangUp = errors.New("the terminal is gone")

// forward passes signals on to the ranks until ctx ends. It returns early when the job is to be given up.
func (s *session) forward(ctx context.Context) error {
	var interrupted time.Time
	for {
		select {
		case <-ctx.Done():
			return nil
		case sig := <-s.Signals:
			number := sig.(syscall.Signal)
			s.send(&control.Signal{Job: s.job, Rank: control.None, Signal: int32(number)})
			switch {
			case number == unix.SIGHUP:
				select {
				case <-time.After(hangUp):
				case <-ctx.Done():
				}
				return errHangUp
			case number == unix.SIGINT && time.Since(interrupted) < insist:
				s.Status.Warnf("ending job %d", s.job)
				s.send(&control.Kill{Job: s.job, Rank: control.None, Force: true})
			case number == unix.SIGINT:
				interrupted = time.Now()
			}
		}
	}
}

// Describe says how a rank ended.
func Describe(exit *control.ExitStatus) string {
	text := fmt.Sprintf("exited with status %d", exit.Code)
	if exit.Signal != 0 {
		text = "was killed by " + unix.SignalName(syscall.Signal(exit.Signal))
	}
	if exit.Reason != "" {
		text += ": " + exit.Reason
	}
	return text
}

// Computed is the processor time of a rank.
func Computed(u *control.Usage) time.Duration {
	return time.Duration(u.GetUserNs() + u.GetSystemNs()).Round(time.Millisecond)
}

// usage says in words what a rank has used.
func usage(u *control.Usage) string {
	return fmt.Sprintf("%v of processor time, %d major and %d minor page faults, preempted %d times", Computed(u),
		u.GetMajorFaults(), u.GetMinorFaults(), u.GetPreemptions())
}

// nodeList names the nodes of a job, as ranges.
func nodeList(places []*control.Place) string {
	var parts []string
	for i := 0; i < len(places); {
		first := places[i].Node
		last := first
		for i < len(places) && places[i].Node <= last+1 {
			last = places[i].Node
			i++
		}
		if first == last {
			parts = append(parts, fmt.Sprintf("node%d", first))
		} else {
			parts = append(parts, fmt.Sprintf("node%d-%d", first, last))
		}
	}
	return strings.Join(parts, ",")
}
