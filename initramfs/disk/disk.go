// Package disk writes and reads disk images that UEFI firmware boots without a boot entry: a GUID
// partition table (UEFI 2.10, chapter 5) with one partition, an EFI system partition with the file
// system FAT32 (Microsoft, FAT32 File System Specification 1.03), and in it one program in the
// folder EFI/BOOT. The image may be written to a disk or a USB stick, which may be larger.
//
// The bytes of an image depend only on the program and its name: identifiers are made from its
// hash, times are the first that FAT knows.
package disk

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"io"
	"math"
	"strings"
	"unicode/utf16"
)

// Folder is the folder of the program.
const Folder = "EFI/BOOT"

// sector is the size of a sector and of a cluster, in bytes.
const sector = 512

// The table: in sectors, from the beginning of the disk, or in bytes.
const (
	tableHeader  = 92 // bytes
	tableEntry   = 128
	tableEntries = 128
	entrySectors = tableEntries * tableEntry / sector
	firstEntries = 2
	partition    = 2048 // where the partition begins: at the first MiB
)

// The file system: in sectors, from the beginning of the partition.
const (
	infoSector = 1
	bootCopy   = 6
	reserved   = 32 // before the allocation tables
	tables     = 2

	// leastClusters is the number of clusters that a FAT32 has at least: a file system with fewer
	// than 65,525 is taken for a FAT16.
	leastClusters = 66_000
	firstCluster  = 2 // the number of the first one
	endOfFile     = 0x0fffffff
	clusterMask   = 0x0fffffff
	slot          = 32   // bytes of an entry of a directory
	deleted       = 0xe5 // the first byte of an entry that is free
)

// The attributes of an entry of a directory.
const (
	isLabel     = 0x08
	isDirectory = 0x10
	isFile      = 0x20
)

// maxProgram bounds a program, in bytes.
const maxProgram = 1 << 30

// systemPartition is the type of an EFI system partition, C12A7328-F81F-11D2-BA4B-00A0C93EC93B, as
// it is stored.
var systemPartition = [16]byte{0x28, 0x73, 0x2a, 0xc1, 0x1f, 0xf8, 0xd2, 0x11, 0xba, 0x4b, 0x00, 0xa0, 0xc9, 0x3e, 0xc9, 0x3b}

var little = binary.LittleEndian

// plan is where the parts of a disk are.
type plan struct {
	fat      int // sectors of one allocation table
	clusters int
	sectors  int // of the disk
}

// planFor returns the plan of a disk with a program of a size in bytes, and with some clusters at
// least.
func planFor(size, least int) plan {
	clusters := max(directories+sectorsOf(size), least)
	fat := sectorsOf((firstCluster + clusters) * 4)
	sectors := partition + reserved + tables*fat + clusters + entrySectors + 1
	return plan{fat, clusters, (sectors + partition - 1) / partition * partition}
}

func sectorsOf(bytes int) int { return (bytes + sector - 1) / sector }

// volume is the number of sectors of the partition.
func (p plan) volume() int { return reserved + tables*p.fat + p.clusters }

// The directories, each of one cluster: the root, EFI and EFI/BOOT. The program follows them.
const (
	rootCluster = firstCluster + iota
	efiCluster
	bootCluster
	programCluster
	directories = programCluster - firstCluster
)

// Write writes the image of a disk with a program, whose name has at most 8 letters, digits, "-"
// and "_", and an ending of at most 3, as BOOTX64.EFI.
func Write(name string, program []byte, w io.Writer) error {
	return write(name, program, leastClusters, w)
}

func write(name string, program []byte, least int, w io.Writer) error {
	short, err := shortName(name)
	if err != nil {
		return err
	}
	if len(program) == 0 || len(program) > maxProgram {
		return fmt.Errorf("disk image: a program of %d bytes, there may be 1 to %d", len(program), maxProgram)
	}
	p := planFor(len(program), least)
	hash := sha256.New()
	hash.Write(append(short[:], 0))
	hash.Write(program)
	sum := [sha256.Size]byte(hash.Sum(nil))
	fat := p.allocation(len(program))
	for _, part := range [][]byte{
		protective(p), p.header(sum, false), p.entries(sum), make([]byte, (partition-firstEntries-entrySectors)*sector),
		p.boot(sum, len(program)), fat, fat, folders(short, len(program)), program,
	} {
		if _, err := w.Write(part); err != nil {
			return err
		}
	}
	rest := p.sectors - partition - reserved - tables*p.fat - directories - entrySectors - 1
	if _, err := w.Write(make([]byte, rest*sector-len(program))); err != nil {
		return err
	}
	_, err = w.Write(append(p.entries(sum), p.header(sum, true)...))
	return err
}

// shortName returns a name as directories have it.
func shortName(name string) (short [11]byte, err error) {
	stem, ending, _ := strings.Cut(name, ".")
	valid := func(s string) bool {
		return strings.Trim(s, "ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_") == ""
	}
	if stem == "" || len(stem) > 8 || len(ending) > 3 || !valid(stem) || !valid(ending) {
		return short, fmt.Errorf("disk image: a program cannot have the name %q", name)
	}
	copy(short[:], fmt.Sprintf("%-8s%-3s", stem, ending))
	return short, nil
}

// protective returns the first sector, which shows the whole disk as used to programs that do not
// know the table.
func protective(p plan) []byte {
	b := make([]byte, sector)
	e := b[446:]
	copy(e, []byte{0, 0, 2, 0, 0xee, 0xff, 0xff, 0xff})
	little.PutUint32(e[8:], 1)
	little.PutUint32(e[12:], uint32(min(int64(p.sectors)-1, math.MaxUint32)))
	b[510], b[511] = 0x55, 0xaa
	return b
}

