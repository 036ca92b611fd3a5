package disk

import (
	"bytes"
	"errors"
	"fmt"
	"hash/crc32"
	"slices"
	"strings"
)

// ErrDisk is wrapped by every error about the contents of a disk that is read.
var ErrDisk = errors.New("not a disk image that UEFI firmware boots")

// Is reports whether a file is a disk image. Its first 1024 bytes are enough.
func Is(head []byte) bool {
	return len(head) >= sector+8 && string(head[sector:sector+8]) == "EFI PART"
}

// Read returns the first program in the folder of an image, and its name. The image is untrusted.
func Read(image []byte) (name string, program []byte, err error) {
	name, program, err = read(image)
	if err != nil {
		return "", nil, fmt.Errorf("%w: %w", ErrDisk, err)
	}
	return name, program, nil
}

func read(image []byte) (string, []byte, error) {
	v, err := findVolume(image)
	if err != nil {
		return "", nil, err
	}
	at := v.root
	for folder := range strings.SplitSeq(Folder, "/") {
		want, err := shortName(folder)
		if err != nil {
			return "", nil, err
		}
		e, err := v.find(at, func(e []byte) bool { return bytes.Equal(e[:11], want[:]) && e[11]&isDirectory != 0 })
		if err != nil {
			return "", nil, fmt.Errorf("folder %s: %w", folder, err)
		}
		at = clusterOf(e)
	}
	e, err := v.find(at, func(e []byte) bool {
		return e[0] != deleted && string(e[8:11]) == "EFI" && e[11]&(isDirectory|isLabel) == 0
	})
	if err != nil {
		return "", nil, fmt.Errorf("program in %s: %w", Folder, err)
	}
	program, err := v.chain(clusterOf(e), int(little.Uint32(e[28:])))
	return strings.TrimRight(string(e[:8]), " ") + ".EFI", program, err
}

// errTruncated reports an image that ends early, or says that it is longer than it is.
var errTruncated = errors.New("it is truncated")

// part returns a part of an image, in bytes.
func part(image []byte, at, size uint64) ([]byte, error) {
	if at > uint64(len(image)) || size > uint64(len(image))-at {
		return nil, errTruncated
	}
	return image[at : at+size], nil
}

// volume is a file system that is read.
type volume struct {
	data    []byte // from the first cluster on
	fat     []byte
	cluster int // bytes
	root    uint32
}

// findVolume returns the file system of the first EFI system partition.
func findVolume(image []byte) (volume, error) {
	if !Is(image) || len(image) < 2*sector {
		return volume{}, errors.New("it has no GUID partition table")
	}
	h := slices.Clone(image[sector : 2*sector])
	sum := little.Uint32(h[16:])
	clear(h[16:20])
	if size := little.Uint32(h[12:]); size != tableHeader || crc32.ChecksumIEEE(h[:tableHeader]) != sum {
		return volume{}, errors.New("its partition table is damaged")
	}
	count, size := little.Uint32(h[80:]), little.Uint32(h[84:])
	start := little.Uint64(h[72:])
	if size != tableEntry || count > 4*tableEntries || start > uint64(len(image)) {
		return volume{}, errors.New("its partition table is of an unusual form")
	}
	entries, err := part(image, start*sector, uint64(count)*tableEntry)
	if err != nil {
		return volume{}, err
	}
	if crc32.ChecksumIEEE(entries) != little.Uint32(h[88:]) {
		return volume{}, errors.New("its partition table is damaged")
	}
	for e := range slices.Chunk(entries, tableEntry) {
		if !bytes.Equal(e[:16], systemPartition[:]) {
			continue
		}
		first, last := little.Uint64(e[32:]), little.Uint64(e[40:])
		if first > last || last > uint64(len(image)) {
			return volume{}, errTruncated
		}
		data, err := part(image, first*sector, (last-first+1)*sector)
		if err != nil {
			return volume{}, err
		}
		return openVolume(data)
	}
	return volume{}, errors.New("it has no EFI system partition")
}

func openVolume(b []byte) (volume, error) {
	if len(b) < sector || b[510] != 0x55 || b[511] != 0xaa || little.Uint16(b[11:]) != sector || b[13] == 0 || little.Uint16(b[22:]) != 0 {
		return volume{}, errors.New("its EFI system partition has no FAT32")
	}
	fat := uint64(little.Uint32(b[36:])) * sector
	start := uint64(little.Uint16(b[14:])) * sector
	table, err := part(b, start, fat)
	if err != nil {
		return volume{}, err
	}
	data := start + uint64(b[16])*fat
	if data > uint64(len(b)) {
		return volume{}, errTruncated
	}
	return volume{b[data:], table, int(b[13]) * sector, little.Uint32(b[44:]) & clusterMask}, nil
}

// at returns the contents of a cluster, and the number of the next one.
func (v volume) at(cluster uint32) (data []byte, next uint32, err error) {
	if cluster < firstCluster {
		return nil, 0, errors.New("a file system that is damaged")
	}
	entry, err := part(v.fat, uint64(cluster)*4, 4)
	if err != nil {
		return nil, 0, err
	}
	data, err = part(v.data, uint64(cluster-firstCluster)*uint64(v.cluster), uint64(v.cluster))
	return data, little.Uint32(entry) & clusterMask, err
}

// chain returns a file of a size in bytes that begins with a cluster.
func (v volume) chain(cluster uint32, size int) ([]byte, error) {
	if size > len(v.data) {
		return nil, errTruncated
	}
	b := make([]byte, 0, size)
	for len(b) < size {
		data, next, err := v.at(cluster)
		if err != nil {
			return nil, err
		}
		b, cluster = append(b, data[:min(len(data), size-len(b))]...), next
	}
	return b, nil
}

// maxFolder bounds the clusters of a directory that are read.
const maxFolder = 64

// find returns the first entry of a directory that fits.
func (v volume) find(cluster uint32, fits func(entry []byte) bool) ([]byte, error) {
	for range maxFolder {
		data, next, err := v.at(cluster)
		if err != nil {
			return nil, err
		}
		for e := range slices.Chunk(data, slot) {
			switch {
			case e[0] == 0:
				return nil, errors.New("there is none")
			case fits(e):
				return e, nil
			}
		}
		cluster = next
	}
	return nil, errors.New("there is none")
}

// clusterOf returns the first cluster of an entry.
func clusterOf(e []byte) uint32 {
	return uint32(little.Uint16(e[20:]))<<16 | uint32(little.Uint16(e[26:]))
}
