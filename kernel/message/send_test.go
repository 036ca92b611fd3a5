package message

import (
	"testing"

	"margay/kernel/abi/frame"
	"margay/kernel/abi/id"
	"margay/kernel/abi/wire"
	"margay/kernel/fabric"
)

// A batch for another node is a frame whose number is set last, and no longer than a transport
// carries. A batch for the node itself has the same messages, unchanged by later ones.
func TestBatch(t *testing.T) {
	j := &Job{config: JobConfig{Job: 7}, key: 8, self: 0, place: []int{0, 1}}
	for target := range id.Rank(2) {
		bs := make(batches, 2)
		b := bs.of(j, target)
		room := cap(b.frame) + cap(b.payloads)
		payload := make([]byte, wire.MaxPayload)
		for !b.full() {
			payload[0] = byte(b.count)
			b.add(&frame.Message{Source: id.Rank(b.count), Target: target, Payload: payload})
		}
		if bs.of(j, target) != b || cap(b.frame)+cap(b.payloads) != room {
			t.Errorf("a batch of %d bytes has grown", b.size)
		}
		f := frame.Frame{Number: 99, Messages: b.own}
		if target == 1 {
			frame.Number(b.frame, 99)
			if err := f.Parse(b.frame); err != nil || len(b.frame) > fabric.MaxFrame {
				t.Fatalf("a frame of %d bytes: %v", len(b.frame), err)
			}
		}
		if f.Number != 99 || uint64(len(f.Messages)) != b.count {
			t.Errorf("%d messages from number %d", len(f.Messages), f.Number)
		}
		for i, m := range f.Messages {
			if m.Source != id.Rank(i) || len(m.Payload) != wire.MaxPayload || m.Payload[0] != byte(i) {
				t.Errorf("message %d is from rank %d with %d bytes", i, m.Source, len(m.Payload))
			}
		}
	}
}
