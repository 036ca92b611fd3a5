package wire

import (
	"bytes"
	"errors"
	"strings"
	"testing"
)

// A call that was read is what was written.
func FuzzParseCall(f *testing.F) {
	f.Add(uint64(1), uint64(1<<52|8), 8, 3)
	f.Add(uint64(2<<40), uint64(10<<52|8), 0, 3)
	f.Fuzz(func(t *testing.T, first, second uint64, payload, size int) {
		if payload < 0 || size < 1 {
			return
		}
		args := [2]uint64{first, second}
		c, err := ParseCall(args, payload, size)
		if err != nil {
			if !errors.Is(err, ErrChunk) {
				t.Fatal(err)
			}
			return
		}
		if c.Args() != args || int(c.Root) >= size || payload > MaxPayload || strings.Contains(c.String(), "number") {
			t.Errorf("%#x becomes %+v", args, c)
		}
	})
}

func TestParseCall(t *testing.T) {
	good := Call{Group: 1<<40 - 1, Root: 2, Number: MaxCallNumber, Kind: CallReduce, Type: TypeFloat64, Op: OpUser, Length: MaxCallLength}
	if c, err := ParseCall(good.Args(), 1, 3); err != nil || c != good {
		t.Errorf("%+v, %v", c, err)
	}
	for name, bad := range map[string]struct {
		args    [2]uint64
		payload int
	}{
		"kind 0":            {[2]uint64{0, 8}, 8},
		"kind 13":           {[2]uint64{0, 8 | 13<<52}, 8},
		"nothing said":      {[2]uint64{0, 12 << 52}, 0},
		"said of a root":    {[2]uint64{1 << 40, 12 << 52}, 24},
		"type 7":            {[2]uint64{0, 8 | 2<<52 | 7<<56}, 8},
		"operation 8":       {[2]uint64{0, 8 | 2<<52 | 8<<60}, 8},
		"root 3":            {[2]uint64{3 << 40, 8 | 2<<52}, 8},
		"no data":           {[2]uint64{0, 8 | 2<<52}, 0},
		"data of no length": {[2]uint64{0, 2 << 52}, 8},
		"credit with data":  {[2]uint64{0, 10 << 52}, 8},
		"too long":          {[2]uint64{0, 8 | 2<<52}, MaxPayload + 1},
	} {
		if c, err := ParseCall(bad.args, bad.payload, 3); !errors.Is(err, ErrChunk) {
			t.Errorf("%s: %+v, %v", name, c, err)
		}
	}
}

// What was read of where ranks are is what was written.
func FuzzParseWheres(f *testing.F) {
	f.Add(WherePayload(Where{1, Call{Number: 1, Kind: CallGather, Length: 8}}))
	f.Add(WherePayload(Where{1, Call{Kind: CallBarrier}}, Where{2, Call{Number: MaxCallNumber, Kind: CallReduce, Type: TypeInt32, Op: OpSum}}))
	f.Fuzz(func(t *testing.T, b []byte) {
		wheres, err := ParseWheres(b)
		if err != nil {
			if !errors.Is(err, ErrChunk) {
				t.Fatal(err)
			}
			return
		}
		if again := WherePayload(wheres...); !bytes.Equal(again, b) || len(wheres) > maxWheres {
			t.Errorf("%v becomes %v", b, again)
		}
	})
}

// A request or an answer is read as it was written, and an access within a window ends in it.
func FuzzParseRemote(f *testing.F) {
	f.Add(uint64(1<<32|8<<48), uint64(8), 8, 16)
	f.Add(uint64(4<<32|16<<48), uint64(1<<64-8), 16, 16)
	f.Fuzz(func(t *testing.T, first, second uint64, payload, size int) {
		if payload < 0 || size < 0 {
			return
		}
		args := [2]uint64{first, second}
		r, err := ParseRemote(args, payload)
		if err != nil {
			if !errors.Is(err, ErrRemote) {
				t.Fatal(err)
			}
			return
		}
		if r.Args() != args || payload > MaxPayload || r.Length > MaxPayload {
			t.Errorf("%#x becomes %+v", args, r)
		}
		length := int(r.Length)
		if r.Kind == RemoteAdd || r.Kind == RemoteSwap {
			length = 8
		}
		if r.Within(size) {
			if r.Offset > uint64(size) || int(r.Offset)+length > size {
				t.Errorf("%+v is said to be within %d bytes", r, size)
			}
		}
	})
}
