package serve

import (
	"strings"

	"google.golang.org/protobuf/proto"

	"margay/cluster/control"
)

// What is said of a job grows with its ranks, its nodes and what those say, but a frame does not. What does not fit is left out: the
// names of files first, then how ranks ended in words, then what they have used.

// fitState leaves out of a job's state what no frame has room for. It returns a changed copy, or m.
func fitState(m *control.JobState) *control.JobState {
	if m == nil || control.Fits(m) {
		return m
	}
	m = proto.CloneOf(m)
	fit(m.Unkept, m.Ranks, func() bool { return control.Fits(m) })
	return m
}

// fitJob leaves the same out of the summary of the one job in an answer. It returns a changed copy, or m.
func fitJob(m *control.Jobs) *control.Jobs {
	if control.Fits(m) {
		return m
	}
	m = proto.CloneOf(m)
	fit(m.Jobs[0].Unkept, m.Jobs[0].RankStates, func() bool { return control.Fits(m) })
	return m
}

// fit leaves out one thing after the other until all fits.
func fit(unkept []*control.Unkept, ranks []*control.RankState, fits func() bool) {
	ways := []func(){
		func() {
			for _, u := range unkept {
				u.Names = nil
			}
		},
		func() {
			for _, r := range ranks {
				if r.Exit != nil {
					r.Exit.Reason = ""
				}
			}
		},
		func() {
			for _, r := range ranks {
				if r.Exit != nil {
					r.Exit.Usage = nil
				}
			}
		},
	}
	for _, leaveOut := range ways {
		if fits() {
			return
		}
		leaveOut()
	}
}

// maxListed is how many bytes of an error the list of jobs shows.
const maxListed = 1000

// listed leaves of a job's summary what a list of all jobs has room for: their ranks are asked for job by job.
func listed(m *control.JobSummary) {
	m.RankStates, m.Unkept = nil, nil
	m.Error, m.Missing = shortened(m.Error), shortened(m.Missing)
}

// shortened is a text that is cut where it is too long for the list of jobs. Its lines stay as they are.
func shortened(text string) string {
	if len(text) <= maxListed {
		return text
	}
	return strings.ToValidUTF8(text[:maxListed], "") + "..."
}
