package share

import (
	"encoding/binary"
	"math/rand/v2"
	"slices"
	"syscall"
	"testing"
	"time"

	"margay/internal/check"
	"margay/kernel/abi/fuse"
)

// block is the piece of a file that has a version: the number of the write that it is from.
const (
	block      = 4096
	fileBlocks = 128
)

// linux is a node whose ranks use a few files of a shared folder, a relay and margay run, and a
// stream between the two that breaks at random. Writes fail at random. As in Linux, a file has one
// write at a time.
type linux struct {
	t        *testing.T
	random   *rand.Rand
	now      time.Time
	queue    *Queue
	answers  *Answers
	up, down []Frame
	open     bool
	working  []Frame
	sending  []Frame
	last     uint64                // unique number, and version
	asked    map[uint64]*operation // by unique number: not answered
	files    [3]*played            // by inode
	gone     bool                  // the relay has given up
	failing  map[uint64]uint64     // handles of writes behind that have failed, by number
	failed   map[uint64]bool       // by handle: the relay knows that
}

// played is a file here and for its ranks.
type played struct {
	taken   [fileBlocks]uint64 // versions that ranks take for written
	stored  [fileBlocks]uint64 // versions that are in the file here
	lost    map[uint64]bool    // versions whose write has failed here
	writing bool               // a rank is in a write
	handles [2]uint64
	offset  [2]int          // of the next write, in blocks
	owed    map[uint64]bool // by handle: an error that no request has reported
	reports int             // errors that requests have reported here, less those that ranks have got
}

// operation is a request that Linux waits for.
type operation struct {
	opcode        fuse.Opcode
	file          *played
	handle        uint64
	offset, count int
	taken         [fileBlocks]uint64 // when it was asked for
}

func newLinux(t *testing.T, seed, history uint64) *linux {
	l := &linux{t: t, random: rand.New(rand.NewPCG(seed, history)), now: time.Unix(1, 0), answers: NewAnswers(MinWindow), asked: make(map[uint64]*operation),
		failing: make(map[uint64]uint64), failed: make(map[uint64]bool)}
	l.queue = NewQueue(patience, l.now)
	for i := range l.files {
		l.files[i] = &played{lost: make(map[uint64]bool), owed: make(map[uint64]bool)}
		for h := range l.files[i].handles {
			l.files[i].handles[h] = uint64(10*i + h)
		}
	}
	return l
}

// step does one thing at random. Ranks begin nothing when the history is to end.
func (l *linux) step(more bool) {
	switch l.random.IntN(12) {
	case 0, 1, 2, 3:
		if more {
			l.ask()
		}
	case 4:
		if l.open && l.random.IntN(8) == 0 {
			l.open, l.up, l.down = false, nil, nil
			l.queue.Disconnected(l.now)
		}
	case 5:
		if !l.open && l.random.IntN(2) == 0 {
			l.open = true
			l.send(l.queue.Connected(MinWindow))
		}
	case 6, 7:
		l.receive()
	case 8:
		if len(l.working) > 0 {
			i := l.random.IntN(len(l.working))
			f := l.working[i]
			l.working = slices.Delete(l.working, i, i+1)
			answer := l.carryOut(f)
			l.answers.Executed(f, answer)
			if l.open {
				l.down = append(l.down, Frame{Kind: Answer, Number: f.Number, Body: answer})
			}
			l.sending = append(l.sending, f)
		}
	case 9:
		if len(l.sending) > 0 {
			l.answers.Sent(l.sending[0])
			l.sending = l.sending[1:]
		}
	case 10:
		if len(l.down) > 0 {
			f := l.down[0]
			l.down = l.down[1:]
			p, todo := l.queue.Answered(f.Number, f.Body)
			if handle, ok := l.failing[f.Number]; ok {
				l.failed[handle] = true
			}
			l.do(todo)
			if p != nil {
				l.answered(f.Body)
			}
		}
	case 11:
		l.now = l.now.Add(time.Duration(l.random.Int64N(int64(patience) / 40)))
		if more && l.random.IntN(400) == 0 {
			l.now = l.now.Add(patience)
		}
		todo := l.queue.Expire(l.now)
		l.gone = l.queue.Lost()
		l.do(todo)
	}
	if l.queue.unwritten > l.queue.window/2 {
		l.t.Fatalf("%d bytes are taken for written and are not", l.queue.unwritten)
	}
	if l.queue.used > l.queue.window {
		l.t.Fatalf("%d bytes are under way", l.queue.used)
	}
}

