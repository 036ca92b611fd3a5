package image

import (
	"bufio"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"
	"golang.org/x/sys/unix"
)

// Cache keeps layers without compression in a folder, by digest. Several processes may use it at
// once.
//
// A process writes a layer to a file with the ending .part, under an exclusive lock (flock), and
// renames the file when its digest is right. Another process that needs the layer waits for the
// name, or for the lock if the writer dies. A layer in use has a shared lock. Files without a lock
// may be removed at any time, so a file counts only if it still has its name after it was locked.
// Locks end with their processes.
type Cache struct {
	Dir  string // only this user can change it
	Most int64  // bytes that stay, besides layers in use
}

// Endings of the files in the cache.
const (
	layerEnding = ".tar"
	partEnding  = ".part"
)

// lookPause is how long to wait before another look at a layer that another process writes.
const lookPause = 100 * time.Millisecond

// layer returns a layer, open and locked, and as the image has it, from open, if it is not there.
func (c *Cache) layer(ctx context.Context, digest string, m *meter, open func() (io.ReadCloser, error)) (*os.File, error) {
	if err := os.MkdirAll(c.Dir, 0o700); err != nil {
		return nil, err
	}
	name := filepath.Join(c.Dir, strings.Replace(digest, ":", "-", 1)+layerEnding)
	for {
		f, err := held(name)
		if err == nil {
			return f, m.pass(f)
		}
		if errors.Is(err, fs.ErrNotExist) {
			err = c.fill(ctx, name, digest, m, open)
		}
		if err != nil && !errors.Is(err, errInUse) {
			return nil, err
		}
		if err == nil {
			continue
		}
		m.progress(m.done)
		select {
		case <-time.After(lookPause):
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

// errInUse reports a file that another process writes, or removes.
var errInUse = errors.New("another process uses it")

// held opens and locks a layer that is there.
func held(name string) (*os.File, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	if err := lock(f, name, unix.LOCK_SH); err != nil {
		f.Close()
		return nil, err
	}
	now := time.Now()
	_ = os.Chtimes(name, now, now) // which layers go first is all that depends on it
	return f, nil
}

// lock locks a file of the cache that still has its name, or returns errInUse.
func lock(f *os.File, name string, how int) error {
	err := unix.Flock(int(f.Fd()), how|unix.LOCK_NB)
	if err == unix.EWOULDBLOCK || err == nil && !isAt(f, name) {
		return errInUse
	}
	return err
}

// isAt reports whether an open file has a name.
func isAt(f *os.File, name string) bool {
	ours, err := f.Stat()
	if err != nil {
		return false
	}
	there, err := os.Lstat(name)
	return err == nil && os.SameFile(ours, there)
}

// fill writes a layer, and gives it its name if its digest is right.
func (c *Cache) fill(ctx context.Context, name, digest string, m *meter, open func() (io.ReadCloser, error)) error {
	part, err := os.OpenFile(name+partEnding, os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return err
	}
	defer part.Close()
	if err := lock(part, part.Name(), unix.LOCK_EX); err != nil {
		return err
	}
	if _, err := os.Stat(name); err == nil {
		return os.Remove(part.Name()) // it has come a moment ago
	}
	size, err := write(ctx, part, digest, m, open)
	if err != nil {
		os.Remove(part.Name())
		if errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) {
			err = fmt.Errorf("there is no room in the cache, %s: %w", c.Dir, err)
		}
		return err
	}
	c.makeRoom(size)
	return os.Rename(part.Name(), name)
}

// write writes a layer without compression to the beginning of a file, and returns how many bytes
// it has.
func write(ctx context.Context, to *os.File, digest string, m *meter, open func() (io.ReadCloser, error)) (int64, error) {
	if err := to.Truncate(0); err != nil {
		return 0, err
	}
	packed, err := open()
	if err != nil {
		return 0, err
	}
	defer packed.Close()
	in, end, err := plain(&reading{Reader: packed, ctx: ctx, meter: m})
	if err != nil {
		return 0, err
	}
	defer end()
	hash := sha256.New()
	n, err := io.Copy(io.MultiWriter(to, hash), io.LimitReader(in, m.left+1))
	if err != nil {
		return 0, err
	}
	if n > m.left {
		return 0, m.tooLarge()
	}
	if got := "sha256:" + hex.EncodeToString(hash.Sum(nil)); got != digest {
		return 0, fmt.Errorf("its data have the digest %s, not %s: %w", got, digest, errChanged)
	}
	return n, to.Sync() // so that a name means whole data, also after a loss of power
}

// Beginnings of compressed data (RFC 1952 and RFC 8878).
const (
	gzipMagic = "\x1f\x8b"
	zstdMagic = "\x28\xb5\x2f\xfd"
)

// unpackMemory bounds what zstd keeps in memory, in bytes: the window of its highest level.
const unpackMemory = 128 << 20

// plain returns the data without compression, and a function that ends reading them.
func plain(r io.Reader) (in io.Reader, end func(), err error) {
	packed := bufio.NewReaderSize(r, 1<<20)
	begin, _ := packed.Peek(len(zstdMagic)) // shorter data are not compressed
	switch {
	case strings.HasPrefix(string(begin), gzipMagic):
		zr, err := gzip.NewReader(packed)
		if err != nil {
			return nil, nil, err
		}
		return zr, func() { zr.Close() }, nil
	case string(begin) == zstdMagic:
		zr, err := zstd.NewReader(packed, zstd.WithDecoderMaxMemory(unpackMemory), zstd.WithDecoderConcurrency(1))
		if err != nil {
			return nil, nil, err
		}
		return zr, zr.Close, nil
	}
	return packed, func() {}, nil
}

// makeRoom removes the layers that have not been used for the longest time, until there is room for
// some bytes more, and the files of writers that have died. Layers in use stay.
func (c *Cache) makeRoom(bytes int64) {
	type kept struct {
		fs.FileInfo
		name string
	}
	var layers []kept
	entries, _ := os.ReadDir(c.Dir) // without the names nothing can be removed
	for _, e := range entries {
		name := filepath.Join(c.Dir, e.Name())
		info, err := e.Info()
		switch ending := filepath.Ext(name); {
		case err != nil:
		case ending == partEnding:
			removeUnused(name)
		case ending == layerEnding:
			layers = append(layers, kept{info, name})
			bytes += info.Size()
		}
	}
	slices.SortFunc(layers, func(a, b kept) int { return cmp.Compare(a.ModTime().UnixNano(), b.ModTime().UnixNano()) })
	for _, l := range layers {
		if bytes <= c.Most {
			return
		}
		if removeUnused(l.name) {
			bytes -= l.Size()
		}
	}
}

// removeUnused removes a file of the cache that no process uses.
func removeUnused(name string) bool {
	f, err := os.OpenFile(name, os.O_RDWR|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0) // to write, as locks over NFS need
	if err != nil {
		return false
	}
	defer f.Close()
	return lock(f, name, unix.LOCK_EX) == nil && os.Remove(name) == nil
}

// meter measures the unpacking of an image.
type meter struct {
	left, most int64 // bytes without compression
	done       int64 // bytes with it
	progress   func(done int64)
}

// pass counts a layer that is there, or closes it if it is too large.
func (m *meter) pass(f *os.File) error {
	info, err := f.Stat()
	if err == nil {
		if m.left -= info.Size(); m.left < 0 {
			err = m.tooLarge()
		}
	}
	if err != nil {
		f.Close()
	}
	return err
}

func (m *meter) tooLarge() error {
	return fmt.Errorf("unpacked, the image has more than %d MiB; --root-limit MIB allows more", m.most>>20)
}

// reading reads a layer of an image until its context ends.
type reading struct {
	io.Reader
	ctx   context.Context
	meter *meter
}

func (r *reading) Read(p []byte) (int, error) {
	if r.ctx.Err() != nil {
		return 0, context.Cause(r.ctx)
	}
	n, err := r.Reader.Read(p)
	r.meter.done += int64(n)
	r.meter.progress(r.meter.done)
	return n, err
}
