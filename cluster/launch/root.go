package launch

import (
	"cmp"
	"context"
	"debug/elf"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"margay/cluster/launch/image"
	"margay/cluster/launch/regular"
)

// Root is what the ranks of a job see as /.
type Root struct {
	Name string      // of a folder, a tar file or an image
	Tree *image.Tree // of an image; nil: Name is a folder or a tar file
	Path string      // where programs of the root are: the PATH of an image
}

// CollectRoot makes the files of a job whose root is a folder of this host, or is in tar files.
// Each program is one of that root, found as a shell in it would, or a file of this host whose
// libraries are in the root. Files of this host that with names come in addition, and replace files
// of the root with the same names. Files that a node makes itself, and the contents of /dev, /proc
// and /sys, are left out, as are devices, pipes and sockets.
func CollectRoot(root Root, programs, with []string) (*Files, error) {
	f := &Files{have: make(map[string]bool), most: maxFiles, root: make(map[string]int), rootPath: root.Path}
	var err error
	if info, failed := os.Stat(root.Name); root.Tree == nil && failed == nil && info.IsDir() {
		err = f.addFolderRoot(root.Name)
	} else {
		err = f.addTreeRoot(root)
	}
	if err != nil {
		return nil, fmt.Errorf("--root %s: %w", root.Name, err)
	}
	for _, program := range programs {
		arch := f.Arch
		if err := f.findProgram(program); err != nil {
			return nil, err
		}
		if err := f.alsoProgram(arch); err != nil {
			return nil, err
		}
	}
	f.Program = f.Programs[0]
	for _, name := range with {
		if err := f.addTree(name); err != nil {
			return nil, err
		}
	}
	return f, nil
}

// addFolderRoot adds the contents of a folder. Links stay links.
func (f *Files) addFolderRoot(root string) error {
	return filepath.WalkDir(root, func(at string, e fs.DirEntry, err error) error {
		if err != nil || at == root {
			return err
		}
		name := strings.TrimPrefix(at, strings.TrimSuffix(root, "/"))
		info, err := e.Info()
		if err != nil {
			return err
		}
		file := File{Path: at, As: name, Mode: info.Mode(), Size: size(info)}
		if info.Mode().Type() == fs.ModeSymlink {
			if file.Link, err = os.Readlink(at); err != nil {
				return err
			}
			file.Size = 0
		}
		if e.IsDir() && slices.Contains(hidden, name) {
			return fs.SkipDir
		}
		return f.addToRoot(file)
	})
}

// addTreeRoot adds the contents of an image or a tar file. The data of files stay where they are
// until they are sent.
func (f *Files) addTreeRoot(root Root) error {
	t := root.Tree
	if t == nil {
		t = new(image.Tree)
		if err := t.AddTar(context.Background(), root.Name); errors.Is(err, image.ErrNoTar) {
			return errors.New("it is neither a folder nor a tar file without compression")
		} else if err != nil {
			return err
		}
	}
	for name, e := range t.All() {
		if err := f.addToRoot(File{Path: e.Path, As: name, Link: e.Link, Mode: e.Mode, Size: e.Size, inside: e.Path != "", at: e.At}); err != nil {
			return err
		}
	}
	return nil
}

// folders are the folders in which a node makes files for a job. If they are links in a root, they
// are folders nevertheless.
var folders = []string{"/etc", "/tmp"}

// addToRoot adds a file of the root. A later one with the same name replaces it.
func (f *Files) addToRoot(file File) error {
	kind := file.Mode.Type()
	switch {
	case kind != 0 && kind != fs.ModeDir && kind != fs.ModeSymlink,
		kind != fs.ModeDir && slices.Contains(folders, file.As),
		slices.Contains(made, file.As), notHidden(file.As) != nil, file.As == "/":
		return nil
	}
	if at, ok := f.root[file.As]; ok {
		f.List[at] = file
		return nil
	}
	if len(f.List) == f.most {
		return fmt.Errorf("it has more than %d files and folders", f.most)
	}
	f.root[file.As], f.have[file.As] = len(f.List), true
	f.List = append(f.List, file)
	return nil
}