// ask lets a rank make a request, if there is room.
func (l *linux) ask() {
	inode := l.random.IntN(len(l.files))
	f := l.files[inode]
	n := l.random.IntN(2)
	op := &operation{file: f, handle: f.handles[n], taken: f.taken}
	opcodes := []fuse.Opcode{fuse.Read, fuse.GetAttr, fuse.FSync, fuse.Flush, fuse.Lookup, fuse.Release, fuse.StatFS}
	op.opcode = fuse.Write
	if l.random.IntN(3) == 0 {
		op.opcode = opcodes[l.random.IntN(len(opcodes))]
	}
	var arguments []uint64
	var data []byte
	switch op.opcode {
	case fuse.Write:
		if f.writing {
			return
		}
		op.count = 1 + l.random.IntN(8)
		if l.random.IntN(20) == 0 {
			op.count = fuse.MaxData / block
		}
		if l.random.IntN(10) == 0 {
			f.offset[n] = l.random.IntN(fileBlocks)
		}
		if op.offset = f.offset[n]; op.offset+op.count > fileBlocks {
			op.offset = 0
		}
		flags := uint64(syscall.O_WRONLY)
		if l.random.IntN(10) == 0 {
			flags |= syscall.O_DSYNC
		}
		data = make([]byte, op.count*block)
		for i := range op.count {
			binary.LittleEndian.PutUint64(data[i*block:], l.last+1)
		}
		arguments = []uint64{op.handle, uint64(op.offset) * block, uint64(len(data)), 0, flags}
	case fuse.Release:
		if len(l.asked) > 0 { // Linux uses the handle
			return
		}
		arguments = []uint64{op.handle, 0, 0}
	default:
		arguments = []uint64{op.handle, 0, 0}
	}
	b := make([]byte, fuse.HeaderSize)
	binary.LittleEndian.PutUint32(b[4:], uint32(op.opcode))
	binary.LittleEndian.PutUint64(b[8:], l.last+1)
	binary.LittleEndian.PutUint64(b[16:], uint64(inode))
	for _, a := range arguments {
		b = binary.LittleEndian.AppendUint64(b, a)
	}
	body := fuse.Finish(append(b, data...))
	if !l.queue.Room(body) {
		return
	}
	switch op.opcode {
	case fuse.Write:
		f.offset[n] = op.offset + op.count
		f.writing = true
	case fuse.Release:
		f.handles[n] += 100 // and it is opened again
	}
	l.last++
	l.asked[l.last] = op
	todo := l.queue.Take(0, body)
	if op.opcode == fuse.Write && l.failed[op.handle] && !l.gone && len(todo.Replies) > 0 {
		l.t.Fatal("a write is answered ahead after another one has failed")
	}
	l.do(todo)
}

func (l *linux) do(todo Todo) {
	l.send(todo.Send)
	for _, r := range todo.Replies {
		l.answered(r.Body)
	}
}

func (l *linux) send(list []*Pending) {
	for _, p := range list {
		for f, ok := l.queue.Frame(p); ok && l.open; ok = ok && l.random.IntN(8) == 0 { // at times twice
			f.Body = slices.Clone(f.Body)
			l.up = append(l.up, f)
		}
	}
}

// receive lets margay run take a frame.
func (l *linux) receive() {
	if len(l.up) == 0 || !l.answers.Room(l.up[0]) {
		return
	}
	f := l.up[0]
	l.up = l.up[1:]
	do, answer, err := l.answers.Request(f)
	switch {
	case err != nil:
		l.t.Fatalf("an honest request is refused: %v", err)
	case do:
		l.working = append(l.working, f)
	case answer != nil:
		l.down = append(l.down, Frame{Kind: Answer, Number: f.Number, Body: answer})
	}
}

