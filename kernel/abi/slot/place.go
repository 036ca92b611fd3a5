package slot

import "encoding/binary"

// PlaceContext is what an extension in slot place gets about a candidate, a node that can take a
// part of a job: struct margay_place.
type PlaceContext struct {
	Node       uint32 // number of the candidate
	Index      uint32 // its place among the candidates, from 0
	Candidates uint32 // number of candidates
	Cores      uint32 // its application cores; for a step, the cores of its allocation
	Free       uint32 // cores of these that the job can get
	Room       uint32 // ranks of the job that it has room for, at least 1
	Turn       uint32 // in and out: ranks that it takes at its turn, at least 1; Room when it comes in
	Ranks      uint32 // of the job
	Each       uint32 // cores of each rank; 0: one, which ranks may share
	User       uint32 // number of the job's user
	Memory     uint64 // bytes for jobs
	FreeMemory uint64 // bytes, as the node has last reported
}

// PlaceSize is the size of PlaceContext, in bytes.
const PlaceSize = 56

// placeTurn is the offset of Turn.
const placeTurn = 24

// Put writes the context to b, which has PlaceSize bytes.
func (c *PlaceContext) Put(b []byte) {
	_ = b[PlaceSize-1]
	words := [...]uint32{c.Node, c.Index, c.Candidates, c.Cores, c.Free, c.Room, c.Turn, c.Ranks, c.Each, c.User}
	for i, word := range words {
		binary.LittleEndian.PutUint32(b[4*i:], word)
	}
	binary.LittleEndian.PutUint64(b[40:], c.Memory)
	binary.LittleEndian.PutUint64(b[48:], c.FreeMemory)
}

// PlaceTurn reads Turn from the bytes of a PlaceContext.
func PlaceTurn(b []byte) uint32 { return binary.LittleEndian.Uint32(b[placeTurn:]) }

// Scores is the number of scores that a candidate can have. The lowest is the best.
const Scores = 1 << 20

// Unscored is the verdict of an extension that leaves the job to the next one, finally to the
// allocator.
const Unscored Verdict = Scores
