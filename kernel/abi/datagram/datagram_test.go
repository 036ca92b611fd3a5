package datagram

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"reflect"
	"testing"

	"margay/internal/check"
)

// build writes a datagram with its units.
func build(d Datagram) []byte {
	b := make([]byte, HeaderWith(d.Flags))
	d.Put(b, len(d.Units))
	for i := range d.Units {
		b = AppendUnit(b, &d.Units[i])
	}
	return b
}

// sample is a datagram with all of its parts.
func sample() Datagram {
	d := Datagram{Flags: FlagAsk | FlagUserBitmap | FlagSystemBitmap, Source: 1, Target: 2, Connection: 3, Number: 4, Echo: 5, Delay: 6,
		Acks: [Classes]Ack{{Next: 7, Credit: 8, Gaps: Bitmap{1, 2, 3, 1 << 63}}, {Next: 9, Credit: 10, Gaps: Bitmap{3: 4}}}}
	long := bytes.Repeat([]byte("long"), Fragment)
	d.Units = []Unit{
		{Number: 1<<64 - 1, Class: System, First: true, Last: true, Message: 5, Payload: []byte("short")},
		{Number: 11, First: true, Last: true, Payload: []byte{}},
		{Number: 12, First: true, Message: uint32(2*Fragment + 3), Payload: long[:Fragment]},
		{Number: 13, Message: uint32(2*Fragment + 3), Payload: long[Fragment : 2*Fragment]},
		{Number: 14, Last: true, Message: uint32(2*Fragment + 3), Payload: long[:3]},
	}
	return d
}

func TestRoundTrip(t *testing.T) {
	for name, flags := range map[string]uint16{"no bitmap": 0, "user": FlagUserBitmap, "system": FlagSystemBitmap, "both": FlagUserBitmap | FlagSystemBitmap} {
		t.Run(name, func(t *testing.T) {
			want := sample()
			want.Flags = flags
			for c := range Classes {
				if flags&(FlagUserBitmap<<c) == 0 {
					want.Acks[c].Gaps = Bitmap{}
				}
			}
			var got Datagram
			if err := got.Parse(build(want)); err != nil || !reflect.DeepEqual(got, want) {
				t.Fatalf("%+v became %+v, %v", want, got, err)
			}
		})
	}
}

// A datagram that is cut, extended or changed where only one value is valid is refused.
func TestMalformed(t *testing.T) {
	whole := build(sample())
	var d Datagram
	for n := range whole {
		if err := d.Parse(whole[:n]); !errors.Is(err, ErrMalformed) {
			t.Fatalf("the first %d bytes: %v", n, err)
		}
	}
	if err := d.Parse(append(whole, 0)); !errors.Is(err, ErrMalformed) {
		t.Errorf("one byte more: %v", err)
	}
	first := HeaderSize + 2*BitmapSize
	for name, at := range map[string]int{
		"version": offVersion, "kind": offKind, "flags": offFlags + 1, "zero": offZero, "units": offUnits + 1, "class": first + offUnitClass,
		"unit flags": first + offUnitFlags, "size": first + offUnitSize, "message": first + offUnitMessage, "job": first + offUnitJob,
		"rank": first + offUnitRank, "target": first + offUnitTarget, "handler": first + offUnitHandler, "unit zero": first + offUnitZero,
		"fill": first + UnitHeader + 5,
	} {
		b := bytes.Clone(whole)
		b[at] ^= 0x10
		if err := d.Parse(b); !errors.Is(err, ErrMalformed) {
			t.Errorf("another %s: %v", name, err)
		}
	}
}

// Every length of a message is cut into units that are plausible, and only those.
func TestUnits(t *testing.T) {
	for size, want := range map[int]uint64{0: 1, 1: 1, Fragment: 1, Fragment + 1: 2, 2 * Fragment: 2, MaxMessage: (MaxMessage + Fragment - 1) / Fragment} {
		if got := Units(size); got != want {
			t.Errorf("%d bytes are %d units, want %d", size, got, want)
		}
	}
	for name, c := range map[string]struct {
		u  Unit
		ok bool
	}{
		"empty":           {Unit{First: true, Last: true}, true},
		"whole":           {Unit{First: true, Last: true, Message: Fragment, Payload: make([]byte, Fragment)}, true},
		"first of two":    {Unit{First: true, Message: Fragment + 1, Payload: make([]byte, Fragment)}, true},
		"last of two":     {Unit{Last: true, Message: Fragment + 1, Payload: make([]byte, 1)}, true},
		"last is full":    {Unit{Last: true, Message: 2 * Fragment, Payload: make([]byte, Fragment)}, true},
		"too long":        {Unit{First: true, Message: MaxMessage + 1, Payload: make([]byte, Fragment)}, false},
		"short first":     {Unit{First: true, Message: Fragment + 1, Payload: make([]byte, 8)}, false},
		"long last":       {Unit{Last: true, Message: Fragment + 1, Payload: make([]byte, 2)}, false},
		"middle of short": {Unit{Message: 8, Payload: make([]byte, 8)}, false},
		"last of short":   {Unit{Last: true, Message: 8, Payload: make([]byte, 8)}, false},
		"wrong length":    {Unit{First: true, Last: true, Message: 8, Payload: make([]byte, 7)}, false},
		"long and whole":  {Unit{First: true, Last: true, Message: Fragment + 1, Payload: make([]byte, Fragment)}, false},
	} {
		if got := c.u.plausible(); got != c.ok {
			t.Errorf("%s: plausible is %t", name, got)
		}
	}
}

func TestBitmap(t *testing.T) {
	seed := check.Seed(t)
	random := rand.New(rand.NewPCG(seed, 1))
	var m Bitmap
	set := make(map[uint64]bool)
	for range 100 {
		i := random.Uint64N(Window)
		m.Set(i)
		set[i] = true
	}
	for i := range uint64(Window) {
		if m.Has(i) != set[i] {
			t.Errorf("bit %d is %t", i, m.Has(i))
		}
	}
}

// Anything that is accepted is written as the same bytes again.
func FuzzParse(f *testing.F) {
	f.Add(build(sample()))
	f.Add(build(Datagram{Number: 1}))
	f.Fuzz(func(t *testing.T, b []byte) {
		var d Datagram
		if err := d.Parse(b); err != nil {
			if !errors.Is(err, ErrMalformed) {
				t.Fatal(err)
			}
			return
		}
		if again := build(d); !bytes.Equal(again, b) {
			t.Fatalf("%x became %x", b, again)
		}
	})
}
