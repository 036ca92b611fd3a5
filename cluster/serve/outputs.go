package serve

import (
	"fmt"
	"os"
	"sync"

	"margay/cluster/control"
)

// outputs counts the kept output of detached jobs, and bounds the output of each user. It is safe
// for concurrent use.
type outputs struct {
	limit int64 // bytes of one user of the machine; 0: any number

	mu    sync.Mutex
	jobs  map[uint32]keptOf
	users map[uint32]int64 // bytes by user id
}

// keptOf is the kept output of a job.
type keptOf struct {
	uid   uint32
	bytes int64
}

func newOutputs(limit int64) *outputs {
	return &outputs{limit: limit, jobs: make(map[uint32]keptOf), users: make(map[uint32]int64)}
}

// add counts bytes more of a job.
func (o *outputs) add(job, uid uint32, bytes int64) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.jobs[job] = keptOf{uid, o.jobs[job].bytes + bytes}
	o.users[uid] += bytes
}

// watch replaces the count of a job's output by its size, and bounds it if its user has limits.
func (o *outputs) watch(s *spool, job uint32, spec *control.JobSpec) {
	s.grown = func(bytes int64) { o.add(job, spec.Uid, bytes) }
	if spec.Limited {
		s.beyond = func() string { return o.full(spec.Uid) }
	}
	o.removed(job)
	s.grown(s.size)
}

// removed forgets the output of a job.
func (o *outputs) removed(job uint32) {
	o.mu.Lock()
	defer o.mu.Unlock()
	k := o.jobs[job]
	delete(o.jobs, job)
	if o.users[k.uid] -= k.bytes; o.users[k.uid] == 0 {
		delete(o.users, k.uid)
	}
}

// full returns why further output of a user is not kept, empty if it is kept.
func (o *outputs) full(uid uint32) string {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.limit == 0 || o.users[uid] < o.limit {
		return ""
	}
	return fmt.Sprintf("output beyond %d MiB of all detached jobs of a user was not kept: margay logs --remove makes room", o.limit>>20)
}

// countOutputs counts all kept output, after a restart. It comes before restore, which watches the
// outputs of running jobs: after it jobs may be ending, and would count twice.
func (s *Server) countOutputs() {
	jobs, err := s.keptOutput()
	if err != nil {
		s.config.Log("%v", err)
	}
	for _, job := range jobs {
		user, known := s.userOf(job)
		info, err := os.Lstat(spoolPath(s.config.Dir, job))
		if err == nil && known {
			s.outputs.add(job, user.UID, info.Size())
		}
	}
}
