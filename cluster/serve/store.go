package serve

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"go.etcd.io/bbolt"
	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"

	"margay/cluster/control"
	"margay/cluster/ledger"
	"margay/cluster/permit"
	"margay/cluster/roster"
)

// keepEnded is how many ended jobs the store remembers.
const keepEnded = 1000

// The store's buckets, and the keys of meta.
var (
	bucketMeta       = []byte("meta")
	bucketJobs       = []byte("jobs")
	bucketNodes      = []byte("nodes")
	bucketExtensions = []byte("extensions")
	bucketPlacers    = []byte("placers")
	bucketDrains     = []byte("drains")
	bucketUnwritten  = []byte("unwritten")
	bucketTokens     = []byte("tokens")
	keyStarts        = []byte("starts")
	keyLost          = []byte("lost")
	keyRoster        = []byte("roster")
	keyUpdate        = []byte("update")
)

// storeName is the name of the store's file.
const storeName = "state.db"

// openTimeout bounds how long a serve waits for another that is ending to release the store.
const openTimeout = 5 * time.Second

// store is the state that survives a serve: jobs, nodes, drains, the machine's extensions, tokens,
// and the number of the next job.
type store struct {
	db    *bbolt.DB
	taken uint64 // the last job number that nextJob has returned; 0: none
}

