package serve

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"go.etcd.io/bbolt"

	"margay/cluster/ledger"
)

// errNoRoom is why records were lost before.
var errNoRoom = fmt.Errorf("more than %d jobs waited for it", mostUnwritten)

// SettleHistory writes to the history what the last serve in dir could not write, once and for a while at most, and has the history
// count the others. It returns how many jobs the history lacks, and why. The machine has ended, and its folder is removed next.
func SettleHistory(dir string, h History) (lacking uint64, why error) {
	records, lost, err := leftover(dir)
	if err != nil || len(records) == 0 && lost == 0 {
		return 0, err
	}
	s := &settling{history: h, left: records, lost: lost, closing: make(chan struct{}), done: make(chan struct{})}
	if lost > 0 {
		s.why = errNoRoom
	}
	go s.run()
	if inTime(s.done) {
		return s.lacking, s.why
	}
	close(s.closing)
	return lost + uint64(len(records)), errSlow
}

// settling is a try to write the records that are left. Its result may be read when done is closed.
type settling struct {
	history History
	left    []*ledger.Record
	lost    uint64 // records that were lost before these
	closing chan struct{}
	done    chan struct{}

	lacking uint64
	why     error
}

// run writes one record after the other, so that each one that has room is written.
func (s *settling) run() {
	defer close(s.done)
	s.lacking = s.lost
	uncounted := s.lost
	for _, r := range s.left {
		select {
		case <-s.closing:
			return
		default:
		}
		r.Lost = uncounted
		if err := s.history.Append(r); err != nil {
			s.lacking, s.why = s.lacking+1, err
			uncounted++
			continue
		}
		uncounted = 0
	}
	if uncounted > 0 {
		if err := s.history.Lose(uncounted); err != nil {
			s.why = err
		}
	}
}

// leftover returns what the last serve in dir could not write: records, and how many others are lost.
func leftover(dir string) (records []*ledger.Record, lost uint64, err error) {
	path := filepath.Join(dir, storeName)
	if _, err := os.Lstat(path); errors.Is(err, fs.ErrNotExist) {
		return nil, 0, nil
	}
	// Where the disk is full, a store can be read and not be written.
	db, err := bbolt.Open(path, 0o600, &bbolt.Options{Timeout: openTimeout, ReadOnly: true, OpenFile: openNoLink})
	if err != nil {
		return nil, 0, fmt.Errorf("open store %s: %w", path, err)
	}
	st := &store{db}
	defer st.close()
	if !st.whole() {
		return nil, 0, nil
	}
	if records, err = st.unwritten(); err == nil {
		lost, err = st.lost()
	}
	return records, lost, err
}
