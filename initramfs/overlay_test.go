package initramfs

import (
	"bytes"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/klauspost/compress/zstd"
	"golang.org/x/sys/unix"
)

func TestOverlay(t *testing.T) {
	var b bytes.Buffer
	err := Overlay([]File{
		{Path: "/margay/node.json", Mode: 0o600, UID: 1, GID: 2, Data: []byte("{}")},
		{Path: "/tmp/x"},
	}, &b)
	if err != nil {
		t.Fatal(err)
	}
	got := readArchive(t, b.Bytes())
	if len(got) != 4 {
		t.Errorf("%d files, want two and their directories", len(got))
	}
	node := got["margay/node.json"]
	if node.Mode != 0o100600 || node.UID != 1 || node.GID != 2 || contentOf(t, node) != "{}" {
		t.Errorf("node file %+v", node)
	}
	if got["tmp"].Mode != 0o41777 || got["margay"].Mode != 0o40755 {
		t.Errorf("directories %o and %o; an overlay must not change those of the image", got["tmp"].Mode, got["margay"].Mode)
	}
}

// Linux looks for a further archive at the first multiple of four bytes after an image, and skips
// zero bytes.
func TestWriteNodeImage(t *testing.T) {
	dir := t.TempDir()
	s := testSpec(t)
	files := []File{{Path: "/margay/node.json", Mode: 0o600, Data: []byte(`{"node":3}`)}}
	whole, m := build(t, s)
	for n := range align {
		image := append(bytes.Clone(whole), make([]byte, n)...)
		dst := filepath.Join(dir, "node.img")
		if err := WriteNodeImage(write(t, filepath.Join(dir, "image"), image), files, dst); err != nil {
			t.Fatal(err)
		}
		got, err := os.ReadFile(dst)
		if err != nil || !bytes.HasPrefix(got, image) {
			t.Fatalf("the image is not the beginning of the node image, %v", err)
		}
		at := (len(image) + align - 1) / align * align
		if len(bytes.Trim(got[len(image):at], "\x00")) != 0 {
			t.Errorf("padding %x", got[len(image):at])
		}
		if contentOf(t, readArchive(t, got[at:])["margay/node.json"]) != `{"node":3}` {
			t.Errorf("no overlay at %d", at)
		}
		list, err := List(bytes.NewReader(got))
		if err != nil || len(list) != len(m.Entries)+2 || list[len(list)-1].Path != "/margay/node.json" {
			t.Errorf("listed %v, %v", list, err)
		}
		if info, err := os.Stat(dst); err != nil || info.Mode() != 0o600 {
			t.Errorf("mode %v, %v: others can read the node's secrets", info.Mode(), err)
		}
	}
	defer unix.Umask(unix.Umask(0o027))
	copied := filepath.Join(dir, "node.img")
	if err := WriteNodeImage(write(t, filepath.Join(dir, "image"), whole), nil, copied); err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(copied); err != nil || info.Mode() != 0o640 {
		t.Errorf("mode %v of a copy, %v", info.Mode(), err)
	}
	if left, _ := os.ReadDir(dir); len(left) != 2 {
		t.Errorf("left behind: %v", left)
	}
}

// A plain image and its overlay become one stream, readable by its owner alone. Linux needs little
// memory to unpack it. Other files stay as they are.
func TestCompress(t *testing.T) {
	dir := t.TempDir()
	s := testSpec(t)
	s.Plain = true
	whole, _ := build(t, s)
	dst := filepath.Join(dir, "node.img")
	if err := WriteNodeImage(write(t, filepath.Join(dir, "image"), whole), []File{{Path: "/margay/node.json", Mode: 0o600, Data: []byte("{}")}}, dst); err != nil {
		t.Fatal(err)
	}
	plain, err := os.ReadFile(dst)
	if err != nil {
		t.Fatal(err)
	}
	if err := Compress(dst); err != nil {
		t.Fatal(err)
	}
	compressed, err := os.ReadFile(dst)
	if err != nil {
		t.Fatal(err)
	}
	d, err := zstd.NewReader(bytes.NewReader(compressed), zstd.WithDecoderMaxWindow(zstdWindow), zstd.WithDecoderConcurrency(1))
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	if got, err := io.ReadAll(d); err != nil || !bytes.Equal(got, plain) {
		t.Errorf("%d bytes unpacked, %v; want %d", len(got), err, len(plain))
	}
	if info, err := os.Stat(dst); err != nil || info.Mode() != 0o600 {
		t.Errorf("mode %v, %v", info.Mode(), err)
	}
	for _, text := range []string{"", "0707", "another", string(compressed)} {
		other := write(t, filepath.Join(dir, "other"), []byte(text))
		if err := Compress(other); err != nil {
			t.Errorf("%d bytes: %v", len(text), err)
		}
		if got, err := os.ReadFile(other); err != nil || string(got) != text {
			t.Errorf("%d bytes were changed, %v", len(text), err)
		}
	}
}

func TestWriteNodeImageErrors(t *testing.T) {
	dir := t.TempDir()
	image := write(t, filepath.Join(dir, "image"), []byte("x"))
	dst := filepath.Join(dir, "dst")
	var bad *FileError
	if err := WriteNodeImage(image, []File{{Path: "relative"}}, dst); !errors.As(err, &bad) {
		t.Errorf("error %v", err)
	}
	if err := WriteNodeImage(image+"x", nil, dst); !errors.Is(err, fs.ErrNotExist) || !strings.Contains(err.Error(), dst) {
		t.Errorf("error %v", err)
	}
	if err := WriteNodeImage(image, nil, filepath.Join(dir, "none", "dst")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("error %v", err)
	}
	if left, _ := os.ReadDir(dir); len(left) != 1 {
		t.Errorf("left behind: %v", left)
	}
}
