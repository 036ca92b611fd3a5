// Package pstore reads what the Linux of an earlier boot has left when it panicked, in memory of
// the firmware that survives a reboot: ERST of ACPI, variables of UEFI, or RAM that is set aside
// (Documentation/admin-guide/ramoops.rst and pstore-blk.rst in Linux). Its file system shows each
// piece as a file, and a file that is removed frees the memory.
//
// A log is left from its end on, in numbered pieces, as far as there was room. Each begins with a
// line that has its number. The pieces are untrusted: another system may have left them.
package pstore

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// Dir is where PID 1 mounts the file system.
const Dir = "/sys/fs/pstore"

// Bounds on one reading, in files and in bytes.
const (
	mostFiles = 256
	mostHead  = 64 // of a piece
	// MostText bounds the text of all pieces. A piece that is larger stays where it is.
	MostText = 256 << 10
)

// Remains is what earlier boots have left.
type Remains struct {
	Files []string // names in the folder, of all that is in Text
	Text  []byte   // the logs, the oldest first, each after a line that says when it ended
}

// piece is one file.
type piece struct {
	name string
	time time.Time
	head string // "Panic#1"
	part int    // 0: the file does not say
	text []byte
}

// Read reads the files of a folder. There are none in the result where Linux has no pstore.
// If there is more than a bound allows, the rest stays for another call.
func Read(dir string) (Remains, error) {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, os.ErrNotExist) {
		return Remains{}, nil
	}
	if err != nil {
		return Remains{}, fmt.Errorf("pstore: %w", err)
	}
	var pieces []piece
	var errs []error
	size := 0
	for _, e := range entries {
		if !strings.HasPrefix(e.Name(), "dmesg-") {
			continue // it is not a log of Linux's end
		}
		p, err := readPiece(dir, e.Name())
		if err != nil {
			errs = append(errs, fmt.Errorf("pstore: %w", err))
			continue
		}
		if size += len(p.text); size > MostText || len(pieces) == mostFiles {
			break
		}
		pieces = append(pieces, p)
	}
	return assemble(pieces), errors.Join(errs...)
}

// Remove removes files of a folder, and with them what Linux has left.
func Remove(dir string, files []string) error {
	var errs []error
	for _, name := range files {
		if err := os.Remove(filepath.Join(dir, filepath.Base(name))); err != nil && !errors.Is(err, os.ErrNotExist) {
			errs = append(errs, fmt.Errorf("pstore: %w", err))
		}
	}
	return errors.Join(errs...)
}

func readPiece(dir, name string) (p piece, err error) {
	f, err := os.Open(filepath.Join(dir, name))
	if err != nil {
		return p, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return p, err
	}
	if !info.Mode().IsRegular() {
		return p, fmt.Errorf("%s is not a regular file", name)
	}
	p = piece{name: name, time: info.ModTime()}
	if strings.HasSuffix(name, ".enc.z") {
		p.text = fmt.Appendf(nil, "-- missing: %d bytes that Linux could not decompress --\n", info.Size())
		return p, nil
	}
	if p.text, err = io.ReadAll(io.LimitReader(f, MostText+1)); err != nil {
		return p, fmt.Errorf("%s: %w", name, err)
	}
	if len(p.text) > MostText {
		return p, fmt.Errorf("%s has more than %d bytes, and stays where it is", name, MostText)
	}
	p.head, p.part, p.text = cutHead(p.text)
	return p, nil
}

// cutHead cuts the first line from the text of a piece, "Panic#1 Part3", if it has one.
func cutHead(text []byte) (head string, part int, rest []byte) {
	line, rest, _ := bytes.Cut(text, []byte("\n"))
	head, number, found := strings.Cut(string(line), " Part")
	if n, err := fmt.Sscanf(number, "%d", &part); !found || n != 1 || err != nil || part < 1 || len(line) > mostHead {
		return "", 0, text
	}
	return head, part, rest
}

// assemble puts pieces together. The pieces of a log were left one after the other, from part 1 on.
func assemble(pieces []piece) (r Remains) {
	slices.SortFunc(pieces, func(a, b piece) int {
		return cmp.Or(a.time.Compare(b.time), strings.Compare(a.head, b.head), a.part-b.part, strings.Compare(a.name, b.name))
	})
	for begin := 0; begin < len(pieces); {
		end := begin + 1
		for end < len(pieces) && pieces[end].part > 1 && pieces[end].head == pieces[end-1].head && pieces[end].part == pieces[end-1].part+1 {
			end++
		}
		last := pieces[end-1]
		r.Text = fmt.Appendf(r.Text, "-- left by an earlier boot, %s: %s --\n", last.time.UTC().Format(time.DateTime+" UTC"), cmp.Or(last.head, "a log"))
		for _, p := range slices.Backward(pieces[begin:end]) {
			r.Files = append(r.Files, p.name)
			r.Text = append(r.Text, p.text...)
			if len(p.text) > 0 && p.text[len(p.text)-1] != '\n' {
				r.Text = append(r.Text, '\n')
			}
		}
		begin = end
	}
	return r
}
