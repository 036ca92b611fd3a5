package proxy

import (
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"margay/kernel/abi/fuse"
)

// Watch sees what a node does. Its functions are called by the goroutines that carry out requests,
// several at once, and may hold these up. Either may be nil.
type Watch struct {
	Did  func(Event)                         // after each request that Linux waits for
	Lost func(path string, errno unix.Errno) // data of a write that has returned are not in the file
}

// Event is a request that was carried out.
type Event struct {
	Begun          time.Time
	Took           time.Duration
	Operation      fuse.Opcode
	Behind         bool   // of Write: the rank does not wait for it
	Path           string // here; empty: the file has no name any more
	To             string // of Rename and Link: the new path; of Symlink: the target
	Sized          bool   // Offset and Length are valid
	Offset, Length uint64
	Errno          unix.Errno // 0: it has succeeded
}

// begin notes the beginning of a request, whose end calls what it returns.
func (m *mount) begin(r *fuse.Request) (end func(r *fuse.Request, answer []byte, err error)) {
	if m.watch.Did == nil || !r.Opcode.Answered() {
		return func(*fuse.Request, []byte, error) {}
	}
	e := Event{Begun: time.Now(), Operation: r.Opcode, Behind: r.Behind, Path: m.shown(r.Node, r.Name), Offset: r.Offset, Length: r.Size}
	switch r.Opcode {
	case fuse.Rename, fuse.Rename2:
		e.To = m.shown(r.NewDir, r.NewName)
	case fuse.Link:
		e.Path, e.To = m.shown(r.NewDir, ""), e.Path
	case fuse.Symlink:
		e.To = r.NewName
	case fuse.Read, fuse.Write, fuse.FAllocate:
		e.Sized = true
	case fuse.SetAttr:
		e.Sized = r.Valid&fuse.SetSize != 0
	}
	return func(r *fuse.Request, answer []byte, err error) {
		e.Took = time.Since(e.Begun)
		if err != nil {
			e.Errno = errnoOf(err)
		} else if r.Opcode == fuse.Read {
			e.Length = uint64(len(answer) - fuse.AnswerSize)
		}
		m.watch.Did(e)
	}
}

// shown returns the path of a file here, or "" if it has none.
func (m *mount) shown(number uint64, name string) string {
	path, err := m.path(number)
	if err != nil {
		return ""
	}
	return filepath.Join(m.root.Name(), path, name)
}

// owe keeps the error of a write behind until a request can report it. One is enough.
func (m *mount) owe(h *handle, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if h.owed == 0 {
		h.owed = errnoOf(err)
	}
}

// takeOwed returns the error of a write behind, once. The caller reports it to a rank that looks at
// it.
func (m *mount) takeOwed(h *handle) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	errno := h.owed
	h.owed = 0
	if errno == 0 {
		return nil
	}
	return errno
}

// settleLoss returns the error of a write behind when a file is closed. Many programs ignore the
// result of close, and all do that when they end, so the user gets the error as well: unless the
// file is removed, whose data nothing reads.
func (m *mount) settleLoss(h *handle) error {
	err := m.takeOwed(h)
	if err == nil {
		return nil
	}
	var st unix.Stat_t
	if m.watch.Lost != nil && (unix.Fstat(int(h.file.Fd()), &st) != nil || st.Nlink > 0) {
		m.watch.Lost(m.shown(h.inode, ""), errnoOf(err))
	}
	return err
}
