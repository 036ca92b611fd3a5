package ldso

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"path/filepath"
	"strings"

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
	data, err := io.ReadAll(io.LimitReader(f, maxConfig+1))
	if err == nil && len(data) > maxConfig {
		err = fmt.Errorf("%s: more than %d bytes", path, maxConfig)
	}
	return data, err
}

// readCache reads the cache of the GNU loader. It is empty when there is none that this loader
// would use.
func readCache(path string) map[string][]string {
	data, err := readConfig(path)
	if err != nil {
		return map[string][]string{}
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
	kindMask   = 0xff
	kindGNU    = 3 // a library for this C library; the other bits of flags are the machine, which the library itself says better
)

// cacheHeader follows the magic.
type cacheHeader struct {
	Entries, Strings uint32
	Flags            uint8
	_                [3]byte
	_                [4]uint32
}

// cacheEntry is one library. Key and Value are where in the cache its name and its path begin.
type cacheEntry struct {
	Flags, Key, Value, _ uint32
	Hwcap                uint64 // what the processor must have; 0: nothing
}

// parseCache returns the paths of each library of a cache, in its order, without those for
// particular processors.
func parseCache(data []byte) map[string][]string {
	paths := make(map[string][]string)
	data = skipOld(data)
	var h cacheHeader
	rest, ok := bytes.CutPrefix(data, []byte(cacheMagic))
	size, err := binary.Decode(rest, binary.LittleEndian, &h)
	if !ok || err != nil || h.Flags&endianMask == endianBig {
		return paths
	}
	rest, text := rest[size:], string(data)
	for range h.Entries {
		var e cacheEntry
		size, err := binary.Decode(rest, binary.LittleEndian, &e)
		if err != nil {
			break
		}
		rest = rest[size:]
		name, path := stringAt(text, e.Key), stringAt(text, e.Value)
		if e.Flags&kindMask == kindGNU && e.Hwcap == 0 && name != "" && filepath.IsAbs(path) {
			paths[name] = append(paths[name], path)
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
func stringAt(text string, at uint32) string {
	if int64(at) >= int64(len(text)) {
		return ""
	}
	text = text[at:]
	found, _, ended := strings.Cut(text[:min(maxName, len(text))], "\x00")
	if !ended {
		return ""
	}
	return found
}
