package serve

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"margay/cluster/control"
	"margay/cluster/permit"
)

// removeOutput removes the kept output of the named jobs, or of all ended jobs that the caller may
// see. It needs no disk space. It continues after outputs that cannot be removed.
func (s *Server) removeOutput(m *control.RemoveOutput, caller permit.Caller) (*control.OutputRemoved, error) {
	jobs := m.Jobs
	if len(jobs) == 0 {
		var err error
		if jobs, err = s.keptOutput(); err != nil {
			return nil, err
		}
		jobs = slices.DeleteFunc(jobs, func(job uint32) bool { return !s.sees(caller, job) })
	}
	removed := new(control.OutputRemoved)
	var failed []string
	tried := make(map[uint32]bool) // a job may be named a million times
	for _, job := range jobs {
		if tried[job] {
			continue
		}
		tried[job] = true
		if bytes, err := s.removeOutputOf(job); err != nil {
			failed = append(failed, err.Error())
		} else {
			removed.Jobs, removed.Bytes = append(removed.Jobs, job), removed.Bytes+bytes
		}
	}
	if len(failed) > 0 {
		return nil, control.Failf(control.Code_CODE_FAILED, "%s", strings.Join(failed, "\n"))
	}
	return removed, nil
}

// keptOutput lists the ended jobs whose output is kept, in order, including jobs that the store has
// forgotten.
func (s *Server) keptOutput() (jobs []uint32, err error) {
	entries, err := os.ReadDir(filepath.Dir(spoolPath(s.config.Dir, 0)))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil // no job has been detached yet
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, e := range entries {
		var job uint32
		if n, _ := fmt.Sscanf(e.Name(), "job-%d", &job); n == 1 && spoolPath("", job) == filepath.Join("output", e.Name()) && s.jobs[job] == nil {
			jobs = append(jobs, job)
		}
	}
	slices.Sort(jobs)
	return jobs, err
}

// removeOutputOf removes the kept output of an ended job, and returns its size in bytes.
func (s *Server) removeOutputOf(job uint32) (int64, error) {
	s.mu.Lock()
	running := s.jobs[job] != nil
	s.mu.Unlock()
	if running {
		return 0, control.Failf(control.Code_CODE_REFUSED, "job %d has not ended: margay kill --force %[1]d ends it", job)
	}
	bytes, err := removeSpool(s.config.Dir, job)
	if errors.Is(err, fs.ErrNotExist) {
		return 0, s.noOutput(job)
	}
	if err != nil {
		return 0, err
	}
	s.outputs.removed(job)
	return bytes, nil
}

// noOutput reports why a job has no kept output.
func (s *Server) noOutput(job uint32) error {
	if job == 0 {
		return control.Failf(control.Code_CODE_BAD_REQUEST, "there is no job 0")
	}
	jobs, err := s.listJobs(&control.ListJobs{Job: job}, permit.Caller{Role: permit.Owner})
	if err != nil {
		return err
	}
	if jobs.Jobs[0].Detached {
		return control.Failf(control.Code_CODE_NOT_FOUND, "the output of job %d was removed before", job)
	}
	return control.Failf(control.Code_CODE_NOT_FOUND, "job %d was not detached: its output went to its margay run", job)
}

// outdatedBy returns the job to forget when j has ended: of the jobs that the store remembers, the
// one that ended first. It is 0 if there is room for j. The caller holds Server.mu.
func (s *Server) outdatedBy(j *job) uint32 {
	if j.phase != control.JobPhase_JOB_DONE || len(s.remembered) < s.remember {
		return 0
	}
	return s.remembered[0]
}

// remembers notes that the store remembers an ended job, and has forgotten another one for it
// unless that is 0. The caller holds Server.mu.
func (s *Server) remembers(job, forgotten uint32) {
	s.remembered = append(s.remembered, job)
	if forgotten != 0 {
		s.remembered = s.remembered[1:]
		s.dropOutput(forgotten)
	}
}

// dropOutput removes the kept output of a job that the store has forgotten.
func (s *Server) dropOutput(job uint32) {
	if _, err := removeSpool(s.config.Dir, job); err != nil && !errors.Is(err, fs.ErrNotExist) {
		s.config.Log("%v", err)
		return
	}
	s.outputs.removed(job)
}
