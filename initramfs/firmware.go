package initramfs

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"
)

// firmwareDir is where Linux looks for firmware files.
const firmwareDir = "/lib/firmware"

// FirmwareNames returns the names of the firmware files that the modules of an image may ask Linux
// for, sorted. They are relative to a folder such as /lib/firmware. Errors are as of Build.
func FirmwareNames(ctx context.Context, spec Spec) ([]string, error) {
	s, err := spec.check()
	if err != nil {
		return nil, err
	}
	chosen, err := s.choose(ctx)
	if err != nil {
		return nil, err
	}
	return chosen.firmware(), nil
}

// firmware returns the names of the files that modules of a selection may ask for, sorted.
func (s selection) firmware() (names []string) {
	for _, m := range slices.Concat(s.load, s.drivers) {
		names = append(names, m.firmware...)
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// FirmwareText describes the firmware files of an image for people.
func (m Manifest) FirmwareText() string {
	var size int64
	for _, e := range m.Entries {
		if strings.HasPrefix(e.Path, firmwareDir+"/") && e.Mode.IsRegular() {
			size += e.Size
		}
	}
	text := fmt.Sprintf("firmware files of network cards: %d, %.1f MB unpacked", len(m.Firmware), float64(size)/1e6)
	if len(m.NoFirmware) > 0 {
		text += fmt.Sprintf("; drivers name %v as well, which were not found", m.NoFirmware)
	}
	return text
}

// firmwareSuffixes are the ends that the name of a firmware file may have besides its own.
var firmwareSuffixes = []string{"", ".zst", ".xz"}

// CopyFirmware copies the named firmware files to an empty folder, with the symbolic links that
// lead to them, each from the first folder that has it. It returns the names that a folder has. The
// copies are not compressed.
func CopyFirmware(ctx context.Context, from, names []string, to string) (copied []string, err error) {
	found, err := collectFirmware(ctx, from, names)
	if err != nil {
		return nil, err
	}
	for _, f := range found.files {
		dst := to + strings.TrimPrefix(f.Path, firmwareDir)
		if err := os.MkdirAll(path.Dir(dst), 0o755); err != nil {
			return nil, err
		}
		if f.Mode.Type() == fs.ModeSymlink {
			err = os.Symlink(string(f.Data), dst)
		} else {
			err = os.WriteFile(dst, f.Data, 0o644)
		}
		if err != nil {
			return nil, err
		}
	}
	return found.names, nil
}

// foundFirmware is what folders have of some firmware files.
type foundFirmware struct {
	files         []File   // and symbolic links, of an image
	names, absent []string // of those asked for
}

// collectFirmware finds firmware files, each in the first folder that has it. A name that is not a
// path below a folder is of no file.
func collectFirmware(ctx context.Context, folders, names []string) (found foundFirmware, err error) {
	var roots []*os.Root
	defer func() {
		for _, r := range roots {
			r.Close()
		}
	}()
	for _, folder := range folders {
		root, err := os.OpenRoot(folder)
		if err != nil {
			return found, fmt.Errorf("firmware files: %w", err)
		}
		roots = append(roots, root)
	}
	have := map[string]bool{} // paths of found.files: links may lead to one file
	for _, name := range names {
		var files []File
		for _, root := range roots {
			if files, err = findFirmware(ctx, root, name); err != nil {
				return found, fmt.Errorf("firmware file %s in %s: %w", name, root.Name(), err)
			}
			if files != nil {
				break
			}
		}
		if files == nil {
			found.absent = append(found.absent, name)
			continue
		}
		found.names = append(found.names, name)
		for _, f := range files {
			if !have[f.Path] {
				have[f.Path] = true
				found.files = append(found.files, f)
			}
		}
	}
	return found, nil
}

// maxLinks bounds the symbolic links from a name to a file, as Linux does (MAXSYMLINKS).
const maxLinks = 40

// findFirmware returns the file of a name in a folder, after the symbolic links that lead to it, or
// nothing if the folder does not have it. A link to nowhere is as good as none.
func findFirmware(ctx context.Context, root *os.Root, name string) (files []File, err error) {
	for range maxLinks {
		if !fs.ValidPath(name) || name == "." {
			if len(files) > 0 {
				return nil, errors.New("it is a symbolic link to a place outside of the folder: copy the file into the folder")
			}
			return nil, nil
		}
		info, suffix, err := statFirmware(root, name)
		if info == nil || err != nil {
			return nil, err
		}
		switch info.Mode().Type() {
		case 0:
			data, err := readFirmware(ctx, root, name, suffix)
			if err != nil {
				return nil, err
			}
			return append(files, File{Path: path.Join(firmwareDir, name), Data: data}), nil
		case fs.ModeSymlink:
			target, err := root.Readlink(name + suffix)
			if err != nil {
				return nil, err
			}
			target = strings.TrimSuffix(target, suffix)
			files = append(files, File{Path: path.Join(firmwareDir, name), Mode: fs.ModeSymlink, Data: []byte(target)})
			if name = path.Join(path.Dir(name), target); path.IsAbs(target) {
				name = target
			}
		default:
			return nil, errors.New("it is not a file")
		}
	}
	return nil, fmt.Errorf("more than %d symbolic links lead to it", maxLinks)
}

// statFirmware describes the file of a name, and returns the suffix of its compression. Without a
// file, the description is nil.
func statFirmware(root *os.Root, name string) (info fs.FileInfo, suffix string, err error) {
	for _, suffix := range firmwareSuffixes {
		info, err := root.Lstat(name + suffix)
		if err == nil {
			return info, suffix, nil
		}
		if !errors.Is(err, fs.ErrNotExist) {
			return nil, "", err
		}
	}
	return nil, "", nil
}

// readFirmware returns the decompressed content of a file.
func readFirmware(ctx context.Context, root *os.Root, name, suffix string) ([]byte, error) {
	f, err := root.Open(name + suffix)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return decompress(ctx, f, suffix)
}
