package launch

import (
	"archive/tar"
	"bufio"
	"bytes"
	"cmp"
	"crypto/sha256"
	"debug/elf"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/klauspost/compress/zstd"

	"margay/cluster/control"
	"margay/cluster/launch/ldso"
	"margay/cluster/launch/lend"
	"margay/cluster/launch/regular"
	"margay/kernel/abi/archive"
	"margay/kernel/abi/node"
)

// File is a file that a job takes along. Its name in the job's root is its absolute path here,
// unless As has another one.
type File struct {
	Path string // absolute
	As   string // the name in the job's root, if it is not Path
	Link string // target of a symbolic link; empty: it is none
	Mode fs.FileMode
	Size int64 // bytes
	Code bool  // it is executed: the program, its interpreter, or a library

	content *content // nil: nodes are not asked for it

	inside bool  // its data are in the tar file Path
	at     int64 // where they begin there
}

// name returns the name in the job's root.
func (file *File) name() string { return cmp.Or(file.As, file.Path) }

// content is the content of a file that nodes may have already.
type content struct {
	digest archive.Digest
	index  int // among the contents of the job
}

// Files are what a job takes along.
type Files struct {
	Program  string   // absolute path of the executable
	Programs []string // the same of each program of the job, that one first
	Arch     string   // that it is for, as Go names it
	List     []File
	// Parallel is what makes the program one of MPI or PMI: a library or a function; empty: nothing
	// does. PMI1 reports whether its ranks find each other by PMI 1, like the ranks of MPICH.
	Parallel string
	PMI1     bool

	// Digests is the file that keeps the digests of programs and libraries for later jobs, in a
	// folder that only root and this user can change. Empty: there is none.
	Digests string

	// Lent is the folder of the machine for programs and libraries that its nodes find there
	// (package lend). Empty, or without such a folder, they get copies.
	Lent string

	host     bool           // ranks see the folders of this host in which programs are: nothing in them goes along
	root     map[string]int // by name: files of a root of its own, as indexes of List; nil: there is none
	rootPath string         // where its programs are, before PATH of this host
	have     map[string]bool
	elves    []string // the program, and the interpreters of scripts: all that the processor executes
	loader   string   // that they need; empty: none
	search   ldso.Search
	most     int // files and folders

	packing  sync.Once // for all jobs that take the files along
	contents [][]byte
	ahead    []byte
	unpacked error
}

// Errors about programs.
var (
	ErrNotFound      = errors.New("command not found")
	ErrNotExecutable = errors.New("cannot be executed")
)

// hidden are the folders that the node provides itself.
var hidden = []string{"/dev", "/proc", "/sys"}

// made are the files that the node makes for a job: the name of its user, and the nodes' names.
var made = []string{"/etc/group", "/etc/hostname", "/etc/hosts", "/etc/nsswitch.conf", "/etc/passwd"}

// arches names processors as ELF does.
var arches = map[elf.Machine]string{elf.EM_X86_64: "amd64", elf.EM_AARCH64: "arm64", elf.EM_RISCV: "riscv64", elf.EM_386: "386", elf.EM_ARM: "arm"}

// Collect finds the program as a shell does, and everything it needs to run where there is nothing
// else: its libraries, its interpreter when it is a script, and the files and folders in with, with
// the libraries that programs and libraries among them need.
func Collect(program string, with []string) (*Files, error) {
	return CollectAll([]string{program}, with)
}

// CollectAll is Collect for a job of several programs, for one kind of processor. Program is the
// first one then, and Programs has all.
func CollectAll(programs, with []string) (*Files, error) { return collect(programs, with, false) }

// CollectHost is CollectAll for a job whose ranks see the host's programs, libraries and
// configuration (node.HostFolders). Other files go along.
func CollectHost(programs, with []string) (*Files, error) { return collect(programs, with, true) }

