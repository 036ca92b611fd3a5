package jobinit

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/klauspost/compress/zstd"

	"margay/kernel/abi/archive"
	"margay/kernel/task"
)

// Files go to their folders in whatever order they come, through links inside the root and never
// through one that leads out of it.
func TestUnpackFolders(t *testing.T) {
	dir := t.TempDir()
	root, err := os.OpenRoot(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	into := folder{root: root, unpacker: unpacker{spec: task.Spec{UID: os.Getuid(), GID: os.Getgid()}, brought: new(brought)}}
	defer into.close()
	unpack := func(name string, kind byte, link string) error {
		h := &tar.Header{Name: name, Typeflag: kind, Linkname: link, Mode: 0o640, Size: int64(len(name))}
		return unpackOne(&into, name, h, strings.NewReader(name))
	}
	for _, link := range []string{"in", "out"} {
		if err := unpack(link, tar.TypeSymlink, map[string]string{"in": "a/b", "out": t.TempDir()}[link]); err != nil {
			t.Fatal(err)
		}
	}
	names := []string{"a/b/1", "a/2", "a/b/c/3", "4", "a/b/5", "in/6", "a/b/7"}
	for _, name := range names {
		if err := unpack(name, tar.TypeReg, ""); err != nil {
			t.Error(err)
		}
	}
	if err := unpack("out/8", tar.TypeReg, ""); err == nil {
		t.Error("a file goes out of the root")
	}
	if err := unpack("a/b/5", tar.TypeReg, ""); !errors.Is(err, fs.ErrExist) {
		t.Errorf("the same file again: %v", err)
	}
	if err := unpack("a/9", tar.TypeReg, ""); err != nil {
		t.Errorf("after errors: %v", err)
	}
	for _, name := range append(names, "a/b/6", "a/9") {
		text, err := os.ReadFile(filepath.Join(dir, name))
		if want := strings.Replace(name, "a/b/6", "in/6", 1); err != nil || string(text) != want {
			t.Errorf("%s has %q, %v", name, text, err)
		}
		info, err := os.Stat(filepath.Join(dir, name))
		if err != nil || info.Mode() != 0o640 || int(info.Sys().(*syscall.Stat_t).Uid) != os.Getuid() {
			t.Errorf("%s: %v, %v", name, info, err)
		}
	}
}

// A file whose content the node has already comes without data; one that it lacks is passed on when
// it is unpacked.
func TestUnpackContents(t *testing.T) {
	dir := t.TempDir()
	root, err := os.OpenRoot(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	text := strings.Repeat("content ", 100_000)
	digest := archive.Digest(sha256.Sum256([]byte(text)))
	held, err := os.CreateTemp(t.TempDir(), "")
	if err != nil {
		t.Fatal(err)
	}
	defer held.Close()
	if _, err := held.WriteString(text); err != nil {
		t.Fatal(err)
	}
	var added []string
	into := folder{root: root, unpacker: unpacker{
		spec: task.Spec{UID: os.Getuid(), GID: os.Getgid()}, brought: new(brought),
		held: map[archive.Digest]heldFile{digest: {File: held}},
		added: func(d archive.Digest, f *os.File) {
			data, err := io.ReadAll(f)
			if err != nil || string(data) != "new" {
				t.Errorf("%q is passed on: %v", data, err)
			}
			added = append(added, d.String())
		},
	}}
	defer into.close()
	other := archive.Digest(sha256.Sum256([]byte("new")))
	unpack := func(name, digest, data string) error {
		h := &tar.Header{Name: name, Typeflag: tar.TypeReg, Mode: 0o640, Size: int64(len(data)), PAXRecords: map[string]string{archive.Content: digest}}
		return unpackOne(&into, name, h, strings.NewReader(data))
	}
	for _, name := range []string{"a/held", "held again"} {
		if err := unpack(name, digest.String(), ""); err != nil {
			t.Fatal(err)
		}
		if got, err := os.ReadFile(filepath.Join(dir, name)); err != nil || string(got) != text {
			t.Errorf("%s has %d bytes: %v", name, len(got), err)
		}
	}
	if err := unpack("new", other.String(), "new"); err != nil || !slices.Equal(added, []string{other.String()}) {
		t.Errorf("%v, passed on: %v", err, added)
	}
	if err := unpack("lacking", other.String(), ""); !errors.Is(err, errNotHeld) {
		t.Errorf("a content that is nowhere: %v", err)
	}
	if err := unpack("damaged", "00", "data"); err == nil {
		t.Error("a digest of one byte is taken")
	}
}

// An archive is read whether it is compressed or not, and a short one is an error of its reader.
func TestEntriesOf(t *testing.T) {
	var plain, packed bytes.Buffer
	out := tar.NewWriter(&plain)
	if err := errors.Join(out.WriteHeader(&tar.Header{Name: "name", Mode: 0o600}), out.Close()); err != nil {
		t.Fatal(err)
	}
	zw, err := zstd.NewWriter(&packed)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := zw.Write(plain.Bytes()); err != nil {
		t.Fatal(err)
	}
	if err := zw.Close(); err != nil {
		t.Fatal(err)
	}
	for title, c := range map[string]struct {
		archive []byte
		want    error
	}{
		"plain": {plain.Bytes(), nil}, "compressed": {packed.Bytes(), nil}, "nothing": {nil, io.EOF}, "a byte": {[]byte("("), io.ErrUnexpectedEOF},
		"compressed and cut": {packed.Bytes()[:len(archive.Compressed)+1], io.ErrUnexpectedEOF},
	} {
		in, end, err := entriesOf(bytes.NewReader(c.archive))
		if err != nil {
			t.Fatalf("%s: %v", title, err)
		}
		h, err := tar.NewReader(in).Next()
		if !errors.Is(err, c.want) || err == nil && h.Name != "name" {
			t.Errorf("%s: %v, %v", title, h, err)
		}
		end()
	}
}

// The rehearsal has no errors: one that fails would leave the work to the launch.
func TestRehearse(t *testing.T) {
	if err := rehearse(); err != nil {
		t.Error(err)
	}
}
