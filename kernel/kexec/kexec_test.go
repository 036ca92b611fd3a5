package kexec

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"math"
	"os"
	"strings"
	"testing"
)

// An image is refused before Linux sees it if a piece is missing or its content is another one, and
// nothing of it is left then.
func TestRefused(t *testing.T) {
	hash := func(text string) []byte {
		h := sha256.Sum256([]byte(text))
		return h[:]
	}
	for name, c := range map[string]struct {
		initramfs []string
		want      error
	}{
		"no node image": {nil, ErrPiece},
		"damaged":       {[]string{"ima", "gf"}, ErrHash},
		"truncated":     {[]string{"ima"}, ErrHash},
	} {
		l := new(Loader)
		if err := l.Write(Kernel, 0, []byte("kernel")); err != nil {
			t.Fatal(err)
		}
		at := uint64(0)
		for _, piece := range c.initramfs {
			if err := l.Write(Initramfs, at, []byte(piece)); err != nil {
				t.Fatal(err)
			}
			at += uint64(len(piece))
		}
		err := l.Load(Hashes{hash("kernel"), hash("image")}, "")
		if !errors.Is(err, c.want) || !strings.HasPrefix(err.Error(), "node image: ") {
			t.Errorf("%s: %v", name, err)
		}
		if l.files != [parts]*os.File{} || l.sizes != [parts]int64{} {
			t.Errorf("%s: something is left", name)
		}
	}
}

// Linux takes a copy of each part beside what will run. An image that has no room for them is
// refused before Linux kills for it.
func TestRoom(t *testing.T) {
	amd64 := make([]byte, 0x300)
	copy(amd64[0x202:], "HdrS")
	binary.LittleEndian.PutUint32(amd64[0x260:], 60<<20)
	arm64 := make([]byte, 0x264)
	copy(arm64[0x38:], "ARM\x64")
	binary.LittleEndian.PutUint64(arm64[0x10:], 60<<20)
	huge := bytes.Clone(arm64)
	binary.LittleEndian.PutUint64(huge[0x10:], math.MaxUint64)
	const initramfs = 10 << 20
	for name, c := range map[string]struct {
		kernel []byte
		runs   int64
	}{
		"amd64":     {amd64, 60 << 20},
		"arm64":     {arm64, 60 << 20},
		"huge":      {huge, math.MaxInt32},
		"too short": {amd64[:0x263], 0x263},
		"unknown":   {make([]byte, 1<<20), 1 << 20},
		"empty":     {nil, 0},
	} {
		l := new(Loader)
		for part, text := range map[Part][]byte{Kernel: c.kernel, Initramfs: make([]byte, initramfs)} {
			if err := l.Write(part, 0, text); err != nil {
				t.Fatal(err)
			}
		}
		needed := int64(len(c.kernel)) + c.runs + 2*initramfs
		if err := l.checkRoom(func() (int64, error) { return needed, nil }); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if err := l.checkRoom(func() (int64, error) { return needed - 1, nil }); !errors.Is(err, ErrRoom) {
			t.Errorf("%s with a byte less: %v", name, err)
		}
		l.discardAll()
	}
}

// Pieces come in order; the first one discards earlier ones.
func TestWrite(t *testing.T) {
	l := new(Loader)
	defer l.discard(Kernel)
	for _, c := range []struct {
		offset uint64
		text   string
		want   error
	}{{3, "x", ErrPiece}, {0, "abc", nil}, {2, "x", ErrPiece}, {4, "x", ErrPiece}, {3, "de", nil}, {0, "f", nil}, {5, "x", ErrPiece}, {1, "g", nil}} {
		if err := l.Write(Kernel, c.offset, []byte(c.text)); !errors.Is(err, c.want) {
			t.Errorf("piece %q at %d: %v", c.text, c.offset, err)
		}
	}
	if l.sizes[Kernel] != 2 {
		t.Errorf("%d bytes", l.sizes[Kernel])
	}
}

func TestNamed(t *testing.T) {
	for cmdline, want := range map[string]string{
		"": "", "quiet": "", "quiet margay.image=1234 x": "1234", "margay.image=a margay.image=b\n": "b", "xmargay.image=1": "",
	} {
		if got := named(cmdline); got != want {
			t.Errorf("%q names %q", cmdline, got)
		}
	}
}