func openStore(dir string) (*store, error) {
	path := filepath.Join(dir, storeName)
	// The machine's processes do not outlive this host, so the store only has to survive the death
	// of serve.
	db, err := bbolt.Open(path, 0o600, &bbolt.Options{Timeout: openTimeout, NoSync: true, OpenFile: openNoLink})
	if err != nil {
		return nil, fmt.Errorf("serve: open store %s: %w", path, err)
	}
	err = db.Update(func(tx *bbolt.Tx) error {
		for _, b := range [][]byte{bucketMeta, bucketJobs, bucketNodes, bucketExtensions, bucketPlacers, bucketDrains, bucketUnwritten, bucketTokens} {
			if _, err := tx.CreateBucketIfNotExists(b); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return nil, errors.Join(fmt.Errorf("serve: open store %s: %w", path, err), db.Close())
	}
	return &store{db: db}, nil
}

// openNoLink is os.OpenFile, except that it does not follow a symbolic link.
func openNoLink(path string, flag int, mode os.FileMode) (*os.File, error) {
	return os.OpenFile(path, flag|unix.O_NOFOLLOW, mode)
}

func (s *store) close() error {
	return errors.Join(s.countTaken(), s.db.Close())
}

// countTaken counts the number of a job that was not recorded.
func (s *store) countTaken() error {
	if s.taken == 0 || s.counted() >= s.taken {
		return nil
	}
	return s.db.Update(func(tx *bbolt.Tx) error { return countJobs(tx, s.taken) })
}

// counted returns the last job number that is recorded as taken.
func (s *store) counted() (number uint64) {
	_ = s.db.View(func(tx *bbolt.Tx) error { // it fails only when the store is closed
		number = tx.Bucket(bucketJobs).Sequence()
		return nil
	})
	return number
}

// whole reports whether the store has its buckets, that is, whether its first serve was not killed
// earlier.
func (s *store) whole() bool {
	return s.db.View(func(tx *bbolt.Tx) error {
		if tx.Bucket(bucketMeta) == nil || tx.Bucket(bucketUnwritten) == nil {
			return errors.New("it has no buckets")
		}
		return nil
	}) == nil
}

// countStart returns how often a serve has been started on this store, including this time.
func (s *store) countStart() (n uint32, err error) {
	err = s.db.Update(func(tx *bbolt.Tx) error {
		b := tx.Bucket(bucketMeta)
		if v := b.Get(keyStarts); len(v) == 4 {
			n = binary.BigEndian.Uint32(v)
		}
		n++
		return b.Put(keyStarts, binary.BigEndian.AppendUint32(nil, n))
	})
	return n, err
}

// nextJob returns a number that no recorded job of this machine has had. saveJob counts it, in the
// same step as it records the job. The caller holds Server.mu.
func (s *store) nextJob() (uint32, error) {
	next := max(s.taken, s.counted()) + 1
	if next > 1<<32-1 {
		return 0, errors.New("serve: the job numbers of this machine are used up")
	}
	s.taken = next
	return uint32(next), nil
}

// countJobs counts the numbers of jobs up to one as taken.
func countJobs(tx *bbolt.Tx, number uint64) error {
	b := tx.Bucket(bucketJobs)
	if number <= b.Sequence() {
		return nil
	}
	return b.SetSequence(number)
}

// saveNode records that a node is a member of the machine, so that a new serve waits for it.
func (s *store) saveNode(n *node) error {
	value, err := proto.Marshal(&control.NodeState{Node: n.number, Info: n.info, Boots: n.boots, Panic: n.firmware.panic})
	if err != nil {
		return err
	}
	return s.db.Update(func(tx *bbolt.Tx) error {
		return tx.Bucket(bucketNodes).Put(key(n.number), value)
	})
}

// nodes returns the member nodes.
func (s *store) nodes() (nodes []*control.NodeState, err error) {
	err = s.db.View(func(tx *bbolt.Tx) error {
		return tx.Bucket(bucketNodes).ForEach(func(_, v []byte) error {
			n := new(control.NodeState)
			nodes = append(nodes, n)
			return proto.Unmarshal(v, n)
		})
	})
	return nodes, err
}

// saveRoster records which nodes the machine has, and forgets nodes that have left it.
func (s *store) saveRoster(r roster.Roster, left []uint32) error {
	value, err := proto.Marshal(&control.Roster{Nodes: r.Nodes, Terms: r.Terms})
	if err != nil {
		return err
	}
	return s.db.Update(func(tx *bbolt.Tx) error {
		for _, number := range left {
			if err := errors.Join(tx.Bucket(bucketNodes).Delete(key(number)), tx.Bucket(bucketDrains).Delete(key(number))); err != nil {
				return err
			}
		}
		return tx.Bucket(bucketMeta).Put(keyRoster, value)
	})
}

// roster returns the roster that saveRoster has recorded last; it is empty if there is none.
func (s *store) roster() (roster.Roster, error) {
	m := new(control.Roster)
	err := s.db.View(func(tx *bbolt.Tx) error { return proto.Unmarshal(tx.Bucket(bucketMeta).Get(keyRoster), m) })
	return roster.Roster{Nodes: m.Nodes, Terms: m.Terms}, err
}

// saveDrains records why nodes are drained, nil for nodes that are not. On an error it records none
// of them.
func (s *store) saveDrains(drains map[uint32]*control.Drain) error {
	return s.db.Update(func(tx *bbolt.Tx) error { return putDrains(tx, drains) })
}

func putDrains(tx *bbolt.Tx, drains map[uint32]*control.Drain) error {
	b := tx.Bucket(bucketDrains)
	for number, d := range drains {
		if d == nil {
			if err := b.Delete(key(number)); err != nil {
				return err
			}
			continue
		}
		value, err := proto.Marshal(d)
		if err != nil {
			return err
		}
		if err := b.Put(key(number), value); err != nil {
			return err
		}
	}
	return nil
}

// drains returns the drained nodes, and why they are drained.
func (s *store) drains() (map[uint32]*control.Drain, error) {
	drains := make(map[uint32]*control.Drain)
	err := s.db.View(func(tx *bbolt.Tx) error {
		return tx.Bucket(bucketDrains).ForEach(func(k, v []byte) error {
			d := new(control.Drain)
			drains[binary.BigEndian.Uint32(k)] = d
			return proto.Unmarshal(v, d)
		})
	})
	return drains, err
}

// nextToken returns a number that no token of this machine has had.
func (s *store) nextToken() (number uint32, err error) {
	err = s.db.Update(func(tx *bbolt.Tx) error {
		next, err := tx.Bucket(bucketTokens).NextSequence()
		number = uint32(next)
		return err
	})
	return number, err
}

// saveToken records a token.
func (s *store) saveToken(t *control.StoredToken) error {
	value, err := proto.Marshal(t)
	if err != nil {
		return err
	}
	return s.db.Update(func(tx *bbolt.Tx) error { return tx.Bucket(bucketTokens).Put(key(t.Token.Number), value) })
}

// deleteTokens deletes tokens, all or, on an error, none.
func (s *store) deleteTokens(numbers []uint32) error {
	return s.db.Update(func(tx *bbolt.Tx) error {
		for _, number := range numbers {
			if err := tx.Bucket(bucketTokens).Delete(key(number)); err != nil {
				return err
			}
		}
		return nil
	})
}

// tokens returns the recorded tokens by number.
func (s *store) tokens() (map[uint32]*control.StoredToken, error) {
	tokens := make(map[uint32]*control.StoredToken)
	err := s.db.View(func(tx *bbolt.Tx) error {
		return tx.Bucket(bucketTokens).ForEach(func(k, v []byte) error {
			t := new(control.StoredToken)
			tokens[binary.BigEndian.Uint32(k)] = t
			return proto.Unmarshal(v, t)
		})
	})
	return tokens, err
}

// saveUpdate records the state of an update, and changes of drains as saveDrains does. On an error
// it records nothing.
func (s *store) saveUpdate(u *control.Update, drains map[uint32]*control.Drain) error {
	value, err := proto.Marshal(u)
	if err != nil {
		return err
	}
	return s.db.Update(func(tx *bbolt.Tx) error {
		if err := putDrains(tx, drains); err != nil {
			return err
		}
		return tx.Bucket(bucketMeta).Put(keyUpdate, value)
	})
}

// update returns the state that saveUpdate has recorded last, nil if there is none.
func (s *store) update() (u *control.Update, err error) {
	err = s.db.View(func(tx *bbolt.Tx) error {
		value := tx.Bucket(bucketMeta).Get(keyUpdate)
		if value == nil {
			return nil
		}
		u = new(control.Update)
		return proto.Unmarshal(value, u)
	})
	return u, err
}

// keepUnwritten stores the record of an ended job that could not be written to the history.
func (s *store) keepUnwritten(r *ledger.Record) error {
	line, err := ledger.AppendLine(nil, r)
	if err != nil {
		return err
	}
	return s.db.Update(func(tx *bbolt.Tx) error { return tx.Bucket(bucketUnwritten).Put(key(r.Job), line) })
}

// forgetUnwritten deletes such records, which the history now has.
func (s *store) forgetUnwritten(jobs []uint32) error {
	return s.db.Update(func(tx *bbolt.Tx) error {
		for _, job := range jobs {
			if err := tx.Bucket(bucketUnwritten).Delete(key(job)); err != nil {
				return err
			}
		}
		return nil
	})
}

// saveLost stores how many records are lost and not yet counted in the history.
func (s *store) saveLost(n uint64) error {
	return s.db.Update(func(tx *bbolt.Tx) error {
		return tx.Bucket(bucketMeta).Put(keyLost, binary.BigEndian.AppendUint64(nil, n))
	})
}

// lost returns the value that saveLost has stored.
func (s *store) lost() (n uint64, err error) {
	err = s.db.View(func(tx *bbolt.Tx) error {
		if v := tx.Bucket(bucketMeta).Get(keyLost); len(v) == 8 {
			n = binary.BigEndian.Uint64(v)
		}
		return nil
	})
	return n, err
}

// unwritten returns the stored records, ordered by job number.
func (s *store) unwritten() (records []*ledger.Record, err error) {
	err = s.db.View(func(tx *bbolt.Tx) error {
		return tx.Bucket(bucketUnwritten).ForEach(func(_, line []byte) error {
			r, err := ledger.ParseLine(line)
			records = append(records, r)
			return err
		})
	})
	return records, err
}

// nextExtension returns a number that no extension inserted into this machine has had.
func (s *store) nextExtension() (number uint64, err error) {
	err = s.db.Update(func(tx *bbolt.Tx) error {
		number, err = tx.Bucket(bucketExtensions).NextSequence()
		return err
	})
	return number, err
}

// saveExtension records an extension of the machine, or deletes it.
func (s *store) saveExtension(x *control.MachineExtension, wanted bool) error {
	value, err := proto.Marshal(x)
	if err != nil {
		return err
	}
	return s.putExtension(bucketExtensions, x.Request.Number, value, wanted)
}

// putExtension records an extension under its number, or deletes it.
func (s *store) putExtension(bucket []byte, number uint64, value []byte, wanted bool) error {
	return s.db.Update(func(tx *bbolt.Tx) error {
		b, k := tx.Bucket(bucket), binary.BigEndian.AppendUint64(nil, number)
		if !wanted {
			return b.Delete(k)
		}
		return b.Put(k, value)
	})
}

// extensions returns the recorded extensions of the machine, in order of insertion.
func (s *store) extensions() (list []*control.MachineExtension, err error) {
	err = s.db.View(func(tx *bbolt.Tx) error {
		return tx.Bucket(bucketExtensions).ForEach(func(_, v []byte) error {
			x := new(control.MachineExtension)
			list = append(list, x)
			return proto.Unmarshal(v, x)
		})
	})
	return list, err
}

// savePlacer records an extension in slot place.
func (s *store) savePlacer(m *control.InsertExtension) error {
	value, err := proto.Marshal(m)
	if err != nil {
		return err
	}
	return s.putExtension(bucketPlacers, m.Number, value, true)
}

// deletePlacer deletes the record of an extension in slot place, if there is one.
func (s *store) deletePlacer(number uint64) error {
	return s.putExtension(bucketPlacers, number, nil, false)
}

// placers returns the recorded extensions in slot place, in order of insertion.
func (s *store) placers() (list []*control.InsertExtension, err error) {
	err = s.db.View(func(tx *bbolt.Tx) error {
		return tx.Bucket(bucketPlacers).ForEach(func(_, v []byte) error {
			m := new(control.InsertExtension)
			list = append(list, m)
			return proto.Unmarshal(v, m)
		})
	})
	return list, err
}

// saveJob records the current state of a job, and deletes the job forget unless that is 0.
func (s *store) saveJob(j *job, forget uint32) error {
	stored := &control.StoredJob{Spec: j.spec, Places: j.places, Members: j.members, Summary: j.summary(), State: j.state(), Warned: j.limit.warned, Over: j.limit.over, Halt: int32(j.halt), Launcher: j.launcher.pid, LauncherStart: j.launcher.start}
	if !j.limit.end.IsZero() {
		stored.LimitNs = j.limit.end.UnixNano()
	}
	for _, m := range j.members {
		if j.records.Complete(m.Node) {
			stored.Complete = append(stored.Complete, m.Node)
		}
	}
	value, err := proto.Marshal(stored)
	if err == nil {
		err = s.db.Update(func(tx *bbolt.Tx) error {
			if err := countJobs(tx, uint64(j.number)); err != nil {
				return err
			}
			b := tx.Bucket(bucketJobs)
			if err := b.Put(key(j.number), value); err != nil {
				return err
			}
			return b.Delete(key(forget)) // no job has number 0
		})
	}
	if err != nil {
		return fmt.Errorf("serve: record job %d: %w", j.number, err)
	}
	return nil
}

// forgetJobs deletes jobs.
func (s *store) forgetJobs(numbers []uint32) error {
	err := s.db.Update(func(tx *bbolt.Tx) error {
		for _, number := range numbers {
			if err := tx.Bucket(bucketJobs).Delete(key(number)); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("serve: forget %d jobs: %w", len(numbers), err)
	}
	return nil
}

// each passes every recorded job, or only the given one if number is not 0, to do.
func (s *store) each(number uint32, do func(*control.StoredJob)) error {
	one := func(k, v []byte) error {
		j := new(control.StoredJob)
		if err := proto.Unmarshal(v, j); err != nil {
			return fmt.Errorf("serve: record of job %d: %w", binary.BigEndian.Uint32(k), err)
		}
		do(j)
		return nil
	}
	return s.db.View(func(tx *bbolt.Tx) error {
		b := tx.Bucket(bucketJobs)
		if number == 0 {
			return b.ForEach(one)
		}
		if v := b.Get(key(number)); v != nil {
			return one(key(number), v)
		}
		return nil
	})
}

func (s *store) summaries(number uint32) (list []*control.JobSummary, err error) {
	err = s.each(number, func(j *control.StoredJob) { list = append(list, j.Summary) })
	return list, err
}

// jobState returns the recorded state of a job.
func (s *store) jobState(number uint32) (state *control.JobState, err error) {
	err = s.each(number, func(j *control.StoredJob) { state = j.State })
	if err == nil && state == nil {
		err = control.Failf(control.Code_CODE_NOT_FOUND, "there is no job %d", number)
	}
	return state, err
}

// userOf returns the user of a recorded job, and whether it is recorded.
func (s *store) userOf(number uint32) (user permit.JobUser, known bool, err error) {
	err = s.db.View(func(tx *bbolt.Tx) error {
		v := tx.Bucket(bucketJobs).Get(key(number))
		if v == nil {
			return nil
		}
		j := new(control.StoredJob)
		if err := proto.Unmarshal(v, j); err != nil {
			return fmt.Errorf("serve: record of job %d: %w", number, err)
		}
		user, known = permit.JobUser{UID: j.Spec.GetUid(), Name: j.Spec.GetUser()}, true
		return nil
	})
	return user, known, err
}

func key(number uint32) []byte { return binary.BigEndian.AppendUint32(nil, number) }

// lastState returns the state of an ended job. The caller holds Server.mu, or the job is recorded.
func (s *Server) lastState(number uint32) (*control.JobState, error) {
	if j := s.ended[number]; j != nil {
		return j.state(), nil
	}
	return s.store.jobState(number)
}

// endedJobs returns the ended jobs, or only the given one if number is not 0. The caller holds
// Server.mu.
func (s *Server) endedJobs(number uint32) ([]*control.JobSummary, error) {
	list, err := s.store.summaries(number)
	for _, j := range s.ended {
		if number == 0 || number == j.number {
			list = slices.DeleteFunc(list, func(o *control.JobSummary) bool { return o.Job == j.number })
			list = append(list, j.summary())
		}
	}
	return list, err
}

// missing reports why some of the job's output is missing; empty if none is.
func (j *job) missing() string {
	switch {
	case j.torn && j.failure != nil:
		return j.failure.Error()
	case j.torn:
		return "it was ended"
	case j.spool != nil:
		return j.spool.missing()
	}
	return ""
}

// visible is summary with the phase that users see. The caller holds Server.mu.
func (j *job) visible() *control.JobSummary {
	m := j.summary()
	if j.announced {
		m.Phase, m.EndNs = control.JobPhase_JOB_DONE, time.Now().UnixNano()
	}
	return m
}

// summary is the job as a line of margay ps.
func (j *job) summary() *control.JobSummary {
	m := &control.JobSummary{
		Job: j.number, User: j.spec.User, Command: j.spec.Command, Ranks: uint32(len(j.ranks)), Phase: j.phase,
		StartNs: j.created.UnixNano(), ExitCode: j.exitCode(), Detached: j.spec.Detach, RankStates: j.state().Ranks,
		Uid: j.spec.Uid, FirstFailed: int32(j.first), Stopped: j.stopped() && j.phase == control.JobPhase_JOB_RUNNING, Task: j.spec.Task,
	}
	if j.phase == control.JobPhase_JOB_DONE {
		m.EndNs = time.Now().UnixNano()
	}
	switch {
	case j.failure != nil:
		m.Error = j.failure.Error()
	case j.limit.over:
		m.Error = j.overLimit().Error()
	case j.unsaved != nil:
		m.Error = fmt.Sprintf("its output waits until its state can be recorded: %v", j.unsaved)
	}
	m.Missing, m.Unkept = j.missing(), slices.Clone(j.unkept) // lose sorts it
	m.Allocation, m.Step = j.spec.Allocation, j.spec.Step
	m.Nodes = j.nodes()
	return m
}