func collect(programs, with []string, host bool) (*Files, error) {
	f := &Files{host: host, have: make(map[string]bool), most: maxFiles}
	f.search.LibraryPath, f.search.Preload = os.Getenv("LD_LIBRARY_PATH"), os.Getenv("LD_PRELOAD")
	for _, program := range programs {
		path, err := LookUp(program)
		if err != nil {
			return nil, err
		}
		arch := f.Arch
		f.Program = path // for errors
		if err := f.addProgram(path, 0); err != nil {
			return nil, err
		}
		if err := f.alsoProgram(arch); err != nil {
			return nil, err
		}
	}
	f.Program = f.Programs[0]
	own := len(f.List)
	f.isCode(0)
	for _, name := range with {
		if err := f.addTree(name); err != nil {
			return nil, err
		}
	}
	all := len(f.List)
	for _, file := range f.List[own:] {
		if err := f.addNeeded(file); err != nil {
			return nil, err
		}
	}
	f.isCode(all)
	return f, nil
}

// alsoProgram adds Program to the programs of the job. Those that came before it are for arch.
func (f *Files) alsoProgram(arch string) error {
	if arch != "" && f.Arch != arch {
		return fmt.Errorf("%s: %w with %s: they are for %s and %s", f.Program, ErrNotExecutable, f.Programs[0], f.Arch, arch)
	}
	f.Programs = append(f.Programs, f.Program)
	return nil
}

// isCode notes that the files from first on are executed.
func (f *Files) isCode(first int) {
	for i := range f.List[first:] {
		f.List[first+i].Code = true
	}
}

// Size is how many bytes the files take in a RAM disk, at most 2^63 - 4096: sparse files may say
// that they have more.
func (f *Files) Size() int64 {
	const page = 4096
	var pages int64
	for _, file := range f.List {
		pages = min(pages+file.Size/page+min(1, file.Size%page)+1, math.MaxInt64/page)
	}
	return pages * page
}

// LookUp finds a program as a shell does, and returns its absolute path. The error is ErrNotFound
// or ErrNotExecutable.
func LookUp(program string) (string, error) {
	path, err := exec.LookPath(program)
	switch {
	case errors.Is(err, exec.ErrDot):
		// The shell would not find it either, but the user has named it.
	case errors.Is(err, syscall.EISDIR):
		return "", fmt.Errorf("%s: %w: it is a folder", program, ErrNotExecutable)
	case errors.Is(err, fs.ErrPermission):
		return "", fmt.Errorf("%s: %w: permission denied", program, ErrNotExecutable)
	case program == "." || program == "..":
		return "", fmt.Errorf("%s: %w: it is a folder", program, ErrNotExecutable)
	case err != nil:
		if _, gone := os.Getwd(); gone != nil && strings.Contains(program, "/") && !filepath.IsAbs(program) {
			return "", fmt.Errorf("%s: %w: the current folder cannot be used: %w", program, ErrNotFound, gone)
		}
		if loop := findLoop(program); loop != "" {
			return "", fmt.Errorf("%s: %w: %s is a loop of symbolic links", program, ErrNotExecutable, loop)
		}
		return "", fmt.Errorf("%s: %w", program, ErrNotFound)
	}
	return filepath.Abs(path)
}

// findLoop returns the first path at which a program is looked for and is a loop of symbolic links,
// or an empty string.
func findLoop(program string) string {
	paths := []string{program}
	if !strings.Contains(program, "/") {
		paths = nil
		for _, folder := range filepath.SplitList(os.Getenv("PATH")) {
			paths = append(paths, filepath.Join(folder, program))
		}
	}
	for _, path := range paths {
		if _, err := os.Stat(path); errors.Is(err, syscall.ELOOP) {
			return path
		}
	}
	return ""
}

// maxInterpreters bounds the chain of scripts that interpret scripts, as Linux does.
const maxInterpreters = 4

