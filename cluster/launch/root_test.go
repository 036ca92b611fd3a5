package launch

import (
	"archive/tar"
	"bytes"
	"debug/elf"
	"encoding/binary"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/klauspost/compress/zstd"
)

// tarRoot writes a tar file with a program as /bin/p.
func tarRoot(t *testing.T, headers ...tar.Header) string {
	t.Helper()
	// An ELF header alone needs no other files.
	var header bytes.Buffer
	if err := binary.Write(&header, binary.LittleEndian, elf.Header64{
		Ident: [elf.EI_NIDENT]byte{0x7f, 'E', 'L', 'F', byte(elf.ELFCLASS64), byte(elf.ELFDATA2LSB), byte(elf.EV_CURRENT)},
		Type:  uint16(elf.ET_EXEC), Machine: uint16(elf.EM_X86_64), Version: uint32(elf.EV_CURRENT), Ehsize: 64,
	}); err != nil {
		t.Fatal(err)
	}
	program := append(header.Bytes(), make([]byte, 100)...)
	var packed bytes.Buffer
	w := tar.NewWriter(&packed)
	for _, h := range append([]tar.Header{{Name: "./bin/p", Mode: 0o755, Size: int64(len(program))}}, headers...) {
		data := program
		if h.Name != "./bin/p" {
			data = []byte(h.Linkname + h.Name)
			if h.Typeflag == 0 {
				h.Size = int64(len(data))
			} else {
				data = nil
			}
		}
		if err := errors.Join(w.WriteHeader(&h), func() error { _, err := w.Write(data); return err }()); err != nil {
			t.Fatalf("%s: %v", h.Name, err)
		}
	}
	name := filepath.Join(t.TempDir(), "root.tar")
	if err := errors.Join(w.Close(), os.WriteFile(name, packed.Bytes(), 0o600)); err != nil {
		t.Fatal(err)
	}
	return name
}

// packedNames lists what a job's archive has.
func packedNames(t *testing.T, f *Files) (names []string) {
	t.Helper()
	var packed bytes.Buffer
	if err := f.Archive(&packed, nil, func(int64) {}); err != nil {
		t.Fatal(err)
	}
	zr, err := zstd.NewReader(&packed)
	if err != nil {
		t.Fatal(err)
	}
	defer zr.Close()
	for r := tar.NewReader(zr); ; {
		h, err := r.Next()
		if err == io.EOF {
			slices.Sort(names)
			return names
		}
		if err != nil {
			t.Fatal(err)
		}
		text := h.Name
		if h.Linkname != "" {
			text += " -> " + h.Linkname
		} else if data, err := io.ReadAll(r); err != nil {
			t.Fatal(err)
		} else if len(data) > 0 && len(data) < 100 {
			text += "=" + string(data)
		}
		names = append(names, text)
	}
}

// A job of the host on nodes that have none of its files shares folders, and has links to the files
// of /etc, but for those that a node makes itself and those that are not world-readable.
func TestLendHost(t *testing.T) {
	f, err := CollectHost([]string{"/bin/sh"}, nil)
	if err != nil {
		t.Fatal(err)
	}
	folders, err := f.LendHost()
	if err != nil || !slices.Contains(folders, HostFolder{"/usr", "/usr"}) || !slices.Contains(folders, HostFolder{"/etc", "/run/margay/host/etc"}) {
		t.Errorf("%v: %v", folders, err)
	}
	links := make(map[string]string)
	for _, name := range packedNames(t, f) {
		at, target, _ := strings.Cut(name, " -> ")
		links["/"+at] = target
	}
	for _, name := range append(slices.Clone(made), "/etc/shadow", "/etc/gshadow") {
		if target, ok := links[name]; ok {
			t.Errorf("%s leads to %s", name, target)
		}
	}
	if got := links["/etc/ld.so.cache"]; got != "/run/margay/host/etc/ld.so.cache" {
		t.Errorf("/etc/ld.so.cache leads to %q", got)
	}
	for _, name := range []string{"/bin", "/sbin", "/lib", "/lib64", "/etc/os-release"} {
		target, err := os.Readlink(name)
		if err == nil && links[name] != target || err == nil && slices.Contains(folders, HostFolder{name, name}) {
			t.Errorf("the link %s leads to %q, not %q: %v", name, links[name], target, folders)
		}
	}
}

