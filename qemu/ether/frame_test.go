package ether

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"testing"
	"testing/iotest"
)

func pattern(n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(i*7 + n)
	}
	return b
}

func TestReaderReturnsFramesHoweverTheStreamIsCut(t *testing.T) {
	sizes := []int{1, 13, 14, 60, 1514, 9014, 65535, MaxFrame, MaxFrame, MaxFrame, MaxFrame, 2, MaxFrame - 1}
	var stream []byte
	for _, n := range sizes {
		stream = Append(stream, pattern(n))
	}
	cuts := map[string]func(io.Reader) io.Reader{
		"whole":     func(r io.Reader) io.Reader { return r },
		"halves":    iotest.HalfReader,
		"data+EOF":  iotest.DataErrReader,
		"odd bytes": func(r io.Reader) io.Reader { return &chopper{r, 4093} },
	}
	for name, cut := range cuts {
		t.Run(name, func(t *testing.T) {
			r := NewReader(cut(bytes.NewReader(stream)))
			for i, n := range sizes {
				f, err := r.Next()
				if err != nil || !bytes.Equal(f, pattern(n)) {
					t.Fatalf("frame %d: %d bytes, %v; want %d", i, len(f), err, n)
				}
			}
			if _, err := r.Next(); err != io.EOF {
				t.Fatalf("after the last frame: %v, want EOF", err)
			}
		})
	}
}

// chopper returns at most n bytes a read.
type chopper struct {
	r io.Reader
	n int
}

func (c *chopper) Read(p []byte) (int, error) { return c.r.Read(p[:min(len(p), c.n)]) }

func TestReaderRefuses(t *testing.T) {
	boom := errors.New("boom")
	cases := []struct {
		name string
		src  io.Reader
		want error
	}{
		{"zero length", bytes.NewReader([]byte{0, 0, 0, 0, 1}), ErrLength},
		{"one too long", bytes.NewReader(binary.BigEndian.AppendUint32(nil, MaxFrame+1)), ErrLength},
		{"all ones", bytes.NewReader([]byte{0xff, 0xff, 0xff, 0xff}), ErrLength},
		{"end in the prefix", bytes.NewReader([]byte{0, 0}), io.ErrUnexpectedEOF},
		{"end in the frame", bytes.NewReader([]byte{0, 0, 0, 2, 9}), io.ErrUnexpectedEOF},
		{"the stream's error", iotest.ErrReader(boom), boom},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			if _, err := NewReader(c.src).Next(); !errors.Is(err, c.want) {
				t.Fatalf("got %v, want %v", err, c.want)
			}
		})
	}
}

func TestReaderDoesNotAllocate(t *testing.T) {
	stream := bytes.Repeat(Append(nil, pattern(1514)), 100)
	src := bytes.NewReader(stream)
	r := NewReader(src)
	if n := testing.AllocsPerRun(10, func() {
		src.Reset(stream)
		for range 100 {
			if _, err := r.Next(); err != nil {
				t.Fatal(err)
			}
		}
	}); n != 0 {
		t.Errorf("%v allocations per 100 frames", n)
	}
}

func TestMAC(t *testing.T) {
	m, err := ParseMAC("52:54:00:0A:00:01")
	if err != nil || m.String() != "52:54:00:0a:00:01" || !m.Station() {
		t.Errorf("got %v %v", m, err)
	}
	for _, bad := range []string{"", "52:54", "52:54:00:0a:00:01:02:03", "zz:54:00:0a:00:01"} {
		if _, err := ParseMAC(bad); err == nil {
			t.Errorf("%q was accepted", bad)
		}
	}
	for _, m := range []MAC{{}, {1}, {0x33, 0x33}, Broadcast} {
		if m.Station() {
			t.Errorf("%v cannot be a station's", m)
		}
	}
}

// FuzzReader checks against a straightforward decoder that every stream gives the same frames and
// the same end.
func FuzzReader(f *testing.F) {
	f.Add([]byte{}, uint16(1))
	f.Add([]byte{0, 0, 0, 0}, uint16(3))
	f.Add([]byte{0, 1, 0, 15, 1}, uint16(3))
	f.Add(Append(Append(nil, pattern(14)), pattern(60)), uint16(5))
	f.Add(bytes.Repeat(Append(nil, pattern(3000)), 100), uint16(4096))
	f.Fuzz(func(t *testing.T, stream []byte, cut uint16) {
		r := NewReader(&chopper{bytes.NewReader(stream), int(cut) + 1})
		rest := stream
		for {
			want, tail, wantErr := decode(rest)
			got, err := r.Next()
			if !errors.Is(err, wantErr) || !bytes.Equal(got, want) {
				t.Fatalf("at %d: got %d bytes, %v; want %d, %v", len(stream)-len(rest), len(got), err, len(want), wantErr)
			}
			if err != nil {
				return
			}
			rest = tail
		}
	})
}

func decode(b []byte) (frame, rest []byte, err error) {
	switch {
	case len(b) == 0:
		return nil, nil, io.EOF
	case len(b) < PrefixLen:
		return nil, nil, io.ErrUnexpectedEOF
	}
	n := binary.BigEndian.Uint32(b)
	switch b = b[PrefixLen:]; {
	case n == 0 || n > MaxFrame:
		return nil, nil, ErrLength
	case uint64(len(b)) < uint64(n):
		return nil, nil, io.ErrUnexpectedEOF
	}
	return b[:n], b[n:], nil
}
