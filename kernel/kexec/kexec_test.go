package kexec

import (
	"crypto/sha256"
	"errors"
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
