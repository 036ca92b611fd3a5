package permit

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
	"golang.org/x/time/rate"
)

// Bounds of an audit log.
const (
	auditSize  = 1 << 20 // bytes of a file; there are two
	auditBurst = 100     // refusals of a user that have a line each, at once
	auditRate  = 1       // and a second; others are counted
	auditUsers = 1000    // that are counted apart
	mostText   = 200     // bytes of a text in a line
)

// Entry is a line of an audit log: a refused request, or a machine that has shown the token of a
// node.
type Entry struct {
	Time    time.Time `json:"time"`
	UID     uint32    `json:"uid"`
	User    string    `json:"user"`
	Request string    `json:"request"`
	Object  string    `json:"object"`
	Omitted uint64    `json:"omitted,omitempty"` // refusals of this user before, which have no line
}

// Audit is the log of refused requests: a file of lines, each in JSON, and the file before it. Most
// requests of a user that makes many of them are only counted, so the requests of other users are
// not pushed out quickly. It is safe for concurrent use.
type Audit struct {
	path string

	mu     sync.Mutex
	file   *os.File
	size   int64
	users  map[uint32]*teller
	failed error // the last line could not be written
}

// unknownUID stands for users that are not known. Linux gives it to no user.
const unknownUID = 1<<32 - 1

// Unknown is a caller that has shown nothing by which it is known.
var Unknown = Caller{UID: unknownUID, Name: NameOf(unknownUID)}

// teller counts the refusals of a user.
type teller struct {
	limit   *rate.Limiter
	omitted uint64
}

// OpenAudit opens a log, and makes it if there is none.
func OpenAudit(path string) (*Audit, error) {
	a := &Audit{path: path, users: make(map[uint32]*teller)}
	return a, a.open()
}

// open opens the file for the next line. The caller holds Audit.mu, unless the log is not shared.
func (a *Audit) open() error {
	f, err := os.OpenFile(a.path, os.O_WRONLY|os.O_CREATE|os.O_APPEND|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return fmt.Errorf("audit log: %w", err)
	}
	info, err := f.Stat()
	if err != nil {
		f.Close()
		return fmt.Errorf("audit log: %w", err)
	}
	a.file, a.size = f, info.Size()
	return nil
}

// old is where the file before this one is.
func (a *Audit) old() string { return a.path + ".old" }

// Add adds a line, or counts it if this user has had too many lines.
func (a *Audit) Add(now time.Time, c Caller, request, object string) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	t := a.teller(c.UID)
	if !t.limit.AllowN(now, 1) {
		t.omitted++
		return nil
	}
	e := Entry{Time: now.UTC(), UID: c.UID, User: short(c.Name), Request: short(request), Object: short(object), Omitted: t.omitted}
	if a.failed = a.write(e); a.failed != nil {
		t.omitted++
		return a.failed
	}
	t.omitted = 0
	return nil
}

func short(text string) string { return strings.ToValidUTF8(text[:min(len(text), mostText)], "") }

// teller returns the count of a user. The caller holds Audit.mu.
func (a *Audit) teller(uid uint32) *teller {
	if a.users[uid] == nil && len(a.users) >= auditUsers {
		uid = unknownUID // stands for all others
	}
	if a.users[uid] == nil {
		a.users[uid] = &teller{limit: rate.NewLimiter(auditRate, auditBurst)}
	}
	return a.users[uid]
}

// write appends a line. The caller holds Audit.mu.
func (a *Audit) write(e Entry) error {
	line, err := json.Marshal(e)
	if err != nil {
		return err
	}
	line = append(line, '\n')
	if a.failed != nil { // the last line may have been cut
		line = append([]byte{'\n'}, line...)
	}
	if a.size+int64(len(line)) > auditSize {
		if err := os.Rename(a.path, a.old()); err != nil && !errors.Is(err, fs.ErrNotExist) { // open has failed after an earlier rename
			return fmt.Errorf("audit log: %w", err)
		}
		a.file.Close()
		if err := a.open(); err != nil {
			return err
		}
	}
	n, err := a.file.Write(line)
	a.size += int64(n)
	if err != nil {
		return fmt.Errorf("audit log: %w", err)
	}
	return nil
}

// Read returns all lines, the oldest first. At the end are entries without a request for users
// whose last refusals were only counted.
func (a *Audit) Read(now time.Time) (entries []Entry, err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, path := range []string{a.old(), a.path} {
		text, err := os.ReadFile(path)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, fmt.Errorf("audit log: %w", err)
		}
		entries = append(entries, parse(text)...)
	}
	var counted []Entry
	for uid, t := range a.users {
		if t.omitted > 0 {
			counted = append(counted, Entry{Time: now.UTC(), UID: uid, User: NameOf(uid), Omitted: t.omitted})
		}
	}
	slices.SortFunc(counted, func(x, y Entry) int { return int(int64(x.UID) - int64(y.UID)) })
	return append(entries, counted...), nil
}

// parse reads the lines of a file. A line that is damaged is left out: a full disk cuts lines.
func parse(text []byte) (entries []Entry) {
	lines := bufio.NewScanner(bytes.NewReader(text))
	lines.Buffer(nil, auditSize)
	for lines.Scan() {
		var e Entry
		if json.Unmarshal(lines.Bytes(), &e) == nil {
			entries = append(entries, e)
		}
	}
	return entries
}

// Close closes the log.
func (a *Audit) Close() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.file.Close()
}
