package initramfs

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
)

// packLevel is how xz compresses an image. The dictionary is more than the node's program, which
// has code in common with the job init before it. A node needs this much memory while it unpacks.
const packLevel = "--lzma2=preset=1,dict=16MiB"

// branchFilters name the filters that make the branches of a processor's code easier to compress.
var branchFilters = map[string]string{"amd64": "--x86"}

// packing returns the arguments of xz for an image of an architecture.
func packing(arch string) []string {
	arguments := []string{"-c", "-T1", "--format=xz", "--check=crc32"} // Linux checks CRC-32 alone
	if filter := branchFilters[arch]; filter != "" {
		arguments = append(arguments, filter)
	}
	return append(arguments, packLevel)
}

// xz returns the command xz, which every machine has that unpacks packages with modules.
func xz(ctx context.Context, arguments ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, "xz", arguments...)
	cmd.Env = append(os.Environ(), "XZ_DEFAULTS=", "XZ_OPT=") // the same bytes for all users
	return cmd
}

// filter returns what xz makes of in.
func filter(ctx context.Context, in io.Reader, arguments ...string) ([]byte, error) {
	cmd := xz(ctx, arguments...)
	var stdout, stderr bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = in, &stdout, &stderr
	if err := cmd.Run(); err != nil {
		return nil, xzError(err, &stderr)
	}
	return stdout.Bytes(), nil
}

// xzError explains why xz failed.
func xzError(err error, stderr *bytes.Buffer) error {
	if errors.Is(err, exec.ErrNotFound) {
		return fmt.Errorf("xz is not installed (package xz-utils): %w", err)
	}
	return fmt.Errorf("xz: %w: %s", err, strings.TrimSpace(stderr.String()))
}

// unpackMemory bounds the memory of xz for a stream. All presets of xz need less.
const unpackMemory = "--memlimit-decompress=80MiB"

// unpack gives read what a stream holds. Damage behind what read takes is not noticed.
func unpack(stream []byte, read func(io.Reader) error) error {
	cmd := xz(context.Background(), "-dc", unpackMemory)
	var stderr bytes.Buffer
	cmd.Stdin, cmd.Stderr = bytes.NewReader(stream), &stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return xzError(err, &stderr)
	}
	failed := read(out)
	out.Close() // ends an xz that has more
	cmd.Wait()
	if failed != nil && stderr.Len() > 0 {
		return fmt.Errorf("%w: %s", failed, strings.TrimSpace(stderr.String()))
	}
	return failed
}

// The parts of a stream that give its length (The .xz File Format, version 1.2.1).
const (
	streamMagic  = "\xfd7zXZ\x00"
	streamHeader = 12
	streamFooter = 12
	streamAlign  = 4
	checkFlags   = 7 // offset in the header of the type of check
	indexCRC     = 4
)

// checkSizes has the bytes of each type of check.
var checkSizes = [16]int{0, 4, 4, 4, 8, 8, 8, 16, 16, 16, 32, 32, 32, 64, 64, 64}

// streamLength returns the length of the .xz stream at the beginning of image, because xz does not
// report where it stopped. The last filter of each block is LZMA2.
func streamLength(image []byte) (int, error) {
	if !bytes.HasPrefix(image, []byte(streamMagic)) {
		return 0, errors.New("neither a cpio archive nor an .xz stream")
	}
	if len(image) < streamHeader {
		return 0, io.ErrUnexpectedEOF
	}
	check := checkSizes[image[checkFlags]&15]
	at := streamHeader
	for at < len(image) && image[at] != 0 {
		end, err := chunksEnd(image, at+(int(image[at])+1)*streamAlign)
		if err != nil {
			return 0, err
		}
		at = end + -end&(streamAlign-1) + check
	}
	return indexEnd(image, at)
}

// chunksEnd returns where the LZMA2 chunks end that begin at an offset. A control byte precedes
// each chunk.
func chunksEnd(image []byte, at int) (int, error) {
	const last, stored, storedAgain, compressed, properties = 0, 1, 2, 0x80, 0xc0
	for at < len(image) {
		rest := image[at:]
		switch control := rest[0]; {
		case control == last:
			return at + 1, nil
		case (control == stored || control == storedAgain) && len(rest) >= 3:
			at += 3 + int(binary.BigEndian.Uint16(rest[1:])) + 1
		case control >= compressed && len(rest) >= 5:
			at += 5 + int(binary.BigEndian.Uint16(rest[3:])) + 1
			if control >= properties {
				at++
			}
		case control < compressed && control > storedAgain:
			return 0, fmt.Errorf("a chunk begins with %#x", control)
		default:
			return 0, io.ErrUnexpectedEOF
		}
	}
	return 0, io.ErrUnexpectedEOF
}

// indexEnd returns where the stream ends whose index begins at an offset: a zero byte, the number
// of records, and two numbers for each.
func indexEnd(image []byte, start int) (int, error) {
	at := start + 1
	next := func() (uint64, bool) {
		if at >= len(image) {
			return 0, false
		}
		number, n := binary.Uvarint(image[at:])
		at += n
		return number, n > 0
	}
	records, ok := next()
	for n := uint64(0); ok && n < records; n++ {
		if _, ok = next(); ok {
			_, ok = next()
		}
	}
	at += -(at-start)&(streamAlign-1) + indexCRC + streamFooter
	if !ok || at > len(image) {
		return 0, io.ErrUnexpectedEOF
	}
	return at, nil
}
