package kernel

import (
	"errors"
	"fmt"
	"os"
	"slices"

	"margay/internal/rights"
	"margay/kernel/abi/archive"
	"margay/kernel/abi/id"
	"margay/kernel/abi/node"
	"margay/kernel/content"
	"margay/kernel/keep"
)

// keptContents is the name under which PID 1 keeps the root of the RAM disk with the files that
// jobs have brought.
const keptContents = "contents"

// Bounds of the files that a node keeps for later jobs.
const (
	contentShare = 12       // divisor: their budget is this part of the memory for jobs
	smallShare   = 6        // the same, up to smallContent: a small node has room for programs, too
	smallContent = 64 << 20 // bytes: the libraries of a program of MPI are 45 MiB
	mostContent  = 1 << 30  // bytes
)

// contentBudget returns the memory that files for later jobs may take, in bytes, on a node with the
// given amount for jobs. Unless it is 0, most is a bound. A node with its own Linux takes it from
// the memory that jobs would otherwise have.
func contentBudget(memory, most int64) int64 {
	budget := min(max(memory/contentShare, min(memory/smallShare, smallContent)), mostContent)
	if most > 0 {
		budget = min(budget, most)
	}
	return budget
}

// openContents opens the store of files for later jobs: the store of an earlier node kernel, whose
// root is given, or a new one. A node also works without a store.
func (n *Node) openContents(root *os.File) {
	budget := contentBudget(n.Info().Memory, n.config.Boot.Contents)
	if root == nil {
		var err error
		if root, err = content.NewDisk(budget); err != nil {
			n.config.Log("each job brings all its files: %v", err)
			return
		}
		if err := keep.Keep(n.config.Link, keep.Item{Name: keptContents, Files: []*os.File{root}}); err != nil {
			n.config.Log("files of jobs are lost when the node kernel is started again: %v", err)
		}
	}
	store, err := content.New(root, budget)
	if err != nil {
		root.Close()
		n.config.Log("each job brings all its files: %v", err)
		return
	}
	if n.config.Contents != "" {
		if err := store.Mount(n.config.Contents); err != nil {
			n.config.Log("each job has copies of its program and libraries: %v", err)
		}
	}
	n.contents.Store(store)
}

// openLent opens the contents of a job that are in the folder of files that are lent to it. It
// subtracts them from the job's files: they are code (launch.Files), which jobs execute from there,
// so they take nothing of its RAM disk.
func (n *Node) openLent(s *JobSpec, folder string) (lent found) {
	if lender := n.config.Boot.Lent; lender == nil || lender.User != s.UserID {
		return lent
	}
	lent, _ = split(s.Contents, content.OpenLent(folder, s.Contents))
	for _, f := range lent.files {
		if info, err := f.Stat(); err == nil && s.Files > 0 {
			s.Files = max(0, s.Files-content.Pages(info.Size()))
		}
	}
	return lent
}

// giveContents passes the contents of a job that are lent to it, or that the node has, to the job's
// init, and returns the indexes of the others.
func (n *Node) giveContents(s JobSpec, lent found) (lacking []int, err error) {
	others := slices.DeleteFunc(slices.Clone(s.Contents), func(d archive.Digest) bool { return slices.Contains(lent.digests, d) })
	var kept found
	var held content.Holding
	folder := ""
	if store := n.contents.Load(); store != nil {
		var files []*os.File
		files, held = store.Open(s.UserID, others)
		kept, others = split(others, files)
		folder = store.Folder(s.UserID)
	}
	defer rights.Close(kept.files)
	j, err := n.hold(s.Job, held)
	if err != nil {
		return nil, err
	}
	for i, digest := range s.Contents {
		if slices.Contains(others, digest) {
			lacking = append(lacking, i)
		}
	}
	return lacking, errors.Join(j.container.Give(node.Lent, lent.digests, lent.files), j.container.Give(folder, kept.digests, kept.files))
}

// found is open files with the digests of their contents.
type found struct {
	digests []archive.Digest
	files   []*os.File
}

// split returns what was found of the contents with some digests, and the others. A file that was
// not found is nil.
func split(digests []archive.Digest, files []*os.File) (f found, others []archive.Digest) {
	for i, digest := range digests {
		if files[i] == nil {
			others = append(others, digest)
			continue
		}
		f.digests, f.files = append(f.digests, digest), append(f.files, files[i])
	}
	return f, others
}

// hold lets a job hold files of the store until it is removed.
func (n *Node) hold(number id.Job, held content.Holding) (*job, error) {
	j, err := n.get(number)
	if err != nil {
		n.release(held)
		return nil, err
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.jobs[number] != j {
		n.release(held)
		return nil, fmt.Errorf("job %d: %w", number, ErrNoJob)
	}
	j.held = held
	return j, nil
}

// release ends a holding of a job.
func (n *Node) release(held content.Holding) {
	if store := n.contents.Load(); store != nil {
		store.Release(held)
	}
}

// Content implements task.Handler.
func (j *job) Content(digest archive.Digest, f *os.File) {
	store := j.node.contents.Load()
	if store == nil {
		f.Close()
		return
	}
	store.AddSoon(j.spec.UserID, digest, f, func(err error) {
		if err != nil {
			j.node.refused.Printf("job %d: a file that is not kept for later jobs: %v", j.spec.Job, err)
		}
	})
}
