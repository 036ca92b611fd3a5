// Package archive is the border between margay run, which packs the files of a job, and the job
// inits, which unpack them.
//
// The files travel as one tar archive in PAX format, compressed by zstd unless it is small: regular
// files, folders and symbolic links, with names relative to the job's root. An entry of a regular
// file may have the PAX record Content, the SHA-256 digest of its data. Nodes keep files by their
// digests, so an entry with that record may come without data (size 0) when each node of the job
// has the content. One with the PAX record Code as well is executed: the program, its interpreter
// or a library. Jobs with the same code share its memory, so none can change it.
//
// margay run names the digests in its request for the job, at most MaxContents, and learns which of
// them some node lacks. If it is small, an archive without the data of all of them comes with the
// request, for nodes that lack none. A digest is only as good as the data: a node that keeps a file
// computes the digest itself.
//
// Files that ranks have written travel back as a tar archive in PAX format without compression, one
// for each node (JobSpec.out of the control protocol). Names begin with the index of the path that
// they were asked for by: "0" is the file or folder of the first path, "0/x" is x in that folder.
// Folders come before their contents. A further link to a file is a hard link. A file that cannot
// travel is an entry with the record Left. A file with holes has the record Holes, and its data are
// extents: an offset and a length, 8 bytes each, big-endian, and so many bytes. The last entry is
// called End, so an archive that has lost its end is noticed.
package archive

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
)

// Compressed begins an archive that is compressed (RFC 8878, section 3.1.1), and no other.
const Compressed = "\x28\xb5\x2f\xfd"

// Content is the PAX record that holds the digest of a file, in hexadecimal digits.
const Content = "MARGAY.content"

// Code is the PAX record of a file with a digest that is executed, and read-only on the node. It is
// empty or "1".
const Code = "MARGAY.code"

// Records and names of files that travel back.
const (
	Holes = "MARGAY.holes" // record: the size of a file with holes, in decimal digits
	Left  = "MARGAY.left"  // record: why a file is not in the archive
	End   = "end"          // name of the last entry
)

// MaxDepth is how deep below a path that is asked for files travel back.
const MaxDepth = 100

// Bounds of the files that are named by digests. A smaller file travels faster than it is looked
// up.
const (
	MaxContents = 256       // digests in one request, and files with the record Code
	MinSize     = 4 << 10   // bytes of a file, at least
	MaxSize     = 256 << 20 // bytes of all these files, at most; they are read once more for it
)

// Digest names the content of a file: its SHA-256 digest.
type Digest [sha256.Size]byte

// String returns the digest in hexadecimal digits.
func (d Digest) String() string { return hex.EncodeToString(d[:]) }

// Parse reads what String returns.
func Parse(text string) (d Digest, err error) {
	b, err := hex.DecodeString(text)
	if err != nil {
		return d, fmt.Errorf("archive: digest: %w", err)
	}
	return FromBytes(b)
}

// MarshalText implements encoding.TextMarshaler.
func (d Digest) MarshalText() ([]byte, error) { return []byte(d.String()), nil }

// UnmarshalText implements encoding.TextUnmarshaler.
func (d *Digest) UnmarshalText(text []byte) (err error) {
	*d, err = Parse(string(text))
	return err
}

// FromBytes reads the bytes of a digest.
func FromBytes(b []byte) (d Digest, err error) {
	if len(b) != len(d) {
		return d, fmt.Errorf("archive: digest of %d bytes, not %d", len(b), len(d))
	}
	return Digest(b), nil
}