// addProgram adds an executable with what it needs.
func (f *Files) addProgram(path string, depth int) error {
	if depth > maxInterpreters {
		return fmt.Errorf("%s: %w: too many interpreters", f.Program, ErrNotExecutable)
	}
	if err := f.add(path); err != nil {
		return err
	}
	file, err := regular.Open(path)
	if err != nil {
		return fmt.Errorf("%s: %w: %w", path, ErrNotExecutable, err)
	}
	defer file.Close()
	// A file without a line is not a script.
	line, _ := bufio.NewReader(io.LimitReader(file, 4096)).ReadString('\n')
	if script, ok := strings.CutPrefix(line, "#!"); ok {
		return f.addInterpreter(path, strings.Fields(script), depth)
	}
	program, err := elf.NewFile(file)
	if err != nil && strings.HasPrefix(line, elf.ELFMAG) {
		return fmt.Errorf("%s: %w: it is an ELF file that is truncated or damaged", path, ErrNotExecutable)
	}
	if err != nil {
		return fmt.Errorf("%s: %w: it is neither an ELF file nor a script (with #! at the beginning of its first line)", path, ErrNotExecutable)
	}
	defer program.Close()
	if program.Type != elf.ET_EXEC && program.Type != elf.ET_DYN {
		return fmt.Errorf("%s: %w: it is an ELF file of type %v", path, ErrNotExecutable, program.Type)
	}
	if f.Arch = arches[program.Machine]; f.Arch == "" {
		f.Arch = program.Machine.String()
	}
	f.elves = append(f.elves, path)
	if found, pmi1 := parallel(program); f.Parallel == "" {
		f.Parallel, f.PMI1 = found, pmi1
	}
	return f.addLibraries(path)
}

// addInterpreter adds the interpreter of a script, whose first line has the words.
func (f *Files) addInterpreter(script string, words []string, depth int) error {
	if len(words) == 0 {
		return fmt.Errorf("%s: %w: its first line names no interpreter", script, ErrNotExecutable)
	}
	interpreter, err := filepath.Abs(words[0]) // Linux does not look into PATH for it
	if err != nil {
		return err
	}
	if _, err := LookUp(interpreter); err != nil {
		return noInterpreter(script, err)
	}
	if err := f.addProgram(interpreter, depth+1); err != nil {
		return err
	}
	if f.host {
		return nil // env finds its program on the node
	}
	if filepath.Base(words[0]) == "env" && len(words) > 1 && !strings.HasPrefix(words[1], "-") {
		path, err := LookUp(words[1])
		if err != nil {
			return noInterpreter(script, err)
		}
		return f.addProgram(path, depth+1)
	}
	return nil
}

// noInterpreter names the script whose interpreter is missing.
func noInterpreter(script string, err error) error {
	return fmt.Errorf("%s: the interpreter that its first line names, %w", script, err)
}

// addTree adds a file, or a folder with all that is in it.
func (f *Files) addTree(name string) error {
	path, err := filepath.Abs(name)
	if err != nil {
		return err
	}
	return f.addBelow(path, nil)
}

// addBelow adds a file, or a folder with all that is in it. around are the folders that it is in,
// without symbolic links.
func (f *Files) addBelow(path string, around []string) error {
	if err := f.add(path); err != nil {
		return err
	}
	real, err := filepath.EvalSymlinks(path)
	if err != nil {
		return fmt.Errorf("cannot take %s along: %w", path, err)
	}
	if slices.Contains(around, real) {
		return fmt.Errorf("cannot take %s along: it leads back to %s", path, real)
	}
	if err := notHidden(real); err != nil {
		return err
	}
	entries, err := os.ReadDir(real)
	if errors.Is(err, syscall.ENOTDIR) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("cannot take %s along: %w", path, err)
	}
	for _, entry := range entries {
		if err := f.addBelow(filepath.Join(path, entry.Name()), append(slices.Clip(around), real)); err != nil {
			return err
		}
	}
	return nil
}

// notHidden refuses what could not be seen on a node.
func notHidden(path string) error {
	for _, dir := range hidden {
		if path == dir || strings.HasPrefix(path, dir+"/") {
			return fmt.Errorf("cannot take %s along: %s on a node is the node's own", path, dir)
		}
	}
	return nil
}

// maxFiles is how many files and folders go along at most. In a RAM disk a million take 4 GiB when
// they are empty.
const maxFiles = 1_000_000

