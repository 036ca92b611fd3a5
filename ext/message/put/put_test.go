package put_test

import (
	"bytes"
	"math/rand/v2"
	"testing"

	"margay/ext/message/messagetest"
	"margay/ext/message/put"
	"margay/kernel/abi/slot"
	"margay/nimble"
	"margay/nimble/engine/portable"
)

// Puts change the memory of the target's node as they change a model of it, and nothing else.
func TestPut(t *testing.T) {
	const size = 1000
	j := messagetest.NewJob(t, portable.New(), put.Object, nimble.Options{
		Variables: map[string]any{put.Handler: uint32(5), put.Size: uint64(size)},
	}, 1, messagetest.Ranks(4, 2)...)
	model := [2][]byte{make([]byte, put.Block), make([]byte, put.Block)}
	random := rand.New(rand.NewPCG(1, 2))
	for range 100 {
		source, target := random.IntN(4), random.IntN(4)
		offset, data := random.Uint64N(size+100), bytes.Repeat([]byte{byte(random.Uint32())}, random.IntN(slot.MaxMessage))
		if random.IntN(10) == 0 {
			offset = -random.Uint64N(2000)
		}
		j.Send(source, target, 5, [2]uint64{offset, put.Answer}, data)
		j.Run()
		written := 0
		if offset <= size && offset+uint64(len(data)) <= size {
			written = copy(model[target/2][offset:], data)
		}
		if got := j.Took(source); len(got) != 1 || got[0].Handler != 6 || got[0].Args != [2]uint64{offset, uint64(written)} || !got[0].Extension {
			t.Fatalf("%d bytes at %d: %+v", len(data), offset, got)
		}
		if !bytes.Equal(j.Nodes[target/2].Map(put.Memory).Memory().Bytes()[:put.Block], model[target/2]) {
			t.Fatalf("%d bytes at %d: the memory is another one", len(data), offset)
		}
	}
	j.Send(0, 2, 5, [2]uint64{0, 0}, []byte("quiet"))
	j.Run()
	if len(j.Delivered) != 0 {
		t.Errorf("an answer that nobody wants: %+v", j.Delivered)
	}
}

// A message that names a rank becomes a put into its window.
func TestPutElsewhere(t *testing.T) {
	j := messagetest.NewJob(t, portable.New(), put.Object, nimble.Options{Variables: map[string]any{put.Window: uint32(3)}}, 1, 0, 1, 2)
	j.Send(0, 1, 0, [2]uint64{77, put.Other | 2}, []byte("far"))
	j.Run()
	if len(j.Puts) != 1 || j.Puts[0].Put != (slot.Put{Rank: 2, Window: 3, Offset: 77}) || string(j.Puts[0].Data) != "far" || len(j.Delivered) != 0 {
		t.Errorf("%+v, delivered %+v", j.Puts, j.Delivered)
	}
}