// Names in a tar file lead nowhere but into the job's root. Files that a node makes itself, and
// devices and pipes, are left out.
func TestHostileRoot(t *testing.T) {
	root := tarRoot(t, tar.Header{Name: "../../x"}, tar.Header{Name: "/abs"}, tar.Header{Name: "etc/passwd"}, tar.Header{Name: "a/../etc/hosts"}, tar.Header{Name: "dev/null"},
		tar.Header{Name: "proc/x"}, tar.Header{Name: "sys"}, tar.Header{Name: "d", Typeflag: tar.TypeChar}, tar.Header{Name: "f", Typeflag: tar.TypeFifo},
		tar.Header{Name: "out", Typeflag: tar.TypeSymlink, Linkname: "/../../etc"}, tar.Header{Name: "loop", Typeflag: tar.TypeSymlink, Linkname: "loop"},
		tar.Header{Name: "same"}, tar.Header{Name: "other", Typeflag: tar.TypeLink, Linkname: "./same"}, tar.Header{Name: "abs"})
	f, err := CollectRoot(Root{Name: root}, []string{"/out/../bin/p"}, nil)
	if err != nil {
		t.Fatal(err)
	}
	if got, want := packedNames(t, f), []string{"abs=abs", "bin", "bin/p", "etc", "loop -> loop", "other=same", "out -> /../../etc", "same=same", "x=../../x"}; !slices.Equal(got, want) {
		t.Errorf("there go\n%q\nnot\n%q", got, want)
	}
	for _, program := range []string{"/loop", "/out/x", "/same", "/etc/passwd", "/x/y"} {
		if _, err := CollectRoot(Root{Name: root}, []string{program}, nil); err == nil {
			t.Errorf("%s is a program of the root", program)
		}
	}
}

// Programs are found through links, by PATH in the root, and else here.
func TestProgramOfRoot(t *testing.T) {
	t.Setenv("PATH", "/opt/none:/usr/bin")
	root := tarRoot(t, tar.Header{Name: "usr/bin", Typeflag: tar.TypeSymlink, Linkname: "../way"}, tar.Header{Name: "way", Typeflag: tar.TypeSymlink, Linkname: "/bin"})
	here, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	for program, want := range map[string]string{"p": "/usr/bin/p", "/way/p": "/way/p", here: here} {
		if f, err := CollectRoot(Root{Name: root}, []string{program}, nil); err != nil || f.Program != want || f.Arch == "" {
			t.Errorf("%s: %+v, %v", program, f, err)
		}
	}
	if _, err := CollectRoot(Root{Name: root}, []string{"none"}, nil); !errors.Is(err, ErrNotFound) {
		t.Error(err)
	}
}

// Other files are refused.
func TestNoRoot(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{"empty": "", "text": strings.Repeat("text", 1000), "short": "text", "gz": "\x1f\x8b" + strings.Repeat("x", 1000)} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := CollectRoot(Root{Name: filepath.Join(dir, name)}, []string{"p"}, nil); err == nil || !strings.Contains(err.Error(), "neither a folder nor a tar file") {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := CollectRoot(Root{Name: filepath.Join(dir, "none")}, []string{"p"}, nil); !errors.Is(err, os.ErrNotExist) {
		t.Error(err)
	}
}

func FuzzTarRoot(f *testing.F) {
	f.Add([]byte("x"))
	var packed bytes.Buffer
	w := tar.NewWriter(&packed)
	_ = w.WriteHeader(&tar.Header{Name: "a", Typeflag: tar.TypeSymlink, Linkname: "../a"})
	_ = w.WriteHeader(&tar.Header{Name: "p", Mode: 0o755})
	_ = w.Close()
	f.Add(packed.Bytes())
	f.Fuzz(func(t *testing.T, data []byte) {
		name := filepath.Join(t.TempDir(), "root")
		if err := os.WriteFile(name, data, 0o600); err != nil {
			t.Fatal(err)
		}
		if files, err := CollectRoot(Root{Name: name}, []string{"/p"}, nil); err == nil {
			for _, file := range files.List {
				if file.As != filepath.Clean(file.As) || !filepath.IsAbs(file.As) {
					t.Errorf("name %q", file.As)
				}
			}
		}
	})
}
