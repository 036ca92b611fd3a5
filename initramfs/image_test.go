package initramfs

import (
	"bytes"
	"context"
	"crypto/sha256"
	"debug/elf"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/u-root/u-root/pkg/cpio"

	"margay/initramfs/guestkernel"
	"margay/internal/progress"
	"margay/kernel/abi/node"
)

func build(t *testing.T, s Spec) ([]byte, Manifest) {
	t.Helper()
	var image bytes.Buffer
	m, err := Build(context.Background(), s, &image)
	if err != nil {
		t.Fatal(err)
	}
	return image.Bytes(), m
}

// unpacked reads an image back with readers that are not this package's.
func unpacked(t *testing.T, image []byte) map[string]cpio.Record {
	t.Helper()
	xz := exec.Command("xz", "-dc")
	xz.Stdin = bytes.NewReader(image)
	archive, err := xz.Output()
	if err != nil {
		t.Fatal(err)
	}
	return readArchive(t, archive)
}

func readArchive(t *testing.T, archive []byte) map[string]cpio.Record {
	t.Helper()
	records := map[string]cpio.Record{}
	inodes := map[uint64]bool{}
	err := cpio.ForEachRecord(cpio.Newc.Reader(bytes.NewReader(archive)), func(r cpio.Record) error {
		if parent := filepath.Dir(r.Name); r.Name != "." && parent != "." && records[parent].Mode&cpio.S_IFMT != cpio.S_IFDIR {
			t.Errorf("%s comes before its directory", r.Name)
		}
		if r.MTime != 0 || inodes[r.Ino] || r.NLink != 1 {
			t.Errorf("%s: time %d, inode %d, %d links", r.Name, r.MTime, r.Ino, r.NLink)
		}
		inodes[r.Ino] = true
		records[r.Name] = r
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return records
}

func contentOf(t *testing.T, r cpio.Record) string {
	t.Helper()
	data, err := io.ReadAll(io.NewSectionReader(r, 0, math.MaxInt64))
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

func TestBuild(t *testing.T) {
	s := testSpec(t)
	s.JobInit = write(t, filepath.Join(t.TempDir(), "jobinit"), append(programFile(), "of jobs"...))
	s.Files = []File{
		{Path: "/etc/margay/site", Data: []byte("site"), Mode: 0o640, UID: 3, GID: 4},
		{Path: "/etc/link", Mode: fs.ModeSymlink, Data: []byte("margay/site")},
		{Path: "/bin/tool", Mode: 0o755 | fs.ModeSetuid, Source: s.Init},
	}
	image, m := build(t, s)
	got := unpacked(t, image)
	modules := "lib/modules/" + testVersion + "/"
	for name, mode := range map[string]uint64{
		".": 0o40755, "dev": 0o40755, "proc": 0o40555, "sys": 0o40555, "run": 0o40755, "tmp": 0o41777, "etc": 0o40755,
		"init": 0o100755, "sbin": 0o40755, node.JobInit[1:]: 0o100755, "dev/console": 0o20600, "dev/null": 0o20666, "etc/margay/site": 0o100640, "etc/link": 0o120777,
		"bin/tool": 0o104755, modules + "kernel/drivers/net/virtio_net.ko": 0o100644, node.LoadOrder[1:]: 0o100644,
	} {
		if got[name].Mode != mode {
			t.Errorf("%s has mode %o, want %o", name, got[name].Mode, mode)
		}
	}
	if c := got["dev/console"]; c.Rmajor != 5 || c.Rminor != 1 {
		t.Errorf("console is %d, %d", c.Rmajor, c.Rminor)
	}
	if f := got["etc/margay/site"]; f.UID != 3 || f.GID != 4 || contentOf(t, f) != "site" || got["init"].UID != 0 {
		t.Errorf("site file %+v", f)
	}
	if contentOf(t, got["init"]) != string(programFile()) || contentOf(t, got["etc/link"]) != "margay/site" {
		t.Error("content of init or link")
	}
	if contentOf(t, got[node.JobInit[1:]]) != string(programFile())+"of jobs" {
		t.Error("content of the job init")
	}
	if contentOf(t, got[modules+"kernel/drivers/net/net_failover.ko"]) != string(moduleFile("net_failover", "failover,crc")) {
		t.Error("a module is not stored decompressed")
	}
	wantOrder := ""
	for _, p := range []string{"net/core/failover", "drivers/net/net_failover", "drivers/net/virtio_net",
		"drivers/char/hw_random/virtio-rng", "drivers/net/veth"} {
		wantOrder += "/" + modules + "kernel/" + p + ".ko\n"
	}
	if order := contentOf(t, got[node.LoadOrder[1:]]); order != wantOrder {
		t.Errorf("load order\n%swant\n%s", order, wantOrder)
	}
	checkManifest(t, m, image, len(got))
}

func checkManifest(t *testing.T, m Manifest, image []byte, files int) {
	t.Helper()
	sum := sha256.Sum256(image)
	if m.SHA256 != hex.EncodeToString(sum[:]) || m.Compressed != int64(len(image)) || m.Uncompressed <= m.Compressed || len(m.Entries) != files {
		t.Errorf("hash %s, %d of %d bytes, %d entries", m.SHA256, m.Compressed, m.Uncompressed, len(m.Entries))
	}
	if m.Kernel != testVersion || m.Arch != "amd64" || m.Source == "" || !slices.Contains(m.Lacks, "sched_ext") {
		t.Errorf("kernel %s %s %q lacks %v", m.Kernel, m.Arch, m.Source, m.Lacks)
	}
	if !slices.Equal(m.Modules, []string{"failover", "net_failover", "virtio_net", "virtio_rng", "veth"}) ||
		!slices.Equal(m.BuiltIn, []string{"virtio_pci"}) || !slices.Equal(m.Absent, []string{"virtio_console", "qemu_fw_cfg", "vxlan", "nf_tables"}) {
		t.Errorf("modules %v, built in %v, absent %v", m.Modules, m.BuiltIn, m.Absent)
	}
	data, err := json.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(data), `{"path":"/tmp","mode":"0041777","uid":0,"gid":0,"size":0}`) {
		t.Errorf("JSON %s", data)
	}
	var back Manifest
	if err := json.Unmarshal(data, &back); err != nil || !reflect.DeepEqual(back, m) {
		t.Errorf("JSON read back: %+v, %v", back, err)
	}
	list, err := List(bytes.NewReader(image))
	if err != nil || !reflect.DeepEqual(list, m.Entries) {
		t.Errorf("listed %v, %v", list, err)
	}
}

// An image depends on contents and modes only: not on times, paths or the order of its files.
func TestReproducible(t *testing.T) {
	first, second := testSpec(t), testSpec(t)
	first.Modules, second.Modules = MetalModules(), MetalModules() // with the file of drivers
	a, b := File{Path: "/a", Data: []byte("a")}, File{Path: "/b/c", Data: []byte("c")}
	first.Files, second.Files = []File{a, b}, []File{b, a}
	past := time.Unix(1e9, 0)
	if err := os.Chtimes(second.Init, past, past); err != nil {
		t.Fatal(err)
	}
	x, _ := build(t, first)
	y, _ := build(t, second)
	z, _ := build(t, first)
	if !bytes.Equal(x, y) || !bytes.Equal(x, z) {
		t.Errorf("images of %d, %d and %d bytes differ", len(x), len(y), len(z))
	}
	second.Files[0].Mode = 0o600
	if w, _ := build(t, second); bytes.Equal(x, w) {
		t.Error("a changed mode left the image the same")
	}
}

func TestModuleChoice(t *testing.T) {
	s := testSpec(t)
	s.Modules = []Module{}
	if _, m := build(t, s); len(m.Modules) != 0 {
		t.Errorf("an empty list chose %v", m.Modules)
	}
	s.Modules = MetalModules()
	image, m := build(t, s)
	if !slices.Equal(m.Modules, []string{"veth"}) || !slices.Equal(m.Drivers, []string{"failover", "net_failover", "virtio_net", "virtio_rng"}) || !slices.Contains(m.Absent, "e1000e") {
		t.Errorf("for metal: on every node %v, drivers %v, without %v", m.Modules, m.Drivers, m.Absent)
	}
	drivers, err := node.ParseDrivers([]byte(contentOf(t, unpacked(t, image)[node.Drivers[1:]])))
	if err != nil || len(drivers) != 2 || drivers[0].Name() != "virtio_net" || len(drivers[0].Modules) != 3 || drivers[1].Name() != "virtio_rng" {
		t.Errorf("the image lists %v, %v", drivers, err)
	}
	s.Modules = []Module{}
	s.Kernel.Modules = ""
	build(t, s)
	s.Modules = nil
	if _, err := Build(context.Background(), s, io.Discard); !errors.Is(err, ErrNoModule) {
		t.Errorf("a kernel without modules: %v", err)
	}
}

func TestSpecErrors(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*Spec)
		text   string
	}{
		"zero":          {func(s *Spec) { *s = Spec{} }, "kernel version"},
		"version":       {func(s *Spec) { s.Kernel.Version = "../x" }, "kernel version"},
		"architecture":  {func(s *Spec) { s.Kernel.Arch = "vax" }, "vax"},
		"no init":       {func(s *Spec) { s.Init = "" }, "init program"},
		"not a program": {func(s *Spec) { s.Init = write(t, s.Init+"x", []byte("#!/bin/sh")) }, "init program"},
		"dynamic": {func(s *Spec) {
			s.Init = write(t, s.Init+"x", elfFile(elf.EM_X86_64, elf.ET_EXEC, "", nil, elf.PT_INTERP))
		}, "dynamically linked"},
		"other machine": {func(s *Spec) {
			s.Init = write(t, s.Init+"x", elfFile(elf.EM_AARCH64, elf.ET_EXEC, "", nil, elf.PT_LOAD))
		}, "EM_AARCH64"},
		"job init": {func(s *Spec) { s.JobInit = s.Init + "x" }, "job init \""},
		"object":   {func(s *Spec) { s.Init = write(t, s.Init+"x", moduleFile("m", "")) }, "not an executable"},
	} {
		t.Run(name, func(t *testing.T) {
			s := testSpec(t)
			c.change(&s)
			_, err := Build(context.Background(), s, io.Discard)
			if !errors.Is(err, ErrSpec) || !strings.Contains(err.Error(), c.text) {
				t.Errorf("error %v", err)
			}
		})
	}
}

