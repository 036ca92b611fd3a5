package allreduce_test

import (
	"encoding/binary"
	"math/rand/v2"
	"testing"

	"margay/ext/message/allreduce"
	"margay/ext/message/messagetest"
	"margay/internal/check"
	"margay/nimble"
	"margay/nimble/engine/portable"
)

func newJob(t testing.TB, seed uint64, place ...int) *messagetest.Job {
	t.Helper()
	return messagetest.NewJob(t, portable.New(), allreduce.Object, nimble.Options{Variables: map[string]any{allreduce.Handler: uint32(5)}}, seed, place...)
}

// operations are the operations, as a model has them.
var operations = map[uint64]func(a, b uint64) uint64{
	allreduce.Sum: func(a, b uint64) uint64 { return a + b },
	allreduce.Min: func(a, b uint64) uint64 { return min(a, b) },
	allreduce.Max: func(a, b uint64) uint64 { return max(a, b) },
	allreduce.And: func(a, b uint64) uint64 { return a & b },
	allreduce.Or:  func(a, b uint64) uint64 { return a | b },
	allreduce.Xor: func(a, b uint64) uint64 { return a ^ b },
}

func encode(v []uint64) []byte {
	b, _ := binary.Append(nil, binary.LittleEndian, v)
	return b
}

// Calls of any operation, several of each rank under way at once, in any order of messages, give
// the results of a model, each once to each rank.
func TestModel(t *testing.T) {
	seed := check.Seed(t)
	for name, place := range map[string][]int{
		"one rank": {0}, "one node": messagetest.Ranks(5, 5), "two levels": messagetest.Ranks(12, 1), "three levels": messagetest.Ranks(80, 1),
		"wide": messagetest.Ranks(120, 60), "scattered": {0, 2, 1, 0, 2, 2, 1},
	} {
		t.Run(name, func(t *testing.T) {
			random := rand.New(rand.NewPCG(seed, 1))
			j := newJob(t, seed, place...)
			for round := range uint64(3) {
				calls := random.Uint64N(allreduce.MaxCalls) + 1
				want := make([]string, calls)
				kind := make([]uint64, calls)
				for call := range calls {
					operation, n := random.Uint64N(6)+1, random.IntN(allreduce.MaxValues+1)
					var result []uint64
					for _, rank := range random.Perm(len(place)) {
						v := make([]uint64, n)
						for i := range v {
							v[i] = random.Uint64() >> random.IntN(64)
							if result != nil {
								result[i] = operations[operation](result[i], v[i])
							}
						}
						if result == nil {
							result = append([]uint64{}, v...)
						}
						j.Send(rank, rank, 5, [2]uint64{round*allreduce.MaxCalls + call, operation}, encode(v))
					}
					want[call], kind[call] = string(encode(result)), operation
				}
				j.Run()
				for rank := range place {
					got := j.Took(rank)
					if len(got) != int(calls) {
						t.Fatalf("rank %d has %d results of %d calls", rank, len(got), calls)
					}
					seen := make(map[uint64]bool)
					for _, m := range got {
						call := m.Args[0] - round*allreduce.MaxCalls
						if call >= calls || seen[call] || m.Handler != 7 || !m.Extension || m.Args[1] != kind[call] || string(m.Payload) != want[call] {
							t.Fatalf("rank %d: %+v", rank, m)
						}
						seen[call] = true
					}
				}
			}
			if len(j.Dropped)+j.Refused != 0 {
				t.Errorf("%d dropped, %d refused", len(j.Dropped), j.Refused)
			}
		})
	}
}

// No rank is woken before all have contributed.
func TestNoneBeforeAll(t *testing.T) {
	j := newJob(t, 1, messagetest.Ranks(20, 2)...)
	for rank := range 19 {
		j.Send(rank, rank, 5, [2]uint64{0, allreduce.Sum}, encode([]uint64{1}))
	}
	j.Run()
	if len(j.Delivered) != 0 {
		t.Fatalf("without rank 19: %+v", j.Delivered)
	}
	j.Send(19, 19, 5, [2]uint64{0, allreduce.Sum}, encode([]uint64{1}))
	j.Run()
	if len(j.Delivered) != 20 || binary.LittleEndian.Uint64(j.Delivered[7].Payload) != 20 {
		t.Errorf("%+v", j.Delivered)
	}
}

// Messages that make no sense are dropped, and harm no call.
func TestNonsense(t *testing.T) {
	j := newJob(t, 1, messagetest.Ranks(4, 2)...)
	part := encode([]uint64{1})
	j.Send(1, 1, 5, [2]uint64{3, allreduce.Sum}, part)
	j.Run()
	for _, m := range []messagetest.Message{
		{Source: 0, Target: 1, Handler: 5, Args: [2]uint64{3, allreduce.Sum}, Payload: part},            // for another rank
		{Source: 2, Target: 0, Handler: 6, Args: [2]uint64{3, allreduce.Sum}, Payload: part},            // for a node
		{Source: 2, Target: 2, Handler: 7, Args: [2]uint64{3, allreduce.Sum}, Payload: part},            // a result
		{Handler: 5, Args: [2]uint64{3, 0}, Payload: part},                                              // no operation
		{Handler: 5, Args: [2]uint64{3, 7}, Payload: part},                                              // the same
		{Handler: 5, Args: [2]uint64{3, allreduce.Sum}, Payload: part[:7]},                              // no whole number
		{Handler: 5, Args: [2]uint64{3, allreduce.Sum}, Payload: make([]byte, 8*allreduce.MaxValues+8)}, // too many
		{Handler: 5, Args: [2]uint64{3 + allreduce.MaxCalls, allreduce.Sum}, Payload: part},             // too many calls
	} {
		j.Send(m.Source, m.Target, m.Handler, m.Args, m.Payload)
		j.Run()
	}
	if len(j.Dropped) != 8 || len(j.Delivered) != 0 {
		t.Fatalf("%d dropped, delivered %+v", len(j.Dropped), j.Delivered)
	}
	for _, rank := range []int{0, 2, 3} {
		j.Send(rank, rank, 5, [2]uint64{3, allreduce.Sum}, part)
	}
	j.Run()
	if len(j.Delivered) != 4 || binary.LittleEndian.Uint64(j.Delivered[0].Payload) != 4 {
		t.Errorf("%+v", j.Delivered)
	}
}