// usualPath is where programs of a root are, if no PATH says it.
const usualPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// findProgram finds the program, in the root first.
func (f *Files) findProgram(program string) error {
	candidates := []string{program}
	if !strings.Contains(program, "/") {
		candidates = nil
		for _, folder := range slices.Concat(filepath.SplitList(f.rootPath), filepath.SplitList(os.Getenv("PATH")), filepath.SplitList(usualPath)) {
			candidates = append(candidates, path.Join("/", folder, program))
		}
	}
	for _, name := range candidates {
		name, err := filepath.Abs(name)
		if err != nil {
			return err
		}
		if file, ok := f.resolve(name); ok && file.Mode.IsRegular() && file.Mode&0o111 != 0 {
			f.Program = name
			return f.describeProgram(file, 0)
		}
	}
	if !strings.Contains(program, "/") {
		return fmt.Errorf("%s: %w in the root", program, ErrNotFound)
	}
	name, err := LookUp(program)
	if err != nil {
		return err
	}
	if err := f.add(name); err != nil {
		return err
	}
	f.Program = name
	return f.describeProgram(f.List[f.root[name]], 0)
}

// mostLinks bounds the symbolic links on the way to a file, as Linux does.
const mostLinks = 40

// resolve finds a file of the root, through its symbolic links.
func (f *Files) resolve(name string) (File, bool) {
	at, ok := f.follow(name)
	if !ok {
		return File{}, false
	}
	index, ok := f.root[at]
	if !ok {
		return File{}, false
	}
	return f.List[index], true
}

// Dir returns the name of a folder that symbolic links of the root lead to by way of name. A node
// makes it before there are links. A name that is not in the root stays as it is.
func (f *Files) Dir(name string) string {
	if at, ok := f.follow(name); ok && f.root != nil {
		return at
	}
	return name
}

// follow returns where a name leads to through symbolic links of the root, or false if there are
// too many of them.
func (f *Files) follow(name string) (string, bool) {
	links := 0
	left, at := strings.Split(strings.TrimPrefix(path.Clean("/"+name), "/"), "/"), "/"
	for len(left) > 0 {
		next := path.Join(at, left[0])
		left = left[1:]
		index, ok := f.root[next]
		if !ok || f.List[index].Link == "" {
			at = next
			continue
		}
		if links++; links > mostLinks {
			return "", false
		}
		target := f.List[index].Link
		if path.IsAbs(target) {
			at = "/"
		}
		left = append(strings.Split(strings.Trim(target, "/"), "/"), left...)
	}
	return at, true
}

// describeProgram learns from a program of the root what it is for.
func (f *Files) describeProgram(file File, depth int) error {
	in, err := file.open()
	if err != nil {
		return fmt.Errorf("%s: %w: %w", f.Program, ErrNotExecutable, err)
	}
	defer in.Close()
	begin := make([]byte, 256)
	n, _ := io.ReadFull(io.NewSectionReader(in, 0, file.Size), begin)
	if script, ok := strings.CutPrefix(string(begin[:n]), "#!"); ok {
		line, _, _ := strings.Cut(script, "\n")
		words := strings.Fields(line)
		if len(words) == 0 || depth > maxInterpreters {
			return fmt.Errorf("%s: %w: its first line names no interpreter", f.Program, ErrNotExecutable)
		}
		interpreter, ok := f.resolve(words[0])
		if !ok {
			return fmt.Errorf("%s: the interpreter that its first line names, %s: %w in the root", f.Program, words[0], ErrNotFound)
		}
		return f.describeProgram(interpreter, depth+1)
	}
	program, err := elf.NewFile(in)
	if err != nil {
		return fmt.Errorf("%s: %w: it is neither an ELF file nor a script (with #! at the beginning of its first line)", f.Program, ErrNotExecutable)
	}
	f.Arch = cmp.Or(arches[program.Machine], program.Machine.String())
	f.Parallel, f.PMI1 = parallel(program)
	if names, _ := program.ImportedLibraries(); slices.ContainsFunc(names, mpichLibrary) {
		f.PMI1 = true
	}
	return nil
}

// data is the data of a file.
type data struct {
	io.Reader
	io.ReaderAt
	io.Closer
}

// open opens a regular file, which may be inside a tar file.
func (file *File) open() (data, error) {
	in, err := regular.Open(file.Path)
	if err != nil {
		return data{}, err
	}
	if file.inside {
		section := io.NewSectionReader(in, file.at, file.Size)
		return data{section, section, in}, nil
	}
	return data{in, in, in}, nil
}