// carryOut does what margay run does. Only what the queue has joined it reads from the request.
func (l *linux) carryOut(frame Frame) []byte {
	h, err := fuse.ReadHeader(frame.Body)
	if err != nil {
		l.t.Fatal(err)
	}
	if h.Opcode == fuse.Write {
		return l.write(frame)
	}
	op := l.asked[h.Unique]
	if op == nil { // its answer was lost, or the relay has given up
		return fuse.Finish(fuse.NewAnswer(h.Unique, 0))
	}
	f := op.file
	if h.Opcode.Reach() == fuse.ReachFile {
		l.current(op, f)
	}
	if h.Opcode == fuse.Lookup {
		l.current(op, f)
	}
	if (h.Opcode == fuse.Flush || h.Opcode == fuse.FSync) && f.owed[op.handle] {
		return l.report(f, op.handle, h.Unique)
	}
	return fuse.Finish(fuse.NewAnswer(h.Unique, 0))
}

// current looks whether a request finds all that ranks had written when they asked for it.
func (l *linux) current(op *operation, f *played) {
	for i, version := range op.taken {
		if f.stored[i] < version && !f.lost[version] {
			l.t.Fatalf("%v finds block %d of write %d, write %d has returned before", op.opcode, i, f.stored[i], version)
		}
	}
}

func (l *linux) write(frame Frame) []byte {
	r, err := fuse.Parse(frame.Body)
	if err != nil {
		l.t.Fatalf("a write is malformed: %v", err)
	}
	f := l.files[r.Node]
	if !r.Behind && f.owed[r.Handle] {
		l.fail(f, r)
		return l.report(f, r.Handle, r.Unique)
	}
	if l.random.IntN(20) == 0 {
		l.fail(f, r)
		if r.Behind {
			f.owed[r.Handle] = true
			l.failing[frame.Number] = r.Handle
		}
		return fuse.Failed(r.Unique, syscall.EDQUOT)
	}
	for i := range len(r.Data) / block {
		version := binary.LittleEndian.Uint64(r.Data[i*block:])
		at := int(r.Offset)/block + i
		if f.stored[at] > version {
			l.t.Fatalf("block %d of write %d is written over write %d", at, version, f.stored[at])
		}
		f.stored[at] = version
	}
	return fuse.Finish(fuse.AppendWritten(fuse.NewAnswer(r.Unique, 8), len(r.Data)))
}

// report lets a request report the error of a write behind.
func (l *linux) report(f *played, handle, unique uint64) []byte {
	f.owed[handle] = false
	f.reports++
	return fuse.Failed(unique, syscall.ENOSPC)
}

func (l *linux) fail(f *played, r fuse.Request) {
	for i := range len(r.Data) / block {
		f.lost[binary.LittleEndian.Uint64(r.Data[i*block:])] = true
	}
}

// answered notes that Linux has an answer.
func (l *linux) answered(answer []byte) {
	unique, errno := binary.LittleEndian.Uint64(answer[8:]), syscall.Errno(-int32(binary.LittleEndian.Uint32(answer[4:])))
	op := l.asked[unique]
	if op == nil || !fuse.Valid(answer, unique) {
		l.t.Fatalf("request %d is answered twice, or with %x", unique, answer)
	}
	delete(l.asked, unique)
	f := op.file
	if errno == syscall.ENOSPC {
		f.reports--
	}
	if op.opcode != fuse.Write {
		return
	}
	f.writing = false
	for i := range op.count {
		if errno == 0 {
			f.taken[op.offset+i] = unique
		}
	}
}

// TestQueue plays random histories of ranks that write and read. Data of writes that have returned
// are found, errors are reported, each request gets one answer, and no write is carried out over a
// later one.
func TestQueue(t *testing.T) {
	seed := check.Seed(t)
	for history := range histories() / 2 {
		l := newLinux(t, seed, uint64(history))
		for range 600 {
			l.step(true)
		}
		for range 1000000 {
			if len(l.asked)+len(l.working)+len(l.sending)+len(l.queue.writes) == 0 {
				break
			}
			l.step(false)
		}
		if len(l.asked)+len(l.queue.writes)+len(l.queue.waiting)+len(l.queue.late) > 0 {
			t.Fatalf("history %d: %d requests have no answer, %d writes were not carried out", history, len(l.asked), len(l.queue.writes))
		}
		if l.queue.used != 0 || l.queue.unwritten != 0 || l.answers.used != 0 {
			t.Errorf("history %d: %d, %d and %d bytes are still counted", history, l.queue.used, l.queue.unwritten, l.answers.used)
		}
		for _, f := range l.files {
			if f.reports != 0 && !l.gone {
				t.Errorf("history %d: the error of a write is reported, and %d ranks have not got it", history, f.reports)
			}
		}
	}
}
