package bring

import (
	"archive/tar"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"margay/kernel/abi/archive"
)

// item is an entry of an archive; the zero type is a regular file.
type item struct {
	name, data, link string
	kind             byte
	mode             int64
	records          map[string]string
}

// pack makes an archive without the last entry.
func pack(t testing.TB, items ...item) []byte {
	t.Helper()
	var packed bytes.Buffer
	w := tar.NewWriter(&packed)
	for _, i := range items {
		h := &tar.Header{
			Name: i.name, Typeflag: i.kind, Linkname: i.link, Size: int64(len(i.data)), Mode: i.mode, PAXRecords: i.records,
			ModTime: time.Unix(981158400, 500), Format: tar.FormatPAX,
		}
		if i.kind == 0 {
			h.Typeflag = tar.TypeReg
		}
		if i.mode == 0 {
			h.Mode = 0o755
		}
		if err := w.WriteHeader(h); err != nil {
			t.Fatalf("%q: %v", i.name, err)
		}
		if _, err := io.WriteString(w, i.data); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Flush(); err != nil {
		t.Fatal(err)
	}
	return packed.Bytes()
}

// whole is an archive with its end.
func whole(t testing.TB, items ...item) io.Reader {
	t.Helper()
	return bytes.NewReader(pack(t, append(items, item{name: archive.End})...))
}

const dir, link, hard = tar.TypeDir, tar.TypeSymlink, tar.TypeLink

// tree lists the files below a folder.
func tree(t *testing.T, root string) (names []string) {
	t.Helper()
	err := filepath.WalkDir(root, func(path string, e fs.DirEntry, err error) error {
		if err != nil || path == root {
			return err
		}
		name, _ := filepath.Rel(root, path)
		switch {
		case e.IsDir():
			name += "/"
		case e.Type() == fs.ModeSymlink:
			to, _ := os.Readlink(path)
			name += " -> " + to
		case e.Type().IsRegular():
			text, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			name += "=" + string(text)
		default:
			name += "?"
		}
		names = append(names, name)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return names
}

func expect(t *testing.T, root string, want ...string) {
	t.Helper()
	if got := tree(t, root); !slices.Equal(got, want) {
		t.Errorf("there is\n%q\nnot\n%q", got, want)
	}
}

// The files of two nodes come into one folder; a name that both have is there twice.
func TestMerged(t *testing.T) {
	root := t.TempDir()
	b := &Bringer{Targets: []Target{{"/w/res", root + "/res"}, {"/w/one", root + "/one"}, {"/w/none", root + "/none"}}}
	for node, files := range [][]item{
		{{name: "0", kind: dir}, {name: "0/a", data: "0"}, {name: "0/l", kind: link, link: "a"}, {name: "0/d", kind: dir, mode: 0o500}, {name: "0/d/x", data: "x", mode: 0o640}, {name: "0/h", kind: hard, link: "0/d/x"}},
		{{name: "0", kind: dir}, {name: "0/a", kind: dir}, {name: "0/a/in", data: "in"}, {name: "0/l", kind: link, link: "a"}, {name: "0/d", data: "d"}, {name: "1", data: "one"}},
	} {
		if err := b.Node(7, uint32(node), whole(t, files...)); err != nil {
			t.Fatal(err)
		}
	}
	expect(t, root, "one=one", "res/", "res/a=0", "res/a.node1/", "res/a.node1/in=in", "res/d/", "res/d/x=x", "res/d.node1=d", "res/h=x", "res/l -> a")
	if b.Collided.Count != 2 || b.Left.Count+b.Failed.Count != 0 || !slices.Equal(b.Missing(), []string{"/w/none"}) {
		t.Errorf("collided: %v; left: %v; failed: %v; missing: %q", &b.Collided, &b.Left, &b.Failed, b.Missing())
	}
	x, err := os.Stat(root + "/res/d/x")
	if err != nil {
		t.Fatal(err)
	}
	h, _ := os.Stat(root + "/res/h")
	d, _ := os.Stat(root + "/res/d")
	if x.Mode() != 0o640 || !x.ModTime().Equal(time.Unix(981158400, 500)) || !os.SameFile(x, h) || d.Mode().Perm() != 0o500 || !d.ModTime().Equal(x.ModTime()) {
		t.Errorf("x is %v of %v, its folder %v of %v, its other name the same: %v", x.Mode(), x.ModTime(), d.Mode(), d.ModTime(), os.SameFile(x, h))
	}
}

// Nothing that was here is replaced unless the user says so, and then only what was here before.
func TestOverwrite(t *testing.T) {
	for _, c := range []struct {
		name      string
		overwrite bool
		want      []string
	}{
		{"not", false, []string{"dir/", "f=old", "f.node0=0", "f.node1=1", "l -> old", "l.node0 -> f"}},
		{"asked for", true, []string{"dir/", "dir.node0=file", "f=0", "f.node1=1", "l -> f"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			root := t.TempDir()
			if err := errors.Join(os.WriteFile(root+"/f", []byte("old"), 0o600), os.Symlink("old", root+"/l"), os.Mkdir(root+"/dir", 0o700)); err != nil {
				t.Fatal(err)
			}
			b := &Bringer{Targets: []Target{{"/w", root}}, Overwrite: c.overwrite}
			files := []item{{name: "0", kind: dir}, {name: "0/f", data: "0"}, {name: "0/l", kind: link, link: "f"}}
			if c.overwrite {
				files = append(files, item{name: "0/dir", data: "file"})
			}
			if err := errors.Join(
				b.Node(7, 0, whole(t, files...)),
				b.Node(7, 1, whole(t, item{name: "0", kind: dir}, item{name: "0/f", data: "1"})),
			); err != nil {
				t.Fatal(err)
			}
			expect(t, root, c.want...)
		})
	}
}

// The destination of a file may be a name or a folder, with the number of the node in it.
func TestDestinations(t *testing.T) {
	root := t.TempDir()
	if err := os.Mkdir(root+"/is", 0o700); err != nil {
		t.Fatal(err)
	}
	b := &Bringer{Targets: []Target{{"/w/a", root + "/is"}, {"/w/b", root + "/new/"}, {"/w/c", root + "/%j/%n%%/c"}, {"/w/d", root + "/n%n"}}}
	for node := range uint32(2) {
		if err := b.Node(7, node, whole(t, item{name: "0", data: "a"}, item{name: "1", data: "b"}, item{name: "2", data: "c"}, item{name: "3", kind: dir}, item{name: "3/x"})); err != nil {
			t.Fatal(err)
		}
	}
	expect(t, root, "7/", "7/0%/", "7/0%/c=c", "7/1%/", "7/1%/c=c", "is/", "is/a=a", "is/a.node1=a", "n0/", "n0/x=", "n1/", "n1/x=", "new/", "new/b=b", "new/b.node1=b")
}

// Whatever a rank or a node puts into an archive, nothing leaves the folder.
func TestHostile(t *testing.T) {
	for _, c := range []struct {
		name    string
		items   []item
		want    []string // below the folder
		left    int
		damaged bool
	}{
		{"links out", []item{{name: "0/a", kind: link, link: "/etc/passwd"}, {name: "0/b", kind: link, link: ".."}, {name: "0/c", kind: link, link: "x/../../y"},
			{name: "0/d", kind: dir}, {name: "0/d/up", kind: link, link: ".."}, {name: "0/d/out", kind: link, link: "up/../../y"}, {name: "0/d/out2", kind: link, link: "../.."}, {name: "0/d/out3", kind: link, link: "up/../y"}}, []string{"d/", "d/up -> .."}, 6, false},
		{"through a link", []item{{name: "0/a", kind: link, link: "d"}, {name: "0/a/x", data: "x"}}, []string{"a -> d"}, 1, false},
		{"through a link of the user", []item{{name: "0/there", kind: dir}, {name: "0/there/x", data: "x"}}, []string{"there.node0/", "there.node0/x=x"}, 0, false},
		{"upwards", []item{{name: "0/../x", data: "x"}}, nil, 0, true},
		{"absolute", []item{{name: "/etc/x", data: "x"}}, nil, 0, true},
		{"no number", []item{{name: "x", data: "x"}}, nil, 0, true},
		{"no such target", []item{{name: "1/x", data: "x"}}, nil, 0, true},
		{"negative", []item{{name: "-1/x", data: "x"}}, nil, 0, true},
		{"a part without a name", []item{{name: "0//x", data: "x"}}, nil, 0, true},
		{"without a folder", []item{{name: "0/d/x", data: "x"}}, nil, 1, false},
		{"a device", []item{{name: "0/d", kind: tar.TypeBlock}, {name: "0/p", kind: tar.TypeFifo}}, nil, 2, false},
		{"the same file twice", []item{{name: "0/f", data: "1"}, {name: "0/f", data: "2"}}, []string{"f=1", "f.node0=2"}, 0, false},
		{"the folder twice", []item{{name: "0", kind: dir}}, nil, 0, true},
		{"hard link to a link", []item{{name: "0/d", kind: dir}, {name: "0/d/l", kind: link, link: ".."}, {name: "0/h", kind: hard, link: "0/d/l"}, {name: "0/g", kind: hard, link: "0/d"}}, []string{"d/", "d/l -> .."}, 2, false},
		{"hard link to nothing", []item{{name: "0/f", kind: hard, link: "/etc/passwd"}, {name: "0/g", kind: hard, link: "0/none"}}, nil, 2, false},
		{"left out", []item{{name: "0/f", records: map[string]string{archive.Left: "why\x1b[2J"}}}, nil, 1, false},
		{"holes of no number", []item{{name: "0/f", records: map[string]string{archive.Holes: "-5"}}}, nil, 0, true},
		{"beyond the end", []item{{name: "0/f", data: extent(5, "abc"), records: map[string]string{archive.Holes: "7"}}}, nil, 0, true},
		{"backwards", []item{{name: "0/f", data: extent(5, "abc") + extent(0, "x"), records: map[string]string{archive.Holes: "9"}}}, nil, 0, true},
		{"length that wraps", []item{{name: "0/f", data: string(binary.BigEndian.AppendUint64(binary.BigEndian.AppendUint64(nil, 1), math.MaxUint64)), records: map[string]string{archive.Holes: "9"}}}, nil, 0, true},
		{"less than it says", []item{{name: "0/f", data: extent(0, "abc")[:17], records: map[string]string{archive.Holes: "9"}}}, nil, 0, true},
		{"names for a terminal", []item{{name: "0/a\nb\x1b", data: "x"}}, []string{"a\nb\x1b=x"}, 0, false},
		{"a setuid file", []item{{name: "0/f", mode: 0o6777, data: "x"}}, []string{"f=x"}, 0, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			above := t.TempDir()
			root := above + "/to"
			user := c.name == "through a link of the user"
			if err := errors.Join(os.MkdirAll(root, 0o700), os.Mkdir(above+"/private", 0o700)); err != nil {
				t.Fatal(err)
			}
			if user {
				if err := os.Symlink(above+"/private", root+"/there"); err != nil {
					t.Fatal(err)
				}
				c.want = append([]string{"there -> " + above + "/private"}, c.want...)
			}
			b := &Bringer{Targets: []Target{{"/w", root}}}
			err := b.Node(7, 0, whole(t, append([]item{{name: "0", kind: dir}}, c.items...)...))
			if errors.Is(err, ErrDamaged) != c.damaged || err != nil && !c.damaged {
				t.Errorf("error %v", err)
			}
			if b.Left.Count != c.left || b.Failed.Count != 0 || strings.ContainsRune(b.Left.String()+b.Collided.String(), 27) {
				t.Errorf("left: %q; failed: %q", &b.Left, &b.Failed)
			}
			expect(t, root, c.want...)
			if around := tree(t, above); slices.ContainsFunc(around, func(name string) bool { return !strings.HasPrefix(name, "to/") && name != "private/" }) {
				t.Errorf("beside the folder: %q", around)
			}
			if info, err := os.Stat(root + "/f"); err == nil && info.Mode()&^fs.ModePerm != 0 {
				t.Errorf("mode %v", info.Mode())
			}
		})
	}
}

func extent(at uint64, data string) string {
	return string(binary.BigEndian.AppendUint64(binary.BigEndian.AppendUint64(nil, at), uint64(len(data)))) + data
}

// A file with holes has them here, too.
func TestHoles(t *testing.T) {
	root := t.TempDir()
	b := &Bringer{Targets: []Target{{"/w", root + "/f"}}}
	size := int64(1) << 40
	err := b.Node(7, 0, whole(t, item{name: "0", data: extent(1<<20, "abc") + extent(1<<39, "d"), records: map[string]string{archive.Holes: "1099511627776"}}))
	if errors.Is(err, syscall.EFBIG) {
		t.Skip("the file system has no files of 1 TiB")
	}
	if err != nil {
		t.Fatal(err)
	}
	info, err := os.Stat(root + "/f")
	if err != nil {
		t.Fatal(err)
	}
	if blocks := info.Sys().(*syscall.Stat_t).Blocks; info.Size() != size || blocks > 1<<10 {
		t.Errorf("%d bytes, %d blocks", info.Size(), blocks)
	}
	f, err := os.Open(root + "/f")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var at [3]byte
	if _, err := f.ReadAt(at[:], 1<<20); err != nil || string(at[:]) != "abc" {
		t.Errorf("%q, %v", at, err)
	}
}

// An archive that ends early is noticed, wherever that is, and leaves no part of a file under its
// name.
func TestCutOff(t *testing.T) {
	packed := pack(t, item{name: "0", kind: dir}, item{name: "0/a", data: strings.Repeat("a", 3000)}, item{name: "0/b", data: "b"})
	for cut := 0; cut <= len(packed); cut += 128 {
		root := t.TempDir()
		b := &Bringer{Targets: []Target{{"/w", root}}}
		if err := b.Node(7, 0, bytes.NewReader(packed[:cut])); !errors.Is(err, ErrDamaged) {
			t.Errorf("%d of %d bytes: %v", cut, len(packed), err)
		}
		for _, name := range tree(t, root) {
			if name != "b=b" && name != "a="+strings.Repeat("a", 3000) {
				t.Errorf("%d of %d bytes: there is %.20q", cut, len(packed), name)
			}
		}
	}
}

// What a margay run with the same process number has left behind, because it was killed, is in no
// file's way.
func TestLeftover(t *testing.T) {
	root := t.TempDir()
	if err := os.Mkdir(root+"/res", 0o755); err != nil {
		t.Fatal(err)
	}
	for i := range 4 {
		if err := os.WriteFile(fmt.Sprintf("%s/res/.margay-%d-%d", root, os.Getpid(), i), []byte("half"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	b := &Bringer{Targets: []Target{{"/w/res", root + "/res"}}}
	if err := b.Node(7, 0, whole(t, item{name: "0", kind: dir}, item{name: "0/a", data: "a"}, item{name: "0/b", data: "b"})); err != nil {
		t.Fatal(err)
	}
	if got := tree(t, root+"/res"); b.Failed.Count > 0 || !slices.Contains(got, "a=a") || !slices.Contains(got, "b=b") {
		t.Errorf("there is %q; failed: %v", got, &b.Failed)
	}
}

func TestCheckDest(t *testing.T) {
	root := t.TempDir()
	if err := os.WriteFile(root+"/file", nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for pattern, good := range map[string]bool{
		root: true, root + "/new/er": true, root + "/file": true, root + "/%n/%j/%%": true, root + "/%r": false, root + "/%": false, "/proc/self/none/x": false,
	} {
		if err := CheckDest(pattern); (err == nil) != good {
			t.Errorf("%s: %v", pattern, err)
		}
	}
}

func FuzzNode(f *testing.F) {
	f.Add(pack(f, item{name: "0", kind: dir}, item{name: "0/a", data: "a"}, item{name: "0/l", kind: link, link: "a"}, item{name: "0/h", kind: hard, link: "0/a"}, item{name: archive.End}))
	f.Add(pack(f, item{name: "0", data: extent(5, "abc"), records: map[string]string{archive.Holes: "9"}}))
	f.Add(pack(f, item{name: "0", kind: dir}, item{name: "0/d", kind: dir}, item{name: "0/d/up", kind: link, link: "../.."}, item{name: "0/d/up/x", data: "x"}))
	f.Fuzz(func(t *testing.T, packed []byte) {
		above := t.TempDir()
		b := &Bringer{Targets: []Target{{"/w", above + "/to"}}}
		_ = b.Node(1, 0, bytes.NewReader(packed))
		entries, err := os.ReadDir(above)
		if err != nil || len(entries) > 1 || len(entries) == 1 && entries[0].Name() != "to" {
			t.Errorf("beside the folder: %v, %v", entries, err)
		}
	})
}

// A folder that --out names gets its mode, but its user may still write to it; one that was here
// keeps its own.
func TestFolderMode(t *testing.T) {
	root := t.TempDir()
	if err := os.Mkdir(filepath.Join(root, "old"), 0o755); err != nil {
		t.Fatal(err)
	}
	b := &Bringer{Targets: []Target{{"/w/new", root + "/new"}, {"/w/old", root + "/old"}}}
	for node := range uint32(2) {
		if err := b.Node(1, node, whole(t, item{name: "0", kind: dir, mode: 0o500}, item{name: "0/f", data: "f"}, item{name: "1", kind: dir, mode: 0o500})); err != nil {
			t.Fatal(err)
		}
	}
	for name, want := range map[string]fs.FileMode{"new": 0o700, "old": 0o755} {
		if info, err := os.Stat(filepath.Join(root, name)); err != nil || info.Mode().Perm() != want {
			t.Errorf("%s: %v, %v", name, info.Mode(), err)
		}
	}
	if b.Failed.Count > 0 {
		t.Error(&b.Failed)
	}
}