// add adds one file or folder. Symbolic links are followed.
func (f *Files) add(path string) error {
	name := filepath.Clean(path) // on a node, where no link changes the meaning of ".."
	if f.have[name] && f.root == nil {
		return nil
	}
	if err := notHidden(name); err != nil {
		return err
	}
	if slices.Contains(made, name) {
		return fmt.Errorf("cannot take %s along: %s on a node is the node's own; take a copy with another name", path, name)
	}
	if len(f.List) == f.most {
		return fmt.Errorf("cannot take %s along: at most %d files and folders go along; each symbolic link to a folder counts with all that is in it",
			path, f.most)
	}
	info, err := os.Stat(path)
	if err != nil {
		return fmt.Errorf("cannot take %s along: %w", path, err)
	}
	if !info.Mode().IsRegular() && !info.IsDir() {
		return fmt.Errorf("cannot take %s along: it is neither a file nor a folder", path)
	}
	if f.root != nil {
		return f.addToRoot(File{Path: path, As: name, Mode: info.Mode(), Size: size(info)})
	}
	f.have[name] = true
	if f.host && ofHost(name) {
		real, err := filepath.EvalSymlinks(path)
		if err != nil || ofHost(real) {
			return err
		}
		return f.add(real) // the host's link leads there
	}
	f.List = append(f.List, File{Path: path, Mode: info.Mode(), Size: size(info)})
	return nil
}

// ofHost reports whether a path without ".." is in a folder of node.HostFolders.
func ofHost(path string) bool {
	top, _, _ := strings.Cut(strings.TrimPrefix(path, "/"), "/")
	return slices.Contains(node.HostFolders, top)
}

func size(info fs.FileInfo) int64 {
	if info.IsDir() {
		return 0
	}
	return info.Size()
}

// Contents returns the digests of files that nodes may have already: of the largest, if there are
// too many. A file that cannot be read has none: Archive will say so.
func (f *Files) Contents() (list [][]byte) {
	digests := readDigests(f.Digests, time.Now())
	for _, file := range f.named() {
		digest, err := digests.of(file)
		if err != nil {
			continue
		}
		file.content = &content{digest: digest, index: len(list)}
		list = append(list, digest[:])
	}
	digests.keep()
	return list
}

// lend puts programs and libraries that digests name where nodes of this host find them. Whatever
// prevents it costs copies on the nodes. Of other files jobs have copies in any case.
func (f *Files) lend() {
	folder, err := lend.Open(f.Lent)
	if err != nil {
		return
	}
	defer folder.Close()
	for i := range f.List {
		file := &f.List[i]
		if !file.Code || file.content == nil {
			continue
		}
		err := folder.Offer(file.content.digest, file.Size, func() (io.ReadCloser, error) { return file.open() })
		if errors.Is(err, lend.ErrBusy) {
			return // each further file would wait as long
		}
	}
}

// named returns the files of the list that digests shall name. The digests of all are forgotten.
func (f *Files) named() (named []*File) {
	for i := range f.List {
		file := &f.List[i]
		file.content = nil
		if file.Mode.IsRegular() && file.Size >= archive.MinSize {
			named = append(named, file)
		}
	}
	if len(named) > archive.MaxContents {
		slices.SortStableFunc(named, func(a, b *File) int {
			switch {
			case a.Code == b.Code:
				return cmp.Compare(b.Size, a.Size)
			case a.Code:
				return -1
			}
			return 1
		})
	}
	left := int64(archive.MaxSize)
	named = slices.DeleteFunc(named, func(file *File) bool {
		fits := file.Size <= left
		if fits {
			left -= file.Size
		}
		return !fits
	})
	return named[:min(len(named), archive.MaxContents)]
}

// digestOf reads a file.
func digestOf(file *File) (digest archive.Digest, err error) {
	in, err := file.open()
	if err != nil {
		return digest, err
	}
	defer in.Close()
	hash := sha256.New()
	_, err = io.Copy(hash, io.LimitReader(in, file.Size))
	return archive.Digest(hash.Sum(nil)), err
}

