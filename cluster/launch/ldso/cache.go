package ldso

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"path/filepath"

	"margay/cluster/launch/regular"
)

// maxConfig is how many bytes of the configuration of a loader are read. The cache of a system with
// ten thousand libraries has one MiB.
const maxConfig = 64 << 20

// readConfig reads a file of a loader's configuration.
func readConfig(path string) ([]byte, error) {
	f, err := regular.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	var data bytes.Buffer
	data.Grow(int(min(info.Size(), maxConfig)) + bytes.MinRead) // it is copied otherwise
	_, err = data.ReadFrom(io.LimitReader(f, maxConfig+1))
	if err == nil && data.Len() > maxConfig {
		err = fmt.Errorf("%s: more than %d bytes", path, maxConfig)
	}
	return data.Bytes(), err
}

// readCache reads the cache of the GNU loader. It is empty when there is none that this loader
// would use.
func readCache(path string) *cache {
	data, err := readConfig(path)
	if err != nil {
		return new(cache)
	}
	return parseCache(data)
}

// The format of the cache, dl-cache.h of the GNU C library. Old ones begin with a table for older
// loaders, which the header follows.
const (
	oldMagic   = "ld.so-1.7.0\x00"
	oldHeader  = len(oldMagic) + 4
	oldEntry   = 12
	cacheMagic = "glibc-ld.so.cache1.1"
	cacheAlign = 8
	endianMask = 3
	endianBig  = 3
	kindGNU    = 3 // the first byte of an entry's flags: a library for this C library; the other bytes are the machine, which the library itself says better
)

// Where things are in the header, which the magic begins, and in an entry, in bytes. Key and value
// are where in the cache the name of a library and its path begin.
const (
	cacheHeader  = 48
	entriesAt    = 20
	endianAt     = 28
	cacheEntry   = 24
	entryKeyAt   = 4
	entryValueAt = 8
	entryHwcapAt = 16 // what the processor must have; 0: nothing
)

// cache is the cache of the GNU loader. A program has few libraries, and a system has thousands, so
// paths looks at all entries each time, and nothing is made of the others.
type cache struct {
	entries []byte
	text    []byte // what keys and values refer to
}

// parseCache finds the entries of a cache.
func parseCache(data []byte) *cache {
	data = skipOld(data)
	if !bytes.HasPrefix(data, []byte(cacheMagic)) || len(data) < cacheHeader || data[endianAt]&endianMask == endianBig {
		return new(cache)
	}
	entries := data[cacheHeader:]
	size := int64(binary.LittleEndian.Uint32(data[entriesAt:])) * cacheEntry
	return &cache{entries[:min(size, int64(len(entries)))], data}
}

// size is how many entries paths looks at.
func (c *cache) size() int { return len(c.entries) / cacheEntry }

// paths returns the paths of a library, in the order of the cache, without those for particular
// processors.
func (c *cache) paths(name string) (paths []string) {
	if name == "" || len(name) >= maxName {
		return nil
	}
	for rest := c.entries; len(rest) >= cacheEntry; rest = rest[cacheEntry:] {
		key := int64(binary.LittleEndian.Uint32(rest[entryKeyAt:]))
		end := key + int64(len(name))
		if end >= int64(len(c.text)) || c.text[end] != 0 || string(c.text[key:end]) != name {
			continue
		}
		if rest[0] != kindGNU || binary.LittleEndian.Uint64(rest[entryHwcapAt:]) != 0 {
			continue
		}
		if path := stringAt(c.text, binary.LittleEndian.Uint32(rest[entryValueAt:])); filepath.IsAbs(path) {
			paths = append(paths, path)
		}
	}
	return paths
}

// skipOld returns what follows the table for older loaders.
func skipOld(data []byte) []byte {
	if !bytes.HasPrefix(data, []byte(oldMagic)) || len(data) < oldHeader {
		return data
	}
	entries := binary.LittleEndian.Uint32(data[len(oldMagic):])
	end := int64(oldHeader) + int64(entries)*oldEntry
	end = (end + cacheAlign - 1) / cacheAlign * cacheAlign
	return data[min(end, int64(len(data))):]
}

// stringAt returns the string that begins at an offset and ends with a NUL, as names of files do;
// empty: there is none.
func stringAt(text []byte, at uint32) string {
	if int64(at) >= int64(len(text)) {
		return ""
	}
	text = text[at:]
	found, _, ended := bytes.Cut(text[:min(maxName, len(text))], []byte{0})
	if !ended {
		return ""
	}
	return string(found)
}
