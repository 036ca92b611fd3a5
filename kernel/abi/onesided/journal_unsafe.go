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
	wordServer   = 0 // the Server that carries out a request; 0: none does
	wordDone     = 1
	wordIntent   = 2 // number of the atomic access that was begun last
	wordNoWindow = 3
	wordOutside  = 4
	firstResult  = 5 // results by number of the request
)

// Server is one of the two that carry out the requests of a journal.
type Server uint64

// The servers.
const (
	ByKernel Server = 1 // the node kernel
	ByRank   Server = 2 // the rank of the window
)

// Journal is the state of the requests of one requester, in memory that both servers map and that
// outlives the node kernel. Carry is safe for concurrent use; each server has a Journal of its own.
type Journal struct {
	server Server
	words  []atomic.Uint64
	step   func() // nil but in tests: called between two changes of memory
}

// OpenJournal takes JournalSize bytes, zeroes when they are new, for a server.
func OpenJournal(mem []byte, server Server) (*Journal, error) {
	if len(mem) != JournalSize {
		return nil, fmt.Errorf("onesided: journal of %d bytes, it has %d", len(mem), JournalSize)
	}
	return &Journal{server: server, words: unsafe.Slice((*atomic.Uint64)(unsafe.Pointer(unsafe.SliceData(mem))), JournalSize/8)}, nil
}

// TakeUp continues the journal of an earlier node kernel. It reports false if that was killed in
// the middle of an atomic access, so that it is not known whether the access was made.
func (j *Journal) TakeUp() bool { return j.takeFrom(ByKernel) }

// Abandon takes the journal from a rank that has ended, perhaps in the middle of a request: nothing
// of that rank runs any more. It reports false if that request was an atomic access, so that it is
// not known whether the access was made. The node kernel may carry out a request at this moment.
func (j *Journal) Abandon() bool { return j.takeFrom(ByRank) }

// takeFrom takes the journal from a server that has ended, if it has it.
func (j *Journal) takeFrom(server Server) bool {
	switch {
	case j.words[wordServer].Load() != uint64(server):
		return true
	case j.words[wordIntent].Load() > j.words[wordDone].Load():
		return false
	}
	return j.words[wordServer].CompareAndSwap(uint64(server), 0)
}

// Carry carries out a request of the pair and appends the answer to b, or nothing if the request is
// too old to be of interest. While another call carries one out it does nothing, and the answer
// makes the requester ask once more. key is the key of the requester's end. memory returns the
// memory of a window, nil if there is none. changed reports whether an event may have been counted.
func (j *Journal) Carry(b []byte, q *Request, data []byte, key uint64, memory func(window uint8) []byte) (answer []byte, changed bool) {
	if !j.words[wordServer].CompareAndSwap(0, uint64(j.server)) {
		a := Answer{Gap: true, Pair: q.Pair, Key: key, Done: j.words[wordDone].Load()}
		a.NoWindow, a.Outside = j.words[wordNoWindow].Load(), j.words[wordOutside].Load()
		return a.Append(b, nil), false
	}
	answer, changed = j.answer(b, q, data, key, memory)
	j.words[wordServer].Store(0)
	return answer, changed
}

// answer is Carry for the server that the journal names.
func (j *Journal) answer(b []byte, q *Request, data []byte, key uint64, memory func(window uint8) []byte) (answer []byte, changed bool) {
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
