package launch

import (
	"archive/tar"
	"cmp"
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

	"margay/cluster/launch/regular"
)

// CollectRoot makes the files of a job whose root is a folder of this host, or is in a tar file.
// Each program is one of that root, found as a shell in it would, or a file of this host whose
// libraries are in the root. Files of this host that with names come in addition, and replace files
// of the root with the same names. Files that a node makes itself, and the contents of /dev, /proc
// and /sys, are left out, as are devices, pipes and sockets.
func CollectRoot(root string, programs, with []string) (*Files, error) {
	f := &Files{have: make(map[string]bool), most: maxFiles, root: make(map[string]int)}
	info, err := os.Stat(root)
	if err == nil && info.IsDir() {
		err = f.addFolderRoot(root)
	} else if err == nil {
		err = f.addTarRoot(root)
	}
	if err != nil {
		return nil, fmt.Errorf("--root %s: %w", root, err)
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

// errFormat reports a file that holds no root.
var errFormat = errors.New("it is neither a folder nor a tar file without compression")

// addTarRoot adds the contents of a tar file. Its data stay there until they are sent.
func (f *Files) addTarRoot(name string) error {
	in, err := regular.Open(name)
	if err != nil {
		return err
	}
	defer in.Close()
	entries := tar.NewReader(in)
	for count := 0; ; count++ {
		h, err := entries.Next()
		switch {
		case err == io.EOF && count > 0:
			return nil
		case err == io.EOF, count == 0 && (errors.Is(err, tar.ErrHeader) || errors.Is(err, io.ErrUnexpectedEOF)): // shorter than a header
			return errFormat
		case err != nil:
			return err
		}
		file := File{Path: name, As: path.Clean("/" + h.Name), Mode: h.FileInfo().Mode(), Size: h.Size}
		switch h.Typeflag {
		case tar.TypeReg:
			if file.at, err = in.Seek(0, io.SeekCurrent); err != nil {
				return err
			}
			file.inside = true
		case tar.TypeDir:
			file.Size = 0
		case tar.TypeSymlink:
			file.Link, file.Size = h.Linkname, 0
		case tar.TypeLink:
			linked, ok := f.root[path.Clean("/"+h.Linkname)]
			if !ok {
				return fmt.Errorf("%s is another name of %s, which does not come before it", file.As, h.Linkname)
			}
			name := file.As
			file = f.List[linked]
			file.As = name
		case tar.TypeGNUSparse:
			return fmt.Errorf("%s has holes, which cannot be read from a tar file", file.As)
		default:
			continue
		}
		if err := f.addToRoot(file); err != nil {
			return err
		}
	}
}

// addToRoot adds a file of the root. A later one with the same name replaces it.
func (f *Files) addToRoot(file File) error {
	kind := file.Mode.Type()
	if kind != 0 && kind != fs.ModeDir && kind != fs.ModeSymlink || slices.Contains(made, file.As) || notHidden(file.As) != nil || file.As == "/" {
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

// rootPath is where programs of a root are, if PATH does not say it.
const rootPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// findProgram finds the program, in the root first.
func (f *Files) findProgram(program string) error {
	candidates := []string{program}
	if !strings.Contains(program, "/") {
		candidates = nil
		for _, folder := range append(filepath.SplitList(os.Getenv("PATH")), filepath.SplitList(rootPath)...) {
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
	links := 0
	left, at := strings.Split(strings.TrimPrefix(path.Clean("/"+name), "/"), "/"), "/"
	for {
		next := path.Join(at, left[0])
		left = left[1:]
		index, ok := f.root[next]
		switch {
		case ok && f.List[index].Link != "":
			if links++; links > mostLinks {
				return File{}, false
			}
			target := f.List[index].Link
			if path.IsAbs(target) {
				at = "/"
			}
			left = append(strings.Split(strings.Trim(target, "/"), "/"), left...)
			continue
		case len(left) == 0:
			if !ok {
				return File{}, false
			}
			return f.List[index], true
		}
		at = next
	}
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
