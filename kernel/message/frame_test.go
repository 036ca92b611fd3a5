package message

import (
	"bytes"
	"reflect"
	"slices"
	"testing"

	"margay/kernel/abi/id"
	"margay/kernel/abi/slot"
	"margay/kernel/abi/wire"
)

// frameOf encodes a frame that has been parsed.
func frameOf(f *frame) []byte {
	switch f.kind {
	case kindMessages:
		b := newFrame(f.kind, f.job, f.key, f.number)
		for _, p := range f.packets {
			b = appendPacket(b, p)
		}
		return b
	case kindWindow:
		b := newFrame(f.kind, f.job, f.key)
		for _, g := range f.grants {
			b = appendGrant(b, g)
		}
		return b
	case kindArrived, kindReleased:
		return newFrame(f.kind, f.job, f.key, f.number)
	case kindEnded:
		return newFrame(f.kind, f.job, f.key, uint64(f.rank), f.number)
	}
	return newFrame(f.kind, f.job, f.key)
}

// goodFrames has one frame of each kind, and more.
func goodFrames() map[string]*frame {
	const job, key = 7, 1<<64 - 2
	return map[string]*frame{
		"no messages": {kind: kindMessages, job: job, key: key, number: 1 << 63},
		"messages": {kind: kindMessages, job: job, key: key, number: 3, packets: []packet{
			{source: 1, target: 2, handler: 3, hops: slot.MaxHops, after: 1<<16 - 1, args: [2]uint64{4, 1 << 63}, payload: []byte("payload")},
			{source: 1<<32 - 1, target: 0, handler: 1<<16 - 1, payload: []byte{}},
			{payload: bytes.Repeat([]byte{0xff}, wire.MaxPayload)},
		}},
		"no grants": {kind: kindWindow, job: job, key: key},
		"grants":    {kind: kindWindow, job: job, key: key, grants: []grant{{1, 0, 2}, {1<<32 - 1, slot.MaxHops, 1<<64 - 1}}},
		"arrived":   {kind: kindArrived, job: job, key: key, number: 9},
		"released":  {kind: kindReleased, job: job, key: key, number: 1<<64 - 1},
		"joined":    {kind: kindJoined, job: job, key: key},
		"ended":     {kind: kindEnded, job: job, key: key, rank: 1<<32 - 1, number: 8},
	}
}

func TestFrameRoundTrip(t *testing.T) {
	var got frame // used again, as the engine does
	for name, want := range goodFrames() {
		t.Run(name, func(t *testing.T) {
			got.number, got.rank = 0, 0
			if err := got.parse(frameOf(want)); err != nil {
				t.Fatal(err)
			}
			same := got
			if len(same.packets) == 0 {
				same.packets = nil
			}
			if len(same.grants) == 0 {
				same.grants = nil
			}
			if !reflect.DeepEqual(&same, want) {
				t.Errorf("%+v became %+v", want, same)
			}
		})
	}
}

func TestBadFrames(t *testing.T) {
	message := appendPacket(newFrame(kindMessages, 1, 2, 0), packet{payload: []byte("payload")})
	long := appendPacket(newFrame(kindMessages, 1, 2, 0), packet{payload: make([]byte, wire.MaxPayload+1)})
	for name, b := range map[string][]byte{
		"empty":             nil,
		"half a header":     newFrame(kindJoined, 1, 2)[:15],
		"kind 0":            newFrame(0, 1, 2),
		"kind 7":            newFrame(7, 1, 2),
		"joined and more":   newFrame(kindJoined, 1, 2, 3),
		"arrived nowhere":   newFrame(kindArrived, 1, 2),
		"released twice":    newFrame(kindReleased, 1, 2, 3, 4),
		"ended, who knows":  newFrame(kindEnded, 1, 2, 3),
		"too many hops":     appendPacket(newFrame(kindMessages, 1, 2, 0), packet{hops: slot.MaxHops + 1}),
		"grant of such":     appendGrant(newFrame(kindWindow, 1, 2), grant{1, slot.MaxHops + 1, 2}),
		"half a grant":      newFrame(kindWindow, 1, 2, 3),
		"a grant and half":  newFrame(kindWindow, 1, 2, 3, 4, 5),
		"no number":         newFrame(kindMessages, 1, 2),
		"half a message":    message[:len(message)-len("payload")-1],
		"half a payload":    message[:len(message)-1],
		"too long a load":   long,
		"message and more":  append(slices.Clone(message), 0),
		"message and a bit": append(slices.Clone(message), make([]byte, messageHeader-1)...),
	} {
		t.Run(name, func(t *testing.T) {
			var f frame
			if err := f.parse(b); err == nil {
				t.Errorf("it was taken as %+v", f)
			}
		})
	}
}

// Whatever comes from another node is refused, or is a frame that says the same when it is encoded again. What is made of it
// is no larger than what came.
func FuzzParse(f *testing.F) {
	for _, good := range goodFrames() {
		f.Add(frameOf(good))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		var got, again frame
		if err := got.parse(b); err != nil {
			return
		}
		if len(got.packets)*messageHeader+len(got.grants)*grantSize > len(b) {
			t.Fatalf("%d messages and %d grants of %d bytes", len(got.packets), len(got.grants), len(b))
		}
		encoded := frameOf(&got)
		if len(encoded) != len(b) {
			t.Fatalf("%d bytes became %d", len(b), len(encoded))
		}
		if err := again.parse(encoded); err != nil || !reflect.DeepEqual(got, again) {
			t.Fatalf("%+v became %+v, %v", got, again, err)
		}
	})
}

// A batch is a frame whose number is known at last, and never more than a transport carries.
func TestBatch(t *testing.T) {
	b := newBatch(7, 8)
	for len(b.frame) < maxBatch {
		b.add(packet{source: id.Rank(b.count), payload: make([]byte, wire.MaxPayload)})
	}
	b.number(99)
	var f frame
	if err := f.parse(b.frame); err != nil {
		t.Fatal(err)
	}
	if f.number != 99 || uint64(len(f.packets)) != b.count || f.packets[b.count-1].source != id.Rank(b.count-1) {
		t.Errorf("%d messages from number %d", len(f.packets), f.number)
	}
	if len(b.frame) > cap(newBatch(7, 8).frame) {
		t.Errorf("a batch of %d bytes has grown", len(b.frame))
	}
}
