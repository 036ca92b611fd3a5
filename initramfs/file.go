package initramfs

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"math"
	"os"
	"path"
	"slices"
	"strings"

	"github.com/u-root/u-root/pkg/cpio"
)

// File is one file of a node's first root file system.
type File struct {
	Path string // absolute and clean
	// Mode is type and permission. Regular files, directories, symbolic links and character devices
	// are supported. The default permission is 0644, for directories 0755 and for symbolic links
	// 0777.
	Mode         fs.FileMode
	UID, GID     uint32
	Data         []byte // the content; the target of a symbolic link
	Source       string // a file of the building machine whose content is taken instead of Data
	Major, Minor uint32 // of a device
}

// FileError is an error about a file of an image.
type FileError struct {
	Path string
	Err  error
}

func (e *FileError) Error() string { return "image file " + e.Path + ": " + e.Err.Error() }
func (e *FileError) Unwrap() error { return e.Err }

// base holds the files of every image. Without it the kernel would make the root writable by all.
var base = []File{
	{Path: "/", Mode: fs.ModeDir | 0o755},
	{Path: "/dev", Mode: fs.ModeDir | 0o755},
	{Path: "/dev/console", Mode: fs.ModeDevice | fs.ModeCharDevice | 0o600, Major: 5, Minor: 1},
	{Path: "/dev/null", Mode: fs.ModeDevice | fs.ModeCharDevice | 0o666, Major: 1, Minor: 3},
	{Path: "/proc", Mode: fs.ModeDir | 0o555},
	{Path: "/run", Mode: fs.ModeDir | 0o755},
	{Path: "/sys", Mode: fs.ModeDir | 0o555},
	{Path: "/tmp", Mode: fs.ModeDir | fs.ModeSticky | 0o777},
}

// directory returns the directory at path as every image has it.
func directory(path string) File {
	i := slices.IndexFunc(base, func(f File) bool { return f.Path == path && f.Mode.IsDir() })
	if i >= 0 {
		return base[i]
	}
	return File{Path: path, Mode: fs.ModeDir | 0o755}
}

const maxPath = 4095 // PATH_MAX of Linux without the final NUL

// check validates f and fills in the permissions.
func (f File) check() (File, error) {
	bad := func(why string) (File, error) { return f, &FileError{f.Path, errors.New(why)} }
	switch {
	case !path.IsAbs(f.Path) || path.Clean(f.Path) != f.Path || strings.Contains(f.Path, "\x00"):
		return bad("the path is not absolute and clean")
	case f.Path == "/" && !f.Mode.IsDir():
		return bad("the root is a directory")
	case len(f.Path) > maxPath || f.Path == "/"+cpio.Trailer:
		return bad("an archive cannot hold this name")
	case f.Source != "" && f.Data != nil:
		return bad("it has both Source and Data")
	case f.Mode&^(fs.ModePerm|fs.ModeType|fs.ModeSetuid|fs.ModeSetgid|fs.ModeSticky) != 0:
		return bad("its mode is not one of a file system")
	}
	permission := fs.FileMode(0o644)
	switch f.Mode.Type() {
	case 0:
	case fs.ModeSymlink:
		permission = 0o777
		if len(f.Data) == 0 {
			return bad("the symbolic link has no target")
		}
	case fs.ModeDir:
		permission = 0o755
		if f.Data != nil || f.Source != "" {
			return bad("a directory has no content")
		}
	case fs.ModeDevice | fs.ModeCharDevice:
		if f.Data != nil || f.Source != "" {
			return bad("a device has no content")
		}
	default:
		return bad("files of this type cannot be made")
	}
	if f.Mode.Perm() == 0 {
		f.Mode |= permission
	}
	return f, nil
}

// content returns the bytes of f.
func (f File) content() ([]byte, error) {
	if f.Source == "" {
		return f.Data, nil
	}
	data, err := os.ReadFile(f.Source)
	if err != nil {
		return nil, &FileError{f.Path, err}
	}
	if int64(len(data)) > math.MaxUint32 {
		return nil, &FileError{f.Path, fmt.Errorf("%s has %d bytes, more than an archive can hold", f.Source, len(data))}
	}
	return data, nil
}

// arrange validates files, adds their directories, and returns all: directories by name, so that a
// directory precedes its files, and then the others by size. Programs are the largest files of an
// image and have much code in common, so they are near to each other, the smaller one first.
func arrange(files []File) ([]content, error) {
	all := map[string]File{}
	for _, f := range files {
		f, err := f.check()
		if err != nil {
			return nil, err
		}
		if _, ok := all[f.Path]; ok {
			return nil, &FileError{f.Path, errors.New("it is given twice")}
		}
		all[f.Path] = f
	}
	for _, p := range slices.Collect(maps.Keys(all)) {
		for dir := path.Dir(p); dir != "/"; dir = path.Dir(dir) {
			parent, ok := all[dir]
			if ok && !parent.Mode.IsDir() {
				return nil, &FileError{p, fmt.Errorf("%s is not a directory", dir)}
			}
			if !ok {
				all[dir] = directory(dir)
			}
		}
	}
	sorted := make([]content, 0, len(all))
	for f := range maps.Values(all) {
		data, err := f.content()
		if err != nil {
			return nil, err
		}
		sorted = append(sorted, content{f, data})
	}
	rank := func(f File) int {
		if f.Mode.IsDir() {
			return 0
		}
		return 1
	}
	slices.SortFunc(sorted, func(a, b content) int {
		return cmp.Or(cmp.Compare(rank(a.File), rank(b.File)), cmp.Compare(len(a.data), len(b.data)), strings.Compare(a.Path, b.Path))
	})
	return sorted, nil
}

// content is a file with its content.
type content struct {
	File
	data []byte
}

// writeArchive writes files and their directories as a cpio archive and returns the entries
// written.
func writeArchive(w io.Writer, files []File) ([]Entry, error) {
	all, err := arrange(files)
	if err != nil {
		return nil, err
	}
	archive := cpio.Newc.Writer(w)
	entries := make([]Entry, 0, len(all))
	for i, f := range all {
		record := cpio.StaticRecord(f.data, cpio.Info{
			Ino:    uint64(i + 1),
			Mode:   uint64(unixMode(f.Mode)),
			UID:    uint64(f.UID),
			GID:    uint64(f.GID),
			NLink:  1,
			Rmajor: uint64(f.Major),
			Rminor: uint64(f.Minor),
			Name:   f.Path, // made relative by the writer
		})
		if err := archive.WriteRecord(record); err != nil {
			return nil, &FileError{f.Path, err}
		}
		e := Entry{Path: f.Path, Mode: f.Mode, UID: f.UID, GID: f.GID, Size: int64(len(f.data))}
		if f.Mode.Type() == fs.ModeSymlink {
			e.Target = string(f.data)
		}
		entries = append(entries, e)
	}
	return entries, archive.WriteRecord(cpio.TrailerRecord)
}
