package wire

import (
	"bytes"
	"errors"
	"testing"
)

// Whatever a rank sends, its reading is sound, and says what was there.
func FuzzParseCommit(f *testing.F) {
	f.Add(Commit{Group: 7, Place: 2, Number: 9, Kind: CommitVote, Status: CommitFalse}.Args()[0], uint64(6<<48|9), []byte{})
	f.Add(uint64(0), uint64(CommitBegin)<<48, CommitOp{Compare: GreaterEqual, Window: 255, Offset: 8, Value: 1, Second: NoOffset, Word: 2}.Encode())
	f.Add(uint64(0), uint64(CommitBegin)<<48, CommitOp{Offset: 1 << 63, Value: 1 << 63, Second: 16}.Encode())
	f.Fuzz(func(t *testing.T, first, second uint64, payload []byte) {
		args := [2]uint64{first, second}
		c, err := ParseCommit(args, len(payload))
		if err != nil {
			if !errors.Is(err, ErrCommit) {
				t.Fatal(err)
			}
			return
		}
		if c.Args() != args || c.Kind == CommitData && len(payload) == 0 || len(payload) > MaxPayload {
			t.Errorf("%#x becomes %+v", args, c)
		}
		if c.Kind != CommitBegin {
			return
		}
		o, err := ParseCommitOp(payload)
		if err != nil {
			if !errors.Is(err, ErrCommit) {
				t.Fatal(err)
			}
			return
		}
		if !bytes.Equal(o.Encode(), payload) {
			t.Errorf("%x becomes %+v", payload, o)
		}
		const size = 4096
		if o.Within(size) == CommitOK && (o.Offset > size || o.Length() > size-o.Offset || o.Compare != 0 && o.Offset > size-8 || o.Second != NoOffset && o.Second > size-8) {
			t.Errorf("%+v is said to be within %d bytes", o, size)
		}
	})
}

func TestComparisons(t *testing.T) {
	for c, want := range map[Comparison][3]bool{ // less, equal, greater
		Equal: {false, true, false}, NotEqual: {true, false, true}, Less: {true, false, false},
		LessEqual: {true, true, false}, Greater: {false, false, true}, GreaterEqual: {false, true, true}, 0: {}, 7: {},
	} {
		for i, word := range []uint64{4, 5, 1 << 63} {
			if c.Holds(word, 5) != want[i] {
				t.Errorf("comparison %d of %d and 5 is %v", c, word, !want[i])
			}
		}
	}
}
