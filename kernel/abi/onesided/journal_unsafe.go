package onesided

import (
	"encoding/binary"
	"fmt"
	"sync/atomic"
	"unsafe"

	"margay/kernel/abi/wire"
)

// JournalSize is the size of the journal of one requester, in bytes.
const JournalSize = 8 * (firstResult + Outstanding)

// Words of a journal.
const (
	wordPair     = 0 // ranks of the pair: source in bits 0 to 31, target in 32 to 63
	wordUsed     = 1 // 1 when the pair is there
	wordDone     = 2
	wordIntent   = 3 // number of the atomic access that was begun last
	wordNoWindow = 4
	wordOutside  = 5
	firstResult  = 6 // results by number of the request
)

// Journal is what a node kernel keeps of the requests of one requester, in memory that outlives it.
// It is not safe for concurrent use.
type Journal struct {
	words []atomic.Uint64
	step  func() // nil but in tests: called between two changes of memory
}

// OpenJournal takes JournalSize bytes, zeroes when they are new.
func OpenJournal(mem []byte) (*Journal, error) {
	if len(mem) != JournalSize {
		return nil, fmt.Errorf("onesided: journal of %d bytes, it has %d", len(mem), JournalSize)
	}
	return &Journal{words: unsafe.Slice((*atomic.Uint64)(unsafe.Pointer(unsafe.SliceData(mem))), JournalSize/8)}, nil
}

// Begin gives a new journal its pair.
func (j *Journal) Begin(p Pair) {
	j.words[wordPair].Store(uint64(p.Source) | uint64(p.Target)<<32)
	j.words[wordUsed].Store(1)
}

// Pair returns the pair of a journal, false if it has none.
func (j *Journal) Pair() (p Pair, ok bool) {
	word := j.words[wordPair].Load()
	return Pair{uint32(word), uint32(word >> 32)}, j.words[wordUsed].Load() == 1
}

// Doubtful reports whether an earlier node kernel was killed in the middle of an atomic access, so
// that it is not known whether the access was made.
func (j *Journal) Doubtful() bool { return j.words[wordIntent].Load() > j.words[wordDone].Load() }

// Carry carries out a request of the pair and appends the answer to b, or nothing if the request is
// too old to be of interest. key is the key of the requester's end. memory returns the memory of a
// window, nil if there is none. changed reports whether an event may have been counted.
func (j *Journal) Carry(b []byte, q *Request, data []byte, key uint64, memory func(window uint8) []byte) (answer []byte, changed bool) {
	done := j.words[wordDone].Load()
	a := Answer{Pair: q.Pair, Key: key}
	switch {
	case q.Number > done+1:
		a.Gap = true
	case q.Number+Outstanding <= done:
		return b, false
	case q.Number == done+1:
		j.carry(q, data, memory(q.Window))
		changed = q.Kind.Atomic()
	}
	a.Done, a.NoWindow, a.Outside = j.words[wordDone].Load(), j.words[wordNoWindow].Load(), j.words[wordOutside].Load()
	if a.Gap || a.status(q.Number) != wire.RemoteOK {
		return a.Append(b, nil), false
	}
	switch {
	case q.Kind == wire.RemoteGet:
		window := memory(q.Window)
		if !q.within(window) {
			return b, changed // the number was another request's: the requester breaks the rules
		}
		a.Number = q.Number
		return a.Append(b, window[q.Offset:][:q.Length]), changed
	case q.Kind.Atomic():
		a.Number = q.Number
		var old [8]byte
		binary.LittleEndian.PutUint64(old[:], j.words[firstResult+q.Number%Outstanding].Load())
		return a.Append(b, old[:]), changed
	}
	return a.Append(b, nil), changed
}

// within reports whether a request is all in a window.
func (q *Request) within(window []byte) bool {
	r := wire.Remote{Kind: q.Kind, Length: q.Length, Offset: q.Offset}
	return r.Within(len(window))
}

// set changes a word.
func (j *Journal) set(word int, value uint64) {
	j.words[word].Store(value)
	j.stepped()
}

func (j *Journal) stepped() {
	if j.step != nil {
		j.step()
	}
}

// carry carries out the next request. A node kernel may be killed between any two changes.
func (j *Journal) carry(q *Request, data, window []byte) {
	var noWindow, outside uint64
	bit := uint64(1) << (q.Number % 64)
	switch {
	case window == nil:
		noWindow = bit
	case !q.within(window):
		outside = bit
	case q.Kind == wire.RemotePut:
		copy(window[q.Offset:], data)
		j.stepped()
	case q.Kind.Atomic():
		j.set(wordIntent, q.Number)
		old := q.Kind.Access((*atomic.Uint64)(unsafe.Pointer(&window[q.Offset])), data)
		j.stepped()
		j.set(firstResult+int(q.Number%Outstanding), old)
	}
	j.set(wordNoWindow, j.words[wordNoWindow].Load()&^bit|noWindow)
	j.set(wordOutside, j.words[wordOutside].Load()&^bit|outside)
	j.set(wordDone, q.Number)
}