// A kernel that cannot unpack an image is refused when the image is built, not when it boots.
func TestKernelWithoutInitrd(t *testing.T) {
	for config, want := range map[string]string{"CONFIG_BLK_DEV_INITRD=y\n": "RD_XZ", "CONFIG_BLK_DEV_INITRD=y\nCONFIG_RD_XZ=y\n": "XZ_DEC_X86", "\n": "BLK_DEV_INITRD"} {
		root := t.TempDir()
		write(t, filepath.Join(root, "vmlinuz-1"), nil)
		write(t, filepath.Join(root, "config-1"), []byte(config))
		k, err := guestkernel.Open(filepath.Join(root, "vmlinuz-1"), amd64(t))
		if err != nil {
			t.Fatal(err)
		}
		s := testSpec(t)
		s.Kernel, s.Modules = k, []Module{}
		if _, err := Build(context.Background(), s, io.Discard); !errors.Is(err, ErrSpec) || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: error %v, want one about %s", config, err, want)
		}
		s.Plain = true
		if _, err := Build(context.Background(), s, io.Discard); (err == nil) != (want != "BLK_DEV_INITRD") {
			t.Errorf("%q, not compressed: %v", config, err)
		}
	}
}

// A plain image has the same files, and a node's files can be added to it.
func TestPlain(t *testing.T) {
	s := testSpec(t)
	image, _ := build(t, s)
	want := unpacked(t, image)
	s.Plain = true
	archive, m := build(t, s)
	got := readArchive(t, archive)
	for name, record := range got {
		if contentOf(t, record) != contentOf(t, want[name]) || record.Mode != want[name].Mode {
			t.Errorf("%s differs", name)
		}
	}
	if len(got) != len(want) || m.Compressed != m.Uncompressed || m.Compressed != int64(len(archive)) {
		t.Errorf("%d files instead of %d, manifest %+v", len(got), len(want), m)
	}
	path := filepath.Join(t.TempDir(), "image")
	if err := WriteNodeImage(write(t, path, archive), []File{{Path: "/margay/node.json", Data: []byte("{}")}}, path); err != nil {
		t.Fatal(err)
	}
	both, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if entries, err := List(bytes.NewReader(both)); err != nil || len(entries) <= len(want) {
		t.Errorf("%d files, of the image %d: %v", len(entries), len(want), err)
	}
}

