package serve

import (
	"strings"

	"google.golang.org/protobuf/proto"

	"margay/cluster/control"
)

// The description of a job grows with its ranks, its nodes and their reports, but a frame does not.
// Details that do not fit are left out: first the names of files, then the text on how ranks ended,
// and where, then the resources that they used.

// fitState drops the details of a job's state that do not fit into a frame. It returns a changed
// copy, or m.
func fitState(m *control.JobState) *control.JobState {
	if m == nil || control.Fits(m) {
		return m
	}
	m = proto.CloneOf(m)
	fit(m.Unkept, m.Ranks, func() bool { return control.Fits(m) })
	return m
}

// fitJob does the same for the summary of the only job in an answer. It returns a changed copy, or
// m.
func fitJob(m *control.Jobs) *control.Jobs {
	if control.Fits(m) {
		return m
	}
	m = proto.CloneOf(m)
	fit(m.Jobs[0].Unkept, m.Jobs[0].RankStates, func() bool { return control.Fits(m) })
	return m
}

// fit drops one kind of detail after the other until the rest fits.
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
					r.Exit.Reason, r.Exit.Fault = "", nil
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

// maxListed bounds, in bytes, an error in the list of jobs.
const maxListed = 1000

// listed reduces a job's summary to what fits into a list of all jobs: clients ask for ranks job by
// job.
func listed(m *control.JobSummary) {
	m.RankStates, m.Unkept = nil, nil
	m.Error, m.Missing = shortened(m.Error), shortened(m.Missing)
}

// shortened truncates a text that is too long for the list of jobs. It keeps line breaks.
func shortened(text string) string {
	if len(text) <= maxListed {
		return text
	}
	return strings.ToValidUTF8(text[:maxListed], "") + "..."
}
