package serve

import (
	"strings"

	"google.golang.org/protobuf/proto"

	"margay/cluster/control"
	"margay/internal/printable"
)

// Bounds of what a user has in the queue. A request may be as large as a frame.
const (
	mostQueued     = 1000      // jobs
	mostQueuedSize = 256 << 20 // bytes of their requests, in memory
)

// mostSpec bounds the description of a job of a user, in bytes. The store has it as long as it
// remembers the job, and reads the ones of all jobs for a list.
const mostSpec = 64 << 10

// checkSpec refuses a description of a job that a user cannot have.
func checkSpec(spec *control.JobSpec) error {
	if !spec.Limited {
		return nil
	}
	if n := proto.Size(spec); n > mostSpec {
		return control.Failf(control.Code_CODE_BAD_REQUEST, "the description of the job has %d KiB, and a user may have %d: fewer or shorter names (--out, --files)", n>>10, mostSpec>>10)
	}
	return nil
}

// Sizes in memory, in bytes, of things that may take two bytes in a request: a word of a command or
// an environment, and a further program or a shared folder.
const (
	wordSize = 32
	partSize = 256
)

// sizeOf returns about how much memory a request takes, in bytes.
func sizeOf(m *control.RunRequest) int {
	words := len(m.Exec.GetArgv()) + len(m.Exec.GetEnv()) + len(m.Exec.GetContents()) + len(m.Spec.GetOut())
	for _, p := range m.Exec.GetParts() {
		words += len(p.Argv) + len(p.Env)
	}
	return proto.Size(m) + words*wordSize + (len(m.Exec.GetParts())+len(m.Spec.GetShared()))*partSize
}

// queueLimit refuses a job of a user who has too much in the queue. The caller holds Server.mu.
func (s *Server) queueLimit(w *waiting) error {
	if !w.spec.Limited {
		return nil
	}
	n, size := 0, w.size
	for _, other := range s.queue {
		if other.spec.Uid == w.spec.Uid {
			n++
			size += other.size
		}
	}
	if n >= mostQueued {
		return control.Failf(control.Code_CODE_NO_ROOM, "%s has %d jobs in the queue, the most that a user may have", w.spec.User, n)
	}
	if size > mostQueuedSize {
		return control.Failf(control.Code_CODE_NO_ROOM, "%s would have requests of %d MiB in the queue, and a user may have %d MiB", w.spec.User, size>>20, mostQueuedSize>>20)
	}
	return nil
}

// withinLimits refuses a job with which its user would have more than the users of the machine may:
// as it will be in these places, or, without places, whatever they are. If the job waits in the
// queue, others do not wait for it then. The caller holds Server.mu.
func (s *Server) withinLimits(w *waiting, spec *control.JobSpec, places []*control.Place) error {
	if !spec.Limited || spec.Step != 0 { // a step has what its allocation has
		return nil
	}
	most, jobs, cores, needs := s.config.Access, 1, 0, seats(places)
	for _, j := range s.jobs {
		if j.spec.Uid == spec.Uid && j.spec.Limited && !j.announced && s.allocationOf(j) == 0 {
			jobs++
			cores += seats(j.places) + seats(j.spare)
		}
	}
	if most.Cores > 0 && needs > most.Cores {
		return control.Failf(control.Code_CODE_REFUSED, "it needs %s, and a user of machine %s may have %s at a time", printable.Count(needs, "core"), s.config.Machine, s.config.limits())
	}
	if most.Jobs > 0 && jobs > most.Jobs || most.Cores > 0 && cores+max(1, needs) > most.Cores {
		w.limit(s, true)
		return control.Failf(control.Code_CODE_NO_ROOM, "%s has %s on %s, and a user of machine %s may have %s at a time", spec.User, printable.Count(jobs-1, "job"), printable.Count(cores, "core"), s.config.Machine, s.config.limits())
	}
	if places != nil {
		w.limit(s, false)
	}
	return nil
}

// limit notes whether a waiting job waits for its own user. Those behind it need not wait for it
// then. w may be nil. The caller holds Server.mu.
func (w *waiting) limit(s *Server, limited bool) {
	if w == nil || w.limited == limited {
		return
	}
	s.counted = false
	if w.limited = limited; limited {
		s.roomChanged()
	}
}

// seats returns how many cores places have.
func seats(places []*control.Place) int {
	type seat struct{ node, core uint32 }
	all := make(map[seat]bool)
	for _, p := range places {
		for _, core := range coresOf(p) {
			all[seat{p.Node, core}] = true
		}
	}
	return len(all)
}

// limits says what a user may have.
func (c *Config) limits() string {
	var parts []string
	if c.Access.Cores > 0 {
		parts = append(parts, printable.Count(c.Access.Cores, "core"))
	}
	if c.Access.Jobs > 0 {
		parts = append(parts, printable.Count(c.Access.Jobs, "job"))
	}
	return strings.Join(parts, " and ")
}
