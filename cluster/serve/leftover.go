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

// errNoRoom is why records were lost earlier.
var errNoRoom = fmt.Errorf("more than %d jobs waited for it", mostUnwritten)

// SettleHistory writes the records that the last serve in dir could not write to the history, in
// one attempt of limited duration, and adds the others to the history's count of lost records. It
// returns how many jobs the history lacks, and why. The machine has ended, and the caller removes
// its folder next.
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

// settling is an attempt to write the remaining records. Its result may be read once done is
// closed.
type settling struct {
	history History
	left    []*ledger.Record
	lost    uint64 // records that were lost before these
	closing chan struct{}
	done    chan struct{}

	lacking uint64
	why     error
}

// run writes records one by one, so that each record that fits is written.
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

// leftover returns the records that the last serve in dir could not write, and how many others are
// lost.
func leftover(dir string) (records []*ledger.Record, lost uint64, err error) {
	path := filepath.Join(dir, storeName)
	if _, err := os.Lstat(path); errors.Is(err, fs.ErrNotExist) {
		return nil, 0, nil
	}
	// On a full disk a store can be read but not written.
	db, err := bbolt.Open(path, 0o600, &bbolt.Options{Timeout: openTimeout, ReadOnly: true, OpenFile: openNoLink})
	if err != nil {
		return nil, 0, fmt.Errorf("open store %s: %w", path, err)
	}
	st := &store{db: db}
	defer st.close()
	if !st.whole() {
		return nil, 0, nil
	}
	if records, err = st.unwritten(); err == nil {
		lost, err = st.lost()
	}
	return records, lost, err
}