// Without xz no image is compressed or unpacked, and the error says what to install.
func TestNoXZ(t *testing.T) {
	s := testSpec(t)
	image, _ := build(t, s)
	t.Setenv("PATH", t.TempDir())
	if _, err := List(bytes.NewReader(image)); errors.Is(err, ErrImage) || !errors.Is(err, exec.ErrNotFound) || !strings.Contains(err.Error(), "xz-utils") {
		t.Errorf("listing: %v", err)
	}
	if _, err := Build(context.Background(), s, io.Discard); !errors.Is(err, exec.ErrNotFound) || !strings.Contains(err.Error(), "xz-utils") {
		t.Errorf("error %v", err)
	}
	s.Plain = true
	build(t, s)
}

func TestFileErrors(t *testing.T) {
	for name, c := range map[string]struct {
		files []File
		text  string
	}{
		"relative":       {[]File{{Path: "a"}}, "absolute"},
		"unclean":        {[]File{{Path: "/a/../b"}}, "clean"},
		"slash":          {[]File{{Path: "/a/"}}, "clean"},
		"NUL":            {[]File{{Path: "/a\x00"}}, "clean"},
		"root":           {[]File{{Path: "/"}}, "root"},
		"trailer":        {[]File{{Path: "/" + cpio.Trailer}}, "name"},
		"long":           {[]File{{Path: "/" + strings.Repeat("x", maxPath)}}, "name"},
		"twice":          {[]File{{Path: "/a"}, {Path: "/a"}}, "twice"},
		"init":           {[]File{{Path: "/init"}}, "twice"},
		"two contents":   {[]File{{Path: "/a", Data: []byte{}, Source: "x"}}, "both"},
		"no source":      {[]File{{Path: "/a", Source: "/nonexistent/x"}}, "no such file"},
		"no target":      {[]File{{Path: "/a", Mode: fs.ModeSymlink}}, "target"},
		"full directory": {[]File{{Path: "/a", Mode: fs.ModeDir, Data: []byte("x")}}, "no content"},
		"full device":    {[]File{{Path: "/a", Mode: fs.ModeDevice | fs.ModeCharDevice, Data: []byte("x")}}, "no content"},
		"socket":         {[]File{{Path: "/a", Mode: fs.ModeSocket}}, "type"},
		"odd mode":       {[]File{{Path: "/a", Mode: fs.ModeAppend}}, "mode"},
		"below a file":   {[]File{{Path: "/a"}, {Path: "/a/b/c"}}, "/a is not a directory"},
	} {
		t.Run(name, func(t *testing.T) {
			s := testSpec(t)
			s.Files = c.files
			_, err := Build(context.Background(), s, io.Discard)
			var f *FileError
			if !errors.As(err, &f) || !strings.Contains(err.Error(), c.text) {
				t.Errorf("error %v", err)
			}
		})
	}
}

func TestBuildReports(t *testing.T) {
	s := testSpec(t)
	last := map[string]progress.Step{}
	s.Progress = func(step progress.Step) { last[step.Text] = step }
	image, m := build(t, s)
	if last["node image made"].Total != int64(len(image)) || last["archiving the node image"].Total != m.Uncompressed || last["compressing the node image"].Done != m.Uncompressed || last["adding module veth to the node image"].Total == 0 {
		t.Errorf("steps %v", last)
	}
	failure := errors.New("disk full")
	if _, err := Build(context.Background(), s, failingWriter{failure}); !errors.Is(err, failure) {
		t.Errorf("error %v", err)
	}
	ended, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := Build(ended, s, io.Discard); !errors.Is(err, context.Canceled) {
		t.Errorf("error %v", err)
	}
}

type failingWriter struct{ err error }

func (w failingWriter) Write([]byte) (int, error) { return 0, w.err }

func TestModes(t *testing.T) {
	for unix := range uint32(1 << 16) {
		mode := goMode(unix)
		if mode.Type() == fs.ModeIrregular {
			continue
		}
		if back := unixMode(mode); back != unix {
			t.Fatalf("%o became %v and %o", unix, mode, back)
		}
	}
}
