package launch

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"debug/elf"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/klauspost/compress/zstd"

	"margay/cluster/launch/regular"
	"margay/kernel/abi/archive"
)

// write makes a file with its folders.
func write(t *testing.T, mode fs.FileMode, text string, path ...string) string {
	t.Helper()
	name := filepath.Join(path...)
	if err := os.MkdirAll(filepath.Dir(name), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(name, []byte(text), mode); err != nil {
		t.Fatal(err)
	}
	return name
}

func paths(f *Files) (list []string) {
	for _, file := range f.List {
		list = append(list, file.Path)
	}
	return list
}

// compile makes a program or a library of C source.
func compile(t *testing.T, source, out string, args ...string) {
	t.Helper()
	if _, err := exec.LookPath("gcc"); err != nil {
		t.Skip("this test needs gcc")
	}
	c := write(t, 0o600, source, t.TempDir(), "x.c")
	if text, err := exec.Command("gcc", append([]string{"-o", out, c}, args...)...).CombinedOutput(); err != nil {
		t.Fatalf("gcc: %v\n%s", err, text)
	}
}

// A dynamically linked program takes its loader along and its libraries, including indirect ones.
func TestLibraries(t *testing.T) {
	dir := t.TempDir()
	inner, outer, program := filepath.Join(dir, "libinner.so"), filepath.Join(dir, "libouter.so"), filepath.Join(dir, "program")
	compile(t, "int inner(void) { return 7; }", inner, "-shared", "-fPIC", "-Wl,-soname,libinner.so")                       // found by its name
	compile(t, "int inner(void); int outer(void) { return inner(); }", outer, "-shared", "-fPIC", inner, "-Wl,-rpath,"+dir) // found by its path
	compile(t, "int outer(void); int main(void) { return outer(); }", program, outer, "-Wl,-rpath,"+dir)
	f, err := Collect(program, nil)
	if err != nil {
		t.Fatal(err)
	}
	if f.Program != program || f.Arch != runtime.GOARCH {
		t.Errorf("program %s for %s", f.Program, f.Arch)
	}
	list := paths(f)
	for _, want := range []string{program, inner, outer} {
		if !slices.Contains(list, want) {
			t.Errorf("%s is not in %v", want, list)
		}
	}
	if !strings.Contains(strings.Join(list, " "), "/libc.so") || !strings.Contains(strings.Join(list, " "), "/ld-linux") {
		t.Errorf("the C library or the loader is not in %v", list)
	}
	if err := os.Remove(inner); err != nil {
		t.Fatal(err)
	}
	if _, err := Collect(program, nil); err == nil || !strings.Contains(err.Error(), program+": library libinner.so, which "+outer+" needs: not found") {
		t.Errorf("a library is missing: %v", err)
	}
	if err := os.Remove(outer); err != nil {
		t.Fatal(err)
	}
	if _, err := Collect(program, nil); err == nil || !strings.Contains(err.Error(), "library "+outer+", which "+program+" needs: not found") {
		t.Errorf("a library is missing: %v", err)
	}
}

func TestStaticProgram(t *testing.T) {
	program := filepath.Join(t.TempDir(), "program")
	compile(t, "int main(void) { return 0; }", program, "-static")
	f, err := Collect(program, nil)
	if err != nil || len(f.List) != 1 {
		t.Errorf("files %v, %v", paths(f), err)
	}
}

// A program for another kind of machine is for the machine to refuse, which says so better.
func TestOtherArchitecture(t *testing.T) {
	dir := t.TempDir()
	for machine, arch := range map[elf.Machine]string{elf.EM_AARCH64: "arm64", elf.EM_RISCV: "riscv64", elf.EM_SPARCV9: "EM_SPARCV9"} {
		f, err := Collect(write(t, 0o700, string(elfHeader(machine, elf.ET_EXEC)), dir, arch), nil)
		if err != nil || f.Arch != arch {
			t.Errorf("%v: %+v, %v", machine, f, err)
		}
	}
	if _, err := Collect(write(t, 0o700, string(elfHeader(elf.EM_X86_64, elf.ET_REL)), dir, "object"), nil); !errors.Is(err, ErrNotExecutable) {
		t.Errorf("an object file: %v", err)
	}
}

// elfHeader is a 64-bit ELF file that is nothing but its header.
func elfHeader(machine elf.Machine, kind elf.Type) []byte {
	h := make([]byte, 64)
	copy(h, elf.ELFMAG)
	h[elf.EI_CLASS], h[elf.EI_DATA], h[elf.EI_VERSION] = byte(elf.ELFCLASS64), byte(elf.ELFDATA2LSB), byte(elf.EV_CURRENT)
	h[16], h[18], h[19], h[20], h[52] = byte(kind), byte(machine), byte(machine>>8), 1, 64
	return h
}

func TestScripts(t *testing.T) {
	dir := t.TempDir()
	static := write(t, 0o700, string(elfHeader(elf.EM_AARCH64, elf.ET_EXEC)), dir, "bin", "interpreter")
	t.Setenv("PATH", filepath.Join(dir, "bin"))
	env := write(t, 0o700, string(elfHeader(elf.EM_AARCH64, elf.ET_EXEC)), dir, "env")
	chain := write(t, 0o700, "#!"+static+"\n", dir, "s0")
	for _, name := range []string{"s1", "s2", "s3", "s4"} {
		chain = write(t, 0o700, "#!"+chain+"\n", dir, name)
	}
	broken := write(t, 0o700, "#! no/such/interpreter -x\n", dir, "broken")
	write(t, 0o600, "text\n", dir, "text")
	cases := []struct {
		name, text string
		want       []string // besides the script
		err        error
	}{
		{"plain", "#!" + static + "\necho\n", []string{static}, nil},
		{"argument", "#! " + static + " -x\n", []string{static}, nil},
		{"no end of line", "#!" + static, []string{static}, nil},
		{"env", "#!" + env + " interpreter -x\n", []string{env, static}, nil},
		{"env option", "#!" + env + " -S interpreter\n", []string{env}, nil},
		{"env of nothing", "#!" + env + " no-such-program\n", nil, ErrNotFound},
		{"nothing", "#!\necho\n", nil, ErrNotExecutable},
		{"spaces", "#!  \n", nil, ErrNotExecutable},
		{"missing", "#!/no/such/interpreter\n", nil, ErrNotFound},
		{"missing in a chain", "#!" + broken + "\n", nil, ErrNotFound},
		{"folder", "#!" + dir + "\n", nil, ErrNotExecutable},
		{"no program", "#!" + filepath.Join(dir, "text") + "\n", nil, ErrNotExecutable},
		{"chain", "#!" + filepath.Join(dir, "s2") + "\n", []string{filepath.Join(dir, "s2"), filepath.Join(dir, "s1"), filepath.Join(dir, "s0"), static}, nil},
		{"long chain", "#!" + chain + "\n", nil, ErrNotExecutable},
		{"itself", "#!" + filepath.Join(dir, "script") + "\n", nil, ErrNotExecutable},
		{"text", "echo\n", nil, ErrNotExecutable},
		{"empty", "", nil, ErrNotExecutable},
		{"broken", "\x7fELF", nil, ErrNotExecutable},
	}
	for _, k := range cases {
		t.Run(k.name, func(t *testing.T) {
			script := write(t, 0o700, k.text, dir, "script")
			f, err := Collect(script, nil)
			if !errors.Is(err, k.err) || (err == nil) != (k.err == nil) {
				t.Fatalf("error %v", err)
			}
			if err == nil && (!slices.Equal(paths(f), append([]string{script}, k.want...)) || f.Arch != "arm64") {
				t.Errorf("%v for %s", paths(f), f.Arch)
			}
		})
	}
}

// An interpreter is found where Linux finds it: from the folder in which the program is started.
func TestRelativeInterpreter(t *testing.T) {
	dir := t.TempDir()
	t.Chdir(dir)
	interpreter := write(t, 0o700, string(elfHeader(elf.EM_AARCH64, elf.ET_EXEC)), dir, "bin", "x")
	f, err := Collect(write(t, 0o700, "#!bin/x\n", dir, "script"), nil)
	if err != nil || len(f.List) != 2 || f.List[1].Path != interpreter {
		t.Errorf("files %+v, %v", f, err)
	}
}

func TestLookUp(t *testing.T) {
	dir := t.TempDir()
	t.Chdir(dir)
	program := write(t, 0o700, string(elfHeader(elf.EM_AARCH64, elf.ET_EXEC)), dir, "program")
	write(t, 0o600, "x", dir, "plain")
	cases := []struct {
		name, path string
		err        error
	}{
		{"./program", "/usr/bin", nil},
		{"program", dir, nil},
		{"program", ".", nil},
		{"program", "/usr/bin", ErrNotFound},
		{"no-such-program", dir, ErrNotFound},
		{"./no-such-program", dir, ErrNotFound},
		{"./plain", dir, ErrNotExecutable},
		{dir, dir, ErrNotExecutable},
		{"./loop", "/usr/bin", ErrNotExecutable},
		{"loop", "/usr/bin:" + dir, ErrNotExecutable},
		{"loop", "/usr/bin", ErrNotFound},
	}
	if err := os.Symlink("loop", filepath.Join(dir, "loop")); err != nil {
		t.Fatal(err)
	}
	for _, k := range cases {
		t.Setenv("PATH", k.path)
		f, err := Collect(k.name, nil)
		if !errors.Is(err, k.err) || (err == nil) != (k.err == nil) {
			t.Errorf("%s: %v", k.name, err)
		}
		if err == nil && f.Program != program {
			t.Errorf("%s is %s", k.name, f.Program)
		}
		if err != nil && !strings.HasPrefix(err.Error(), k.name+": ") {
			t.Errorf("the error does not name %s: %v", k.name, err)
		}
		if err != nil && strings.Contains(err.Error(), "loop of symbolic links") != (strings.HasSuffix(k.name, "loop") && k.err == ErrNotExecutable) {
			t.Errorf("%s in %s: %v", k.name, k.path, err)
		}
	}
}

// Files of a job keep their names and modes, and links are followed, including links to folders.
func TestWith(t *testing.T) {
	dir := t.TempDir()
	program := write(t, 0o700, string(elfHeader(elf.EM_AARCH64, elf.ET_EXEC)), dir, "program")
	file := write(t, 0o640, "text", dir, "data", "sub", "file")
	link := func(target, name string) {
		t.Helper()
		if err := os.Symlink(target, filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	link("sub/file", "data/link")
	link("sub", "data/folder")
	link("data", "all")
	f, err := Collect(program, []string{filepath.Join(dir, "all"), file, file})
	if err != nil {
		t.Fatal(err)
	}
	var packed bytes.Buffer
	var last int64
	if err := f.Archive(&packed, nil, func(done int64) { last = done }); err != nil {
		t.Fatal(err)
	}
	if size := int64(64 + 4*len("text")); last != size || f.Size() < size {
		t.Errorf("%d bytes were read, size %d", last, f.Size())
	}
	got := unpack(t, &packed)
	want := map[string]string{"program": string(elfHeader(elf.EM_AARCH64, elf.ET_EXEC)), "all": "/", "all/sub": "/", "all/sub/file": "text",
		"all/link": "text", "all/folder": "/", "all/folder/file": "text", "data/sub/file": "text"}
	for name, text := range want {
		if name = strings.TrimPrefix(filepath.Join(dir, name), "/"); got[name] != text {
			t.Errorf("%s is %q", name, got[name])
		}
		delete(got, name)
	}
	if len(got) != 0 {
		t.Errorf("more is there: %v", got)
	}
}

// Programs are put where nodes of this host find them, and other files are not.
func TestLend(t *testing.T) {
	dir, lent := t.TempDir(), t.TempDir()
	if err := os.Chmod(lent, 0o700); err != nil {
		t.Fatal(err)
	}
	code := string(elfHeader(elf.EM_AARCH64, elf.ET_EXEC)) + strings.Repeat("x", archive.MinSize)
	program := write(t, 0o700, code, dir, "program")
	f, err := Collect(program, []string{write(t, 0o600, strings.Repeat("1", archive.MinSize), dir, "data")})
	if err != nil {
		t.Fatal(err)
	}
	f.Lent = lent
	contents, _, err := f.Pack()
	if err != nil || len(contents) != 2 {
		t.Fatalf("%d contents, %v", len(contents), err)
	}
	files, err := os.ReadDir(lent)
	if err != nil || len(files) != 1 || files[0].Name() != fmt.Sprintf("%x", sha256.Sum256([]byte(code))) {
		t.Errorf("lent are %v, %v", files, err)
	}
	f.Lent = filepath.Join(lent, "none")
	if f.lend(); len(f.contents) != 2 {
		t.Error("without a folder there are no contents")
	}
}

// Contents that no node lacks stay here, and so do files that are too small to be asked for.
func TestContents(t *testing.T) {
	dir := t.TempDir()
	program := write(t, 0o700, string(elfHeader(elf.EM_AARCH64, elf.ET_EXEC))+strings.Repeat("x", archive.MinSize), dir, "program")
	first := write(t, 0o600, strings.Repeat("1", archive.MinSize), dir, "1")
	small := write(t, 0o600, "small", dir, "small")
	second := write(t, 0o600, strings.Repeat("2", archive.MinSize), dir, "2")
	f, err := Collect(program, []string{first, small, second})
	if err != nil {
		t.Fatal(err)
	}
	contents := f.Contents()
	if digest := sha256.Sum256([]byte(strings.Repeat("1", archive.MinSize))); len(contents) != 3 || !bytes.Equal(contents[1], digest[:]) {
		t.Fatalf("%x", contents)
	}
	var packed bytes.Buffer
	if err := f.Archive(&packed, []uint32{0, 2}, func(int64) {}); err != nil {
		t.Fatal(err)
	}
	sizes := make(map[string]int)
	for name, text := range unpack(t, &packed) {
		sizes[filepath.Base(name)] = len(text)
	}
	if want := map[string]int{"program": 64 + archive.MinSize, "1": 0, "small": 5, "2": archive.MinSize}; !maps.Equal(sizes, want) {
		t.Errorf("%v, not %v", sizes, want)
	}
	if err := os.Remove(second); err != nil {
		t.Fatal(err)
	}
	if contents := f.Contents(); len(contents) != 2 {
		t.Errorf("%d contents, one of them of a file that is gone", len(contents))
	}
}

// Only so many contents are asked for.
func TestManyContents(t *testing.T) {
	dir := t.TempDir()
	program := write(t, 0o700, string(elfHeader(elf.EM_AARCH64, elf.ET_EXEC)), dir, "program")
	for i := range archive.MaxContents + 10 {
		write(t, 0o600, strings.Repeat("x", archive.MinSize), dir, "data", strconv.Itoa(i))
	}
	f, err := Collect(program, []string{filepath.Join(dir, "data")})
	if err != nil {
		t.Fatal(err)
	}
	if n := len(f.Contents()); n != archive.MaxContents {
		t.Errorf("%d contents, not %d", n, archive.MaxContents)
	}
	if err := f.Archive(io.Discard, nil, func(int64) {}); err != nil {
		t.Error(err)
	}
}

// unpack returns the files of an archive by name; folders are "/".
func unpack(t *testing.T, r io.Reader) map[string]string {
	t.Helper()
	z, err := zstd.NewReader(r)
	if err != nil {
		t.Fatal(err)
	}
	defer z.Close()
	files := make(map[string]string)
	for a := tar.NewReader(z); ; {
		h, err := a.Next()
		if err == io.EOF {
			return files
		}
		if err != nil {
			t.Fatal(err)
		}
		if _, twice := files[h.Name]; twice {
			t.Errorf("%s is there twice", h.Name)
		}
		text, err := io.ReadAll(a)
		if err != nil {
			t.Fatal(err)
		}
		files[h.Name] = string(text)
		if h.Typeflag == tar.TypeDir {
			files[h.Name] = "/"
		}
	}
}

func TestBadWith(t *testing.T) {
	dir := t.TempDir()
	program := write(t, 0o700, string(elfHeader(elf.EM_AARCH64, elf.ET_EXEC)), dir, "program")
	for name, target := range map[string]string{"loop/x/up": "..", "a/b": "../b", "b/a": "../a", "dangling/x": "nowhere"} {
		if err := os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink(target, filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	cases := map[string]string{
		"/proc/self/status":            "cannot take /proc/self/status along: /proc on a node is the node's own",
		"/etc/passwd":                  "cannot take /etc/passwd along: /etc/passwd on a node is the node's own",
		"/etc/../etc/group":            "cannot take /etc/group along: /etc/group on a node is the node's own",
		"/dev":                         "cannot take /dev along: /dev on a node is the node's own",
		"/dev/../sys/kernel":           "cannot take /sys/kernel along: /sys on a node is the node's own",
		filepath.Join(dir, "nothing"):  "no such file or directory",
		filepath.Join(dir, "dangling"): "no such file or directory",
		filepath.Join(dir, "loop"):     "it leads back to " + filepath.Join(dir, "loop"),
		filepath.Join(dir, "a"):        "along: it leads back to " + filepath.Join(dir, "a"),
	}
	for with, want := range cases {
		if _, err := Collect(program, []string{with}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", with, err)
		}
	}
}

// A file that has become a FIFO ends the copy, which does not wait for a writer.
func TestFileBecomesFIFO(t *testing.T) {
	path := write(t, 0o700, string(elfHeader(elf.EM_AARCH64, elf.ET_EXEC)), t.TempDir(), "program")
	f, err := Collect(path, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(os.Remove(path), syscall.Mkfifo(path, 0o600)); err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- f.Archive(io.Discard, nil, func(int64) {}) }()
	select {
	case err := <-done:
		if !errors.Is(err, regular.ErrNot) || !strings.Contains(err.Error(), path) {
			t.Errorf("error %v", err)
		}
	case <-time.After(20 * time.Second):
		t.Error("it waits for a writer")
	}
}

// The size of files is what a RAM disk needs, and never wraps.
func TestSize(t *testing.T) {
	const page, exa = 4096, 1 << 60
	for _, test := range []struct {
		sizes []int64
		want  int64
	}{
		{nil, 0},
		{[]int64{0, 1, page, page + 1}, page + 2*page + 2*page + 3*page},
		{[]int64{5 * exa}, 5*exa + page},
		{[]int64{5 * exa, 5 * exa}, math.MaxInt64 / page * page},
		{[]int64{math.MaxInt64}, math.MaxInt64 / page * page},
		{[]int64{math.MaxInt64, math.MaxInt64, math.MaxInt64}, math.MaxInt64 / page * page},
	} {
		f := new(Files)
		for _, size := range test.sizes {
			f.List = append(f.List, File{Size: size})
		}
		if got := f.Size(); got != test.want {
			t.Errorf("%d: %d, not %d", test.sizes, got, test.want)
		}
	}
}

// Links that double with each level make no endless list: 2^20 paths lead to one file here.
func TestDoublingLinks(t *testing.T) {
	const levels, most = 20, 1000 // Linux follows 40 links in a path
	dir := t.TempDir()
	for level := range levels {
		for _, name := range []string{"a", "b"} {
			write(t, 0o600, "", dir, fmt.Sprint(level), "file")
			if err := os.Symlink(fmt.Sprintf("../%d", level+1), filepath.Join(dir, fmt.Sprint(level), name)); err != nil {
				t.Fatal(err)
			}
		}
	}
	write(t, 0o600, "", dir, fmt.Sprint(levels), "file")
	f := &Files{have: make(map[string]bool), most: most}
	err := f.addTree(filepath.Join(dir, "0"))
	if err == nil || !strings.Contains(err.Error(), "at most 1000 files and folders go along") || len(f.List) != most {
		t.Errorf("%d files, %v", len(f.List), err)
	}
	f = &Files{have: make(map[string]bool), most: 2 * (1 + 2 + 4 + 8 + 16)}
	if err := f.addTree(filepath.Join(dir, fmt.Sprint(levels-4))); err != nil || len(f.List) != f.most {
		t.Errorf("%d files of the last levels, %v", len(f.List), err)
	}
}

// A file that changes while it is read ends the copy, and does not become another one on the nodes.
func TestFileShrinks(t *testing.T) {
	dir := t.TempDir()
	f, err := Collect(write(t, 0o700, string(elfHeader(elf.EM_AARCH64, elf.ET_EXEC))+"more", dir, "program"), nil)
	if err != nil {
		t.Fatal(err)
	}
	write(t, 0o700, "less", dir, "program")
	if err := f.Archive(io.Discard, nil, func(int64) {}); err == nil || !strings.Contains(err.Error(), "program became shorter while it was read") {
		t.Errorf("error %v", err)
	}
}

// FuzzCollect: a program file with any content is accepted or refused.
func FuzzCollect(f *testing.F) {
	f.Add(elfHeader(elf.EM_AARCH64, elf.ET_EXEC))
	f.Add([]byte("#!/bin/sh\n"))
	f.Add([]byte("#! x \x00\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		path := write(t, 0o700, string(data), t.TempDir(), "program")
		files, err := Collect(path, nil)
		if err != nil {
			return
		}
		for _, file := range files.List {
			if !filepath.IsAbs(file.Path) {
				t.Errorf("file %q", file.Path)
			}
		}
	})
}

// A folder is not a program, nor is this file.
func TestFolderAsProgram(t *testing.T) {
	for _, name := range []string{".", "..", "./", t.TempDir()} {
		if _, err := Collect(name, nil); !errors.Is(err, ErrNotExecutable) || err.Error() != name+": cannot be executed: it is a folder" {
			t.Errorf("%q: %v", name, err)
		}
	}
}

// A file that is not a program is refused with the reason and the exit status of a shell.
func TestNoProgram(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("PATH", dir)
	env := write(t, 0o700, string(elfHeader(elf.EM_AARCH64, elf.ET_EXEC)), dir, "env")
	long := elfHeader(elf.EM_AARCH64, elf.ET_EXEC)
	long[33], long[56] = 16, 2 // two segments, 4096 bytes on
	text := write(t, 0o600, "text\n", dir, "text")
	const noScript = "it is neither an ELF file nor a script (with #! at the beginning of its first line)"
	for _, k := range []struct {
		name, text string
		code       int
		want       string // after the name of the file
	}{
		{"interpreter", "#!/no/such/interpreter -x\n", 127, "the interpreter that its first line names, /no/such/interpreter: command not found"},
		{"text", "#!" + text + "\n", 126, "the interpreter that its first line names, " + text + ": cannot be executed: permission denied"},
		{"folder", "#!" + dir + "\n", 126, "the interpreter that its first line names, " + dir + ": cannot be executed: it is a folder"},
		{"env", "#!" + env + " no-such-program\n", 127, "the interpreter that its first line names, no-such-program: command not found"},
		{"nothing", "", 126, "cannot be executed: " + noScript},
		{"line", "echo\n", 126, "cannot be executed: " + noScript},
		{"magic", "\x7fELF", 126, "cannot be executed: it is an ELF file that is truncated or damaged"},
		{"header", string(elfHeader(elf.EM_X86_64, elf.ET_EXEC)[:63]), 126, "cannot be executed: it is an ELF file that is truncated or damaged"},
		{"segments", string(long), 126, "cannot be executed: it is an ELF file that is truncated or damaged"},
	} {
		path := write(t, 0o700, k.text, dir, "programs", k.name)
		_, err := Collect(path, nil)
		if err == nil || ExitStatus(err) != k.code || err.Error() != path+": "+k.want {
			t.Errorf("%s: status %d, %v", k.name, ExitStatus(err), err)
		}
	}
}