// Bounds of the files that go along with the request for a job. Nodes unpack them while the job's
// client waits for an answer, so large copies are left to the copying that shows its progress.
const (
	aheadFiles  = 256     // files and folders
	aheadCopied = 4 << 20 // bytes of files that are copied into the job's root

	aheadPlain = 16 << 10 // bytes of an archive up to which compression takes longer than sending it
)

// Ahead returns the archive of the files without the data of contents, for nodes that lack none. It
// is empty when it would be large.
func (f *Files) Ahead() ([]byte, error) {
	if len(f.List) > aheadFiles {
		return nil, nil
	}
	var inside, copied int64 // bytes in the archive, and in jobs' roots
	for _, file := range f.List {
		switch {
		case file.content == nil:
			inside += file.Size
		case !file.Code:
			copied += file.Size
		}
	}
	if inside > control.FilesAhead || copied > aheadCopied {
		return nil, nil
	}
	var plain, packed bytes.Buffer
	if err := f.writeTar(&plain, nil, func(int64) {}); err != nil {
		return nil, err
	}
	if plain.Len() <= aheadPlain && !bytes.HasPrefix(plain.Bytes(), []byte(archive.Compressed)) {
		return plain.Bytes(), nil
	}
	if err := compress(&packed, func(w io.Writer) error { _, err := w.Write(plain.Bytes()); return err }); err != nil {
		return nil, err
	}
	if packed.Len() > control.FilesAhead {
		return nil, nil
	}
	return packed.Bytes(), nil
}

// Pack returns Contents and Ahead as they are at its first call, and puts programs and libraries
// into Lent. After it the files are safe for concurrent use.
func (f *Files) Pack() (contents [][]byte, ahead []byte, err error) {
	f.packing.Do(func() {
		f.contents = f.Contents()
		f.lend()
		f.ahead, f.unpacked = f.Ahead()
	})
	return f.contents, f.ahead, f.unpacked
}

// Archive writes the files to w as package archive describes. Contents whose indexes are not in
// lacking are left out. progress receives the number of bytes read.
func (f *Files) Archive(w io.Writer, lacking []uint32, progress func(bytes int64)) error {
	return compress(w, func(w io.Writer) error { return f.writeTar(w, lacking, progress) })
}

// compress compresses what write writes.
func compress(w io.Writer, write func(io.Writer) error) error {
	zw, err := zstd.NewWriter(w, zstd.WithEncoderLevel(zstd.SpeedFastest), zstd.WithWindowSize(1<<20))
	if err != nil {
		return err
	}
	return errors.Join(write(zw), zw.Close())
}

// writeTar is Archive without compression.
func (f *Files) writeTar(w io.Writer, lacking []uint32, progress func(bytes int64)) error {
	out := tar.NewWriter(w)
	var done int64
	for _, file := range f.List {
		if err := archiveOne(out, file, lacking); err != nil {
			return err
		}
		done += file.Size
		progress(done)
	}
	return out.Close()
}

func archiveOne(out *tar.Writer, file File, lacking []uint32) error {
	h := &tar.Header{Name: strings.TrimPrefix(file.name(), "/"), Typeflag: tar.TypeReg, Mode: int64(file.Mode.Perm()), Size: file.Size, Format: tar.FormatPAX}
	if file.Mode.IsDir() {
		h.Typeflag = tar.TypeDir
		return out.WriteHeader(h)
	}
	if file.Link != "" {
		h.Typeflag, h.Linkname = tar.TypeSymlink, file.Link
		return out.WriteHeader(h)
	}
	if c := file.content; c != nil {
		h.PAXRecords = map[string]string{archive.Content: c.digest.String()}
		if file.Code {
			h.PAXRecords[archive.Code] = "1"
		}
		if !slices.Contains(lacking, uint32(c.index)) {
			h.Size = 0
			return out.WriteHeader(h)
		}
	}
	in, err := file.open()
	if err != nil {
		return err
	}
	defer in.Close()
	if err := out.WriteHeader(h); err != nil {
		return err
	}
	n, err := io.Copy(out, io.LimitReader(in, file.Size))
	if err == nil && n < file.Size {
		err = fmt.Errorf("%s became shorter while it was read", file.Path)
	}
	return err
}
