package launch

import (
	"encoding/binary"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"margay/kernel/abi/archive"
)

// digests are the digests of programs and libraries of this user's earlier jobs. To read the files
// and to compute the digests is a tenth of the processor time of margay run for a short job. A file
// is known by its identity, which changes whenever the file is written to.
//
// Only code is remembered. Data may be written through a mapping of the file for a while without a
// new time of change. For the same reason a file that has changed less than Settled ago is not
// remembered, nor one in a file system that does not notice such writes (noticing).
type digests struct {
	path  string // of the file that keeps them; empty: they are not kept
	now   time.Time
	known []known // the newest first
	fresh bool    // known is not what the file has

	notices func(path string) bool // noticing, but in tests
}

// known is a digest as the file has it.
type known struct {
	File   identity
	Digest archive.Digest
}

// identity identifies a state of a file of this host.
type identity struct {
	Device, Inode, Size, Modified, Changed uint64 // times in nanoseconds
}

// fields are the fields in the order of the file.
func (i *identity) fields() [identityFields]*uint64 {
	return [...]*uint64{&i.Device, &i.Inode, &i.Size, &i.Modified, &i.Changed}
}

// Settled is how long ago a program must have changed last for its digest to be remembered.
const Settled = time.Minute

const mostDigests = 512

// digestsMagic begins the file of digests, and names its format.
const digestsMagic = "margayd1"

// identityFields is the number of fields of an identity, and knownSize the size of a digest in the
// file.
const (
	identityFields = 5
	knownSize      = identityFields*8 + len(archive.Digest{})
)

// readDigests reads the digests that are kept at path. A file that another user could have written
// has none.
func readDigests(path string, now time.Time) *digests {
	d := &digests{path: path, now: now, notices: noticing}
	if path == "" {
		return d
	}
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return d
	}
	defer f.Close()
	var st unix.Stat_t
	if unix.Fstat(int(f.Fd()), &st) != nil || st.Mode&unix.S_IFMT != unix.S_IFREG || int(st.Uid) != os.Geteuid() || st.Mode&0o022 != 0 {
		return d
	}
	text := make([]byte, min(st.Size, int64(len(digestsMagic)+mostDigests*knownSize)))
	if _, err := io.ReadFull(f, text); err == nil {
		d.known = parseDigests(text)
	}
	return d
}

// parseDigests reads the contents of the file, none if it is damaged.
func parseDigests(text []byte) (list []known) {
	if len(text) < len(digestsMagic) || string(text[:len(digestsMagic)]) != digestsMagic || (len(text)-len(digestsMagic))%knownSize != 0 {
		return nil
	}
	list = make([]known, 0, len(text)/knownSize)
	for text = text[len(digestsMagic):]; len(text) > 0; text = text[knownSize:] {
		var k known
		for i, field := range k.File.fields() {
			*field = binary.LittleEndian.Uint64(text[8*i:])
		}
		copy(k.Digest[:], text[8*identityFields:knownSize])
		list = append(list, k)
	}
	return list
}

// of returns the digest of a file, which it computes if it is not known.
func (d *digests) of(file *File) (archive.Digest, error) {
	if !file.Code || file.inside || d.path == "" {
		return digestOf(file)
	}
	before, err := identify(file)
	if err != nil {
		return archive.Digest{}, err
	}
	if before.Size != uint64(file.Size) || !before.precise() || !d.notices(file.Path) {
		return digestOf(file) // another file may have the same identity, or the file changes
	}
	if i := slices.IndexFunc(d.known, func(k known) bool { return k.File == before }); i >= 0 {
		return d.known[i].Digest, nil
	}
	digest, err := digestOf(file)
	if err != nil {
		return digest, err
	}
	after, err := identify(file)
	if err == nil && before == after && d.now.Sub(time.Unix(0, int64(after.Changed))) >= Settled {
		d.known = slices.Insert(d.known, 0, known{after, digest})
		d.known = d.known[:min(len(d.known), mostDigests)]
		d.fresh = true
	}
	return digest, nil
}

// precise reports whether the identity changes with the file. The times of an image, such as
// squashfs, are whole seconds that its maker has chosen, often one for all files. The next image
// that is mounted may have the same device and inodes.
func (i identity) precise() bool { return i.Changed%uint64(time.Second) != 0 }

// noticing reports whether the file system of a file is one of those that change the time of a file
// at the first write to a page through a mapping. One in memory (tmpfs) never does.
func noticing(path string) bool {
	var st unix.Statfs_t
	if unix.Statfs(path, &st) != nil {
		return false
	}
	return slices.Contains([]int64{unix.EXT4_SUPER_MAGIC, unix.XFS_SUPER_MAGIC, unix.BTRFS_SUPER_MAGIC}, int64(st.Type))
}

// identify looks at a file.
func identify(file *File) (identity, error) {
	var st unix.Stat_t
	if err := unix.Stat(file.Path, &st); err != nil {
		return identity{}, &fs.PathError{Op: "stat", Path: file.Path, Err: err}
	}
	return identity{st.Dev, st.Ino, uint64(st.Size), uint64(st.Mtim.Nano()), uint64(st.Ctim.Nano())}, nil
}

// keep writes the digests if there are new ones. Whatever prevents that costs later jobs some time.
func (d *digests) keep() {
	if !d.fresh {
		return
	}
	text := []byte(digestsMagic)
	for _, k := range d.known {
		for _, field := range k.File.fields() {
			text = binary.LittleEndian.AppendUint64(text, *field)
		}
		text = append(text, k.Digest[:]...)
	}
	f, err := os.CreateTemp(filepath.Dir(d.path), ".digests-")
	if err != nil {
		return
	}
	_, err = f.Write(text)
	if closing := f.Close(); err != nil || closing != nil || os.Rename(f.Name(), d.path) != nil {
		_ = os.Remove(f.Name())
	}
}
