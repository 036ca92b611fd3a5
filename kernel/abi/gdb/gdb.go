// Package gdb is the border between margay debug and a job init: the stream over which gdb, on the
// host of margay debug, debugs a rank.
//
// margay debug sends a tar archive with gdbserver, what that loads, and nothing else. The init
// starts it beside the rank, and sends an answer: a line that is empty if gdbserver has attached to
// the rank, and else says why not. From then on the stream is GDB's remote serial protocol
// (https://sourceware.org/gdb/current/onlinedocs/gdb.html/Remote-Protocol.html), until one side
// ends it. The init follows what gdb says (Talk), so that it can remove gdb's breakpoints when gdb
// is gone: gdbserver leaves them in the program then, and they would end it.
package gdb

import (
	"archive/tar"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
)

// Names of files in the archive. Libraries have the names by which programs load them.
const (
	Server = "gdbserver"
	Loader = "loader" // the dynamic loader; missing if gdbserver is static
)

// Bounds of the archive.
const (
	MaxSize  = 64 << 20 // bytes of all files
	MaxFiles = 64
)

// maxAnswer bounds the line of an answer, in bytes.
const maxAnswer = 4096

// ErrFormat reports a stream that is not one of this package.
var ErrFormat = errors.New("this is not what margay debug sends")

// File is a file of an archive.
type File struct{ Name, Path string }

// WriteFiles sends the archive.
func WriteFiles(w io.Writer, files []File) error {
	out := tar.NewWriter(w)
	for _, f := range files {
		if err := writeFile(out, f); err != nil {
			return fmt.Errorf("send %s: %w", f.Path, err)
		}
	}
	return out.Close()
}

func writeFile(out *tar.Writer, file File) error {
	f, err := os.Open(file.Path)
	if err != nil {
		return err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return err
	}
	if err := out.WriteHeader(&tar.Header{Name: file.Name, Mode: 0o555, Size: info.Size()}); err != nil {
		return err
	}
	_, err = io.CopyN(out, f, info.Size())
	return err
}

// ReadFiles receives an archive, and reads nothing beyond its end. It gives each file to create.
func ReadFiles(r io.Reader, create func(name string, content io.Reader) error) error {
	in := tar.NewReader(r)
	left := int64(MaxSize)
	for range MaxFiles + 1 {
		h, err := in.Next()
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return fmt.Errorf("%w: %w", ErrFormat, err)
		}
		if h.Typeflag != tar.TypeReg || h.Name != filepath.Base(h.Name) || !filepath.IsLocal(h.Name) || h.Size > left {
			return fmt.Errorf("%w: %q", ErrFormat, h.Name)
		}
		left -= h.Size
		if err := create(h.Name, in); err != nil {
			return err
		}
	}
	return fmt.Errorf("%w: more than %d files", ErrFormat, MaxFiles)
}

// WriteAnswer sends an answer. nil: gdbserver has attached to the rank.
func WriteAnswer(w io.Writer, why error) error {
	text := ""
	if why != nil {
		text = strings.ReplaceAll(strings.TrimSpace(why.Error()), "\n", "; ")
	}
	_, err := io.WriteString(w, text[:min(len(text), maxAnswer-1)]+"\n")
	return err
}

// ReadAnswer receives an answer, and reads nothing beyond it. refusal says why gdbserver has not
// attached to the rank; it is as the node has sent it.
func ReadAnswer(r io.Reader) (refusal string, err error) {
	var line []byte
	for b := make([]byte, 1); len(line) < maxAnswer; {
		if _, err := io.ReadFull(r, b); err != nil {
			return "", err
		}
		if b[0] == '\n' {
			return string(line), nil
		}
		line = append(line, b[0])
	}
	return "", ErrFormat
}
