package ledger

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"

	"golang.org/x/sys/unix"
)

// Gaps is what a history lacks, as far as it was read.
type Gaps struct {
	Damaged int    // lines that are torn or damaged
	Lost    uint64 // records that could not be written
}

// job identifies a job of all machines of a name.
type job struct {
	run    string
	number uint32
}

// Newest calls each with the record of each job, the job that ended last first, until each returns
// false. Without a history there are no jobs.
func (l *Log) Newest(each func(*Record) bool) (gaps Gaps, err error) {
	all, later, err := l.openAll()
	defer func() {
		for _, f := range all {
			f.Close()
		}
	}()
	if errors.Is(err, fs.ErrNotExist) {
		return gaps, nil
	}
	if err != nil {
		return gaps, err
	}
	gaps.Lost = later
	seen := make(map[job]bool)
	once := func(r *Record) bool {
		if who := (job{r.Run, r.Job}); !seen[who] {
			seen[who] = true
			gaps.Lost += r.Lost
			return each(r)
		}
		return true
	}
	for _, f := range all {
		data, err := io.ReadAll(f)
		if err != nil {
			return gaps, err
		}
		damaged, more := backwards(data, once)
		if gaps.Damaged += damaged; !more {
			break
		}
	}
	return gaps, nil
}

// part is a file of a history up to the end that it had while no process wrote to it.
type part struct {
	*io.SectionReader
	io.Closer
}

// openAll opens the files, the newest one first, and returns how many records were lost after them.
func (l *Log) openAll() (all []part, later uint64, err error) {
	dir, err := l.folder(os.Lstat)
	if err != nil {
		return nil, 0, err
	}
	locked, err := lock(dir, unix.LOCK_SH)
	if err != nil {
		return nil, 0, err
	}
	defer locked.Close()
	if later, err = lost(locked); err != nil {
		return nil, 0, err
	}
	for number := range files {
		f, size, err := open(file(dir, number), os.O_RDONLY)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return all, later, err
		}
		all = append(all, part{io.NewSectionReader(f, 0, size), f})
		if size > MaxSize/files {
			return all, later, fmt.Errorf("history: %s has %d bytes, at most %d are read", f.Name(), size, MaxSize/files)
		}
	}
	return all, later, nil
}

// backwards calls each with the records of a file, the last one first, until each returns false. It
// returns how many lines are not a record, and whether each wants more.
func backwards(data []byte, each func(*Record) bool) (damaged int, more bool) {
	for end := len(data); end > 0; {
		begin := bytes.LastIndexByte(data[:end-1], '\n') + 1
		line := data[begin:end]
		if line[len(line)-1] != '\n' { // its writer was killed
			line = append(line[:len(line):len(line)], '\n')
		}
		end = begin
		if r, err := ParseLine(line); err != nil {
			damaged++
		} else if !each(r) {
			return damaged, false
		}
	}
	return damaged, true
}
