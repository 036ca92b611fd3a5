package get_test

import (
	"math/rand/v2"
	"testing"

	"margay/ext/message/get"
	"margay/ext/message/messagetest"
	"margay/kernel/abi/slot"
	"margay/nimble"
	"margay/nimble/engine/portable"
)

// Answers have the bytes of the target's node, as a model of its memory has them, and the token of
// the request.
func TestGet(t *testing.T) {
	const blocks = 4
	j := messagetest.NewJob(t, portable.New(), get.Object, nimble.Options{
		Variables: map[string]any{get.Handler: uint32(5), get.Size: uint64(blocks*get.Block - 10)},
		Maps:      map[string]nimble.MapOptions{get.Memory: {Entries: blocks}},
	}, 1, messagetest.Ranks(4, 2)...)
	random := rand.New(rand.NewPCG(1, 2))
	for _, x := range j.Nodes {
		for i := range x.Map(get.Memory).Memory().Bytes() {
			x.Map(get.Memory).Memory().Bytes()[i] = byte(random.Uint32())
		}
	}
	for i := range 300 {
		source, target := random.IntN(4), random.IntN(4)
		offset, length := random.Uint64N(blocks*get.Block+100), random.Uint64N(get.Block+100)
		if i%10 == 0 {
			offset = -random.Uint64N(2000)
		}
		token := uint64(i) << 16
		j.Send(source, target, 5, [2]uint64{offset, token | length}, nil)
		j.Run()
		got := j.Took(source)
		var want []byte
		if offset <= blocks*get.Block-10 && length <= get.Block && offset+length <= blocks*get.Block-10 {
			want = j.Nodes[target/2].Map(get.Memory).Memory().Bytes()[offset:][:length]
		}
		if len(got) != 1 || !got[0].Extension || got[0].Source != target || got[0].Handler != 6 ||
			got[0].Args != [2]uint64{offset, token | uint64(len(want))} || string(got[0].Payload) != string(want) {
			t.Fatalf("offset %d, length %d: %+v", offset, length, got)
		}
	}
}

// Without room for the answer the rank gets the request, and other messages come as they are.
func TestFull(t *testing.T) {
	j := messagetest.NewJob(t, portable.New(), get.Object, nimble.Options{}, 1, 0, 1)
	j.Full = func(rank uint32) bool { return rank == 0 }
	j.Send(0, 1, 0, [2]uint64{0, 8}, nil)
	j.Send(0, 1, 3, [2]uint64{}, nil)
	j.Run()
	if got := j.Took(1); len(got) != 2 || got[0].Extension || got[1].Extension || j.Refused != 1 {
		t.Errorf("%+v, %d refused", got, j.Refused)
	}
	if v := messagetest.Insert(t, portable.New(), get.Object, nimble.Options{}).Ask(&slot.MessageContext{}); v != slot.Deliver {
		t.Errorf("where it cannot send: verdict %d", v)
	}
}
