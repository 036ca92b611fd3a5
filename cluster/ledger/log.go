package ledger

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"margay/cluster/site"
	"margay/cluster/way"
	"margay/internal/flock"
)

// The bounds of a history, in bytes in all of its files.
const (
	DefaultSize = 64 << 20
	MinSize     = files * MaxLine
	MaxSize     = 1 << 30
)

// files is the number of files of a history.
const files = 4

// lockTimeout bounds the wait for other processes that use the history.
const lockTimeout = 10 * time.Second

// Log is the history of the machines of one name. It is safe for concurrent use, by any number of
// processes.
type Log struct {
	dir     string
	most    int64 // bytes in a file
	effects effects
}

// effects are the steps in which a writer can be killed. Tests replace them.
type effects struct {
	write  func(f *os.File, data []byte, at int64) (int, error)
	rename func(from, to string) error
}

// New returns the history of a machine below base. Its files together have at most size bytes, of
// MinSize to MaxSize. Nothing is created or read yet.
func New(base, machine string, size int64) *Log {
	return &Log{
		dir: filepath.Join(base, machine), most: min(max(size, MinSize), MaxSize) / files,
		effects: effects{write: (*os.File).WriteAt, rename: os.Rename},
	}
}

// Make creates the folder of the history. It returns an error if another user can change it.
func (l *Log) Make() error {
	_, err := l.folder(way.Made(0o700))
	return err
}

// folder checks the way to the folder, and returns its path without links.
func (l *Log) folder(look way.Look) (string, error) {
	return way.Folder{What: "history", Path: l.dir, Variable: site.StateVariable}.Follow(look)
}

// file returns the path of a file of the history; the newest one is 0.
func file(dir string, number int) string {
	if number == 0 {
		return filepath.Join(dir, "jobs.jsonl")
	}
	return filepath.Join(dir, fmt.Sprintf("jobs.%d.jsonl", number))
}

// open opens a regular file. It follows no link in its place.
func open(path string, flag int) (*os.File, int64, error) {
	f, err := os.OpenFile(path, flag|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0o600)
	if err != nil {
		return nil, 0, err
	}
	info, err := f.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = &fs.PathError{Op: "open", Path: path, Err: errors.New("not a regular file")}
	}
	if err != nil {
		return nil, 0, errors.Join(err, f.Close())
	}
	return f, info.Size(), nil
}

// lock waits until no other process writes to the history, or with unix.LOCK_EX uses it. It ends
// when the file is closed. Readers cannot change the file.
func lock(dir string, how int) (*os.File, error) {
	flag := os.O_RDONLY
	if how == unix.LOCK_EX {
		flag = os.O_RDWR
	}
	f, _, err := open(filepath.Join(dir, "lock"), flag|os.O_CREATE)
	if err != nil {
		return nil, err
	}
	if err := flock.Lock(f, how, lockTimeout); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// lost returns how many records were lost since the last one that was written: the size of the file
// lock, which can change on a full disk.
func lost(locked *os.File) (uint64, error) {
	info, err := locked.Stat()
	if err != nil {
		return 0, err
	}
	return uint64(info.Size()), nil
}

// mostLost bounds the number of lost records that is kept.
const mostLost = 1 << 30

// Lose counts records that cannot be written. The next record that is written has their number in
// Lost besides its own.
func (l *Log) Lose(records uint64) error {
	locked, err := l.writing()
	if err != nil {
		return err
	}
	defer locked.Close()
	before, err := lost(locked.File)
	if err != nil {
		return err
	}
	return locked.Truncate(int64(min(before, mostLost) + min(records, mostLost)))
}

// writing is the lock of a process that writes to the history in dir.
type writing struct {
	*os.File
	dir string
}

// writing makes the folder and waits until no other process uses it.
func (l *Log) writing() (*writing, error) {
	dir, err := l.folder(way.Made(0o700)) // the user may have removed it
	if err != nil {
		return nil, err
	}
	locked, err := lock(dir, unix.LOCK_EX)
	if err != nil {
		return nil, err
	}
	return &writing{locked, dir}, nil
}

// Append writes records in this order, in as few writes as possible. After an error some of them
// may be written; writing them again does no harm.
func (l *Log) Append(records ...*Record) error {
	if len(records) == 0 {
		return nil
	}
	var lines [][]byte
	for _, r := range records {
		line, err := AppendLine(nil, r)
		if err != nil {
			return err
		}
		lines = append(lines, line)
	}
	locked, err := l.writing()
	if err != nil {
		return err
	}
	defer locked.Close()
	before, err := lost(locked.File)
	if err == nil && before > 0 {
		first := *records[0]
		first.Lost += before
		lines[0], err = AppendLine(nil, &first)
	}
	if err != nil {
		return err
	}
	for len(lines) > 0 {
		if lines, err = l.fill(locked.dir, lines); err != nil {
			return err
		}
	}
	if before == 0 {
		return nil
	}
	return locked.Truncate(0) // before that, a writer that tries again writes the number again
}

// fill writes the lines that the newest file has room for, in one write, and returns the others. If
// it has room for none, it becomes an older file.
func (l *Log) fill(dir string, lines [][]byte) (rest [][]byte, err error) {
	f, size, err := open(file(dir, 0), os.O_RDWR|os.O_CREATE)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	data, err := tornEnd(f, size)
	if err != nil {
		return nil, err
	}
	torn := len(data)
	for len(lines) > 0 && size+int64(len(data)+len(lines[0])) <= l.most {
		data, lines = append(data, lines[0]...), lines[1:]
	}
	if len(data) == torn {
		return lines, l.rotate(dir)
	}
	if _, err := l.effects.write(f, data, size); err != nil {
		return nil, errors.Join(err, f.Truncate(size)) // nothing torn stays, or there would be no room for a whole line later
	}
	return lines, nil
}

// tornEnd returns the end of a line if the file ends with a torn one, and otherwise nothing.
func tornEnd(f *os.File, size int64) ([]byte, error) {
	if size == 0 {
		return nil, nil
	}
	last := make([]byte, 1)
	if _, err := f.ReadAt(last, size-1); err != nil || last[0] == '\n' {
		return nil, err
	}
	return []byte{'\n'}, nil
}

// rotate gives each file the next number, up to one that no file has: a writer may have been killed
// while it rotated. If there is none, the oldest file is replaced.
func (l *Log) rotate(dir string) error {
	free := 1
	for free < files-1 {
		if _, err := os.Lstat(file(dir, free)); errors.Is(err, fs.ErrNotExist) {
			break
		}
		free++
	}
	for to := free; to > 0; to-- {
		if err := l.effects.rename(file(dir, to-1), file(dir, to)); err != nil {
			return err
		}
	}
	return nil
}
