package frame

import (
	"bytes"
	"reflect"
	"slices"
	"testing"

	"margay/kernel/abi/slot"
	"margay/kernel/abi/wire"
)

// frameOf encodes a frame that has been parsed.
func frameOf(f *Frame) []byte {
	switch f.Kind {
	case Messages:
		b := New(f.Kind, f.Job, f.Key, f.Number)
		for _, p := range f.Messages {
			b = AppendMessage(b, &p)
		}
		return b
	case Credits:
		b := New(f.Kind, f.Job, f.Key)
		for _, g := range f.Credits {
			b = AppendCredit(b, g)
		}
		return b
	case Arrived, Released, Acknowledged, Path, PathSeen, Settle, Settled:
		return New(f.Kind, f.Job, f.Key, f.Number)
	case Meet:
		return AppendMeeting(New(f.Kind, f.Job, f.Key), f.Meeting)
	case Last:
		return New(f.Kind, f.Job, f.Key, uint64(f.Rank)|uint64(f.Other)<<32, f.Number)
	case Ended:
		return New(f.Kind, f.Job, f.Key, uint64(f.Rank), f.Number, f.Bound)
	}
	return append(New(f.Kind, f.Job, f.Key), f.Data...)
}

// goodFrames has one frame of each kind, and more.
func goodFrames() map[string]*Frame {
	const job, key = 7, 1<<64 - 2
	return map[string]*Frame{
		"no messages": {Kind: Messages, Job: job, Key: key, Number: 1 << 63},
		"messages": {Kind: Messages, Job: job, Key: key, Number: 3, Messages: []Message{
			{Source: 1, Target: 2, Handler: 3, After: 1<<16 - 1, Args: [2]uint64{4, 1 << 63}, Payload: []byte("payload")},
			{Source: 1, Hops: 1, Payload: []byte{}},
			{Source: 1, Target: 2, Hops: slot.MaxHops, Extension: true, Used: slot.MaxCaused, Payload: []byte("more")},
			{Source: 1<<32 - 1, Target: 0, Handler: 1<<16 - 1, Payload: []byte{}},
			{Payload: bytes.Repeat([]byte{0xff}, wire.MaxPayload)},
		}},
		"no grants":    {Kind: Credits, Job: job, Key: key},
		"grants":       {Kind: Credits, Job: job, Key: key, Credits: []Credit{{1, 0, 2}, {1<<32 - 1, slot.MaxHops, 1<<64 - 1}}},
		"arrived":      {Kind: Arrived, Job: job, Key: key, Number: 9},
		"released":     {Kind: Released, Job: job, Key: key, Number: 1<<64 - 1},
		"acknowledged": {Kind: Acknowledged, Job: job, Key: key, Number: 1},
		"joined":       {Kind: Joined, Job: job, Key: key},
		"meeting":      {Kind: Meet, Job: job, Key: key, Meeting: Meeting{1, 1<<32 - 1, 3, 1<<64 - 4, 5, true, 1<<16 - 1}},
		"path":         {Kind: Path, Job: job, Key: key, Number: 3},
		"path seen":    {Kind: PathSeen, Job: job, Key: key, Number: 3},
		"settle":       {Kind: Settle, Job: job, Key: key, Number: 3},
		"settled":      {Kind: Settled, Job: job, Key: key, Number: 3},
		"ended":        {Kind: Ended, Job: job, Key: key, Rank: 1<<32 - 1, Number: 8, Bound: 1<<64 - 1},
		"exchange":     {Kind: Exchange, Job: job, Key: key, Data: []byte("text")},
		"last":         {Kind: Last, Job: job, Key: key, Rank: 1<<32 - 1, Other: 2, Number: 1<<64 - 8},
	}
}

func TestFrameRoundTrip(t *testing.T) {
	var got Frame // used again, as the engine does
	for name, want := range goodFrames() {
		t.Run(name, func(t *testing.T) {
			got.Number, got.Rank, got.Other, got.Bound, got.Meeting, got.Data = 0, 0, 0, 0, Meeting{}, nil
			if err := got.Parse(frameOf(want)); err != nil {
				t.Fatal(err)
			}
			same := got
			if len(same.Messages) == 0 {
				same.Messages = nil
			}
			if len(same.Credits) == 0 {
				same.Credits = nil
			}
			if !reflect.DeepEqual(&same, want) {
				t.Errorf("%+v became %+v", want, same)
			}
		})
	}
}

func TestBadFrames(t *testing.T) {
	message := AppendMessage(New(Messages, 1, 2, 0), &Message{Payload: []byte("payload")})
	long := AppendMessage(New(Messages, 1, 2, 0), &Message{Payload: make([]byte, wire.MaxPayload+1)})
	for name, b := range map[string][]byte{
		"empty":             nil,
		"half a header":     New(Joined, 1, 2)[:15],
		"kind 0":            New(0, 1, 2),
		"acknowledged none": New(7, 1, 2),
		"kind 8":            New(8, 1, 2, 3),
		"joined and more":   New(Joined, 1, 2, 3),
		"arrived nowhere":   New(Arrived, 1, 2),
		"released twice":    New(Released, 1, 2, 3, 4),
		"ended, who knows":  New(Ended, 1, 2, 3, 4),
		"last, who knows":   New(Last, 1, 2, 3),
		"too many hops":     AppendMessage(New(Messages, 1, 2, 0), &Message{Hops: slot.MaxHops + 1}),
		"nothing to cause":  AppendMessage(New(Messages, 1, 2, 0), &Message{Hops: 1, Used: slot.MaxCaused + 1}),
		"of an extension":   AppendMessage(New(Messages, 1, 2, 0), &Message{Extension: true}),
		"grant of such":     AppendCredit(New(Credits, 1, 2), Credit{1, slot.MaxHops + 1, 2}),
		"half a grant":      New(Credits, 1, 2, 3),
		"a grant and half":  New(Credits, 1, 2, 3, 4, 5),
		"no number":         New(Messages, 1, 2),
		"half a message":    message[:len(message)-len("payload")-1],
		"half a payload":    message[:len(message)-1],
		"too long a load":   long,
		"message and more":  append(slices.Clone(message), 0),
		"message and a bit": append(slices.Clone(message), make([]byte, MessageHeader-1)...),
	} {
		t.Run(name, func(t *testing.T) {
			var f Frame
			if err := f.Parse(b); err == nil {
				t.Errorf("it was taken as %+v", f)
			}
		})
	}
}

// Any input is refused, or is a frame that is the same when it is encoded again, and the result is
// no larger than the input.
func FuzzParse(f *testing.F) {
	for _, good := range goodFrames() {
		f.Add(frameOf(good))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		var got, again Frame
		if err := got.Parse(b); err != nil {
			return
		}
		if len(got.Messages)*MessageHeader+len(got.Credits)*CreditSize > len(b) {
			t.Fatalf("%d messages and %d grants of %d bytes", len(got.Messages), len(got.Credits), len(b))
		}
		encoded := frameOf(&got)
		if len(encoded) != len(b) {
			t.Fatalf("%d bytes became %d", len(b), len(encoded))
		}
		if err := again.Parse(encoded); err != nil || !reflect.DeepEqual(got, again) {
			t.Fatalf("%+v became %+v, %v", got, again, err)
		}
	})
}