// guid makes an identifier of version 8 (RFC 9562) from a hash and what it identifies.
func guid(sum [32]byte, what byte) (id [16]byte) {
	sum = sha256.Sum256(append(sum[:], what))
	copy(id[:], sum[:])
	id[7], id[8] = id[7]&0x0f|0x80, id[8]&0x3f|0x80 // the first three numbers are little-endian
	return id
}

// The things with an identifier.
const (
	wholeDisk = iota
	onePartition
	fileSystem
)

// header returns the header of the table, or its copy at the end of the disk.
func (p plan) header(sum [32]byte, last bool) []byte {
	own, other, entries := 1, p.sectors-1, firstEntries
	if last {
		own, other, entries = other, own, p.sectors-1-entrySectors
	}
	b := make([]byte, sector)
	copy(b, "EFI PART")
	little.PutUint32(b[8:], 0x00010000)
	little.PutUint32(b[12:], tableHeader)
	little.PutUint64(b[24:], uint64(own))
	little.PutUint64(b[32:], uint64(other))
	little.PutUint64(b[40:], firstEntries+entrySectors)
	little.PutUint64(b[48:], uint64(p.sectors-2-entrySectors))
	id := guid(sum, wholeDisk)
	copy(b[56:], id[:])
	little.PutUint64(b[72:], uint64(entries))
	little.PutUint32(b[80:], tableEntries)
	little.PutUint32(b[84:], tableEntry)
	little.PutUint32(b[88:], crc32.ChecksumIEEE(p.entries(sum)))
	little.PutUint32(b[16:], crc32.ChecksumIEEE(b[:tableHeader]))
	return b
}

// entries returns the entries of the table.
func (p plan) entries(sum [32]byte) []byte {
	b := make([]byte, entrySectors*sector)
	copy(b, systemPartition[:])
	id := guid(sum, onePartition)
	copy(b[16:], id[:])
	little.PutUint64(b[32:], partition)
	little.PutUint64(b[40:], uint64(partition+p.volume()-1))
	for i, c := range utf16.Encode([]rune("EFI system partition")) {
		little.PutUint16(b[56+2*i:], c)
	}
	return b
}

// label is the name of the file system.
const label = "MARGAY     "

// boot returns the sectors before the allocation tables.
func (p plan) boot(sum [32]byte, size int) []byte {
	b := make([]byte, reserved*sector)
	copy(b, "\xeb\x58\x90MARGAY  ")
	little.PutUint16(b[11:], sector)
	b[13] = 1 // sector per cluster
	little.PutUint16(b[14:], reserved)
	b[16] = tables
	b[21] = 0xf8                  // a disk that is not removable
	little.PutUint16(b[24:], 63)  // sectors per track, which nothing uses
	little.PutUint16(b[26:], 255) // heads, likewise
	little.PutUint32(b[28:], partition)
	little.PutUint32(b[32:], uint32(p.volume()))
	little.PutUint32(b[36:], uint32(p.fat))
	little.PutUint32(b[44:], rootCluster)
	little.PutUint16(b[48:], infoSector)
	little.PutUint16(b[50:], bootCopy)
	b[64], b[66] = 0x80, 0x29
	id := guid(sum, fileSystem)
	copy(b[67:71], id[:])
	copy(b[71:], label+"FAT32   ")
	b[510], b[511] = 0x55, 0xaa

	used := directories + sectorsOf(size)
	info := b[infoSector*sector:]
	copy(info, "RRaA")
	copy(info[484:], "rrAa")
	little.PutUint32(info[488:], uint32(p.clusters-used))
	little.PutUint32(info[492:], uint32(firstCluster+used))
	info[510], info[511] = 0x55, 0xaa
	copy(b[bootCopy*sector:], b[:2*sector])
	return b
}

// allocation returns an allocation table.
func (p plan) allocation(size int) []byte {
	b := make([]byte, p.fat*sector)
	put := func(cluster, next int) { little.PutUint32(b[cluster*4:], uint32(next)) }
	put(0, 0x0ffffff8)
	put(1, endOfFile)
	for c := rootCluster; c < programCluster; c++ {
		put(c, endOfFile)
	}
	last := programCluster + sectorsOf(size) - 1
	for c := programCluster; c < last; c++ {
		put(c, c+1)
	}
	put(last, endOfFile)
	return b
}

// folders returns the directories.
func folders(program [11]byte, size int) []byte {
	b := make([]byte, directories*sector)
	entry := func(directory, n int, name string, attributes byte, cluster, size int) {
		e := b[(directory-firstCluster)*sector+n*slot:]
		const first = 1<<5 | 1 // 1980-01-01
		copy(e, name)
		e[11] = attributes
		for _, date := range []int{16, 18, 24} { // made, read, changed
			little.PutUint16(e[date:], first)
		}
		little.PutUint16(e[20:], uint16(cluster>>16))
		little.PutUint16(e[26:], uint16(cluster))
		little.PutUint32(e[28:], uint32(size))
	}
	entry(rootCluster, 0, label, isLabel, 0, 0)
	entry(rootCluster, 1, "EFI        ", isDirectory, efiCluster, 0)
	entry(efiCluster, 0, ".          ", isDirectory, efiCluster, 0)
	entry(efiCluster, 1, "..         ", isDirectory, 0, 0) // the root has no number here
	entry(efiCluster, 2, "BOOT       ", isDirectory, bootCluster, 0)
	entry(bootCluster, 0, ".          ", isDirectory, bootCluster, 0)
	entry(bootCluster, 1, "..         ", isDirectory, efiCluster, 0)
	entry(bootCluster, 2, string(program[:]), isFile, programCluster, size)
	return b
}
