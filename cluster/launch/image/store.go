package image

import (
	"archive/tar"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"

	"margay/cluster/launch/regular"
)

// store has the files of an image.
type store interface {
	has(name string) bool
	// open opens a regular file. The size is in bytes.
	open(name string) (in io.ReadCloser, size int64, err error)
	io.Closer
}

// openStore opens a folder or a tar file.
func openStore(name string) (store, error) {
	info, err := os.Stat(name)
	if err != nil {
		return nil, err
	}
	if info.IsDir() {
		return folderStore(name), nil
	}
	return openTar(name)
}

// folderStore is the path of a folder with the files of an image.
type folderStore string

func (s folderStore) has(name string) bool {
	info, err := os.Stat(filepath.Join(string(s), name))
	return err == nil && info.Mode().IsRegular()
}

func (s folderStore) open(name string) (io.ReadCloser, int64, error) {
	if !filepath.IsLocal(name) {
		return nil, 0, fmt.Errorf("%.200q: %w", name, fs.ErrInvalid)
	}
	f, err := regular.Open(filepath.Join(string(s), name))
	if err != nil {
		return nil, 0, err
	}
	info, err := f.Stat()
	if err != nil {
		f.Close()
		return nil, 0, err
	}
	return f, info.Size(), nil
}

func (s folderStore) Close() error { return nil }

// tarStore is a tar file with the files of an image.
type tarStore struct {
	file    *os.File
	members map[string]member
}

// member is a file in a tar file.
type member struct {
	at, size int64
	link     string // the name of the file that it is; older archives of docker save have links to layers
}

// openTar finds the files in a tar file. A file of another format has none.
func openTar(name string) (store, error) {
	f, err := regular.Open(name)
	if err != nil {
		return nil, err
	}
	s := &tarStore{file: f, members: make(map[string]member)}
	if err := s.index(); err != nil {
		f.Close()
		return nil, err
	}
	return s, nil
}

func (s *tarStore) index() error {
	entries := tar.NewReader(s.file)
	for {
		h, err := entries.Next()
		if err == io.EOF || len(s.members) == 0 && (errors.Is(err, tar.ErrHeader) || errors.Is(err, io.ErrUnexpectedEOF)) {
			return nil
		}
		if err != nil {
			return err
		}
		at, err := s.file.Seek(0, io.SeekCurrent)
		if err != nil {
			return err
		}
		m := member{at: at, size: h.Size}
		name := path.Clean(h.Name)
		switch h.Typeflag {
		case tar.TypeReg:
			if hasHoles(h) {
				continue
			}
		case tar.TypeSymlink:
			m = member{link: path.Join(path.Dir(name), h.Linkname)}
		case tar.TypeLink:
			m = member{link: path.Clean(h.Linkname)}
		default:
			continue
		}
		if len(s.members) == maxFiles || len(name) > maxPath || len(m.link) > maxPath {
			return fmt.Errorf("it has more than %d files, or a name of more than %d bytes", maxFiles, maxPath)
		}
		s.members[name] = m
	}
}

func (s *tarStore) has(name string) bool { return s.find(name) != nil }

// find returns the member with a name, or nil.
func (s *tarStore) find(name string) *member {
	for range maxLinks {
		m, ok := s.members[path.Clean(name)]
		switch {
		case !ok:
			return nil
		case m.link == "":
			return &m
		}
		name = m.link
	}
	return nil
}

func (s *tarStore) open(name string) (io.ReadCloser, int64, error) {
	m := s.find(name)
	if m == nil {
		return nil, 0, &fs.PathError{Op: "open", Path: fmt.Sprintf("%.200q", name), Err: fs.ErrNotExist}
	}
	return io.NopCloser(io.NewSectionReader(s.file, m.at, m.size)), m.size, nil
}

func (s *tarStore) Close() error { return s.file.Close() }
