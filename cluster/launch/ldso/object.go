package ldso

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"slices"

	"margay/cluster/launch/regular"
)

// Bounds for reading a file.
const (
	maxSegments = 64 << 10 // bytes of program headers, as in Linux
	maxDynamic  = 1 << 20  // bytes of the dynamic section
	maxNeeded   = 1024     // libraries that one file needs itself
	maxName     = 4 << 10  // bytes of the name of a file, as in Linux
	maxFolders  = 64 << 10 // bytes of a list of folders
	maxNames    = 1 << 20  // bytes of all names and lists of one file, which may overlap in it
)

// object is what a loader goes by in an ELF file. Sections, which it does not look at, are not
// read.
type object struct {
	machine     elf.Machine
	interpreter string   // the loader that the file names; empty: none
	needed      []string // libraries, by names or paths
	soname      string   // what the file is called by those that need it; empty: the name of the file
	rpath       string   // folders for it and for all that it brings; none when it has a runpath
	runpath     string   // folders for it alone
	hasRunpath  bool
	noDefault   bool // the folders of the system are not searched for it
}

// machineNames are the machines whose loaders are known, as paths name them. All have 64 bits and
// begin numbers with the lowest byte.
var machineNames = map[elf.Machine]string{elf.EM_X86_64: "x86_64", elf.EM_AARCH64: "aarch64", elf.EM_RISCV: "riscv64"}

// size is about how much memory the object takes, in bytes.
func (o *object) size() int {
	const header = 16 // of a string
	size := len(o.interpreter) + len(o.soname) + len(o.rpath) + len(o.runpath) + 8*header
	for _, name := range o.needed {
		size += len(name) + header
	}
	return size
}

// readObject reads a file that can be loaded, as parseObject does. It adds the bytes that it has
// read to work.
func readObject(path string, machine elf.Machine, work *int) (*object, error) {
	f, err := regular.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return parseObject(&countingReader{f, work}, machine)
}

// countingReader counts the bytes that are asked for.
type countingReader struct {
	io.ReaderAt
	n *int
}

func (c *countingReader) ReadAt(p []byte, at int64) (int, error) {
	*c.n += len(p)
	return c.ReaderAt.ReadAt(p, at)
}

var (
	errNotLoadable = errors.New("it is not a loadable ELF file")
	errDamaged     = errors.New("it is an ELF file that is truncated or damaged")
)

// parseObject reads what a loader goes by. A file for a machine whose loaders are not known is an
// empty object, and of one for another machine than the given one nothing but its machine is read;
// elf.EM_NONE: for any.
func parseObject(r io.ReaderAt, machine elf.Machine) (*object, error) {
	var h elf.Header64
	if err := readAt(r, 0, &h); err != nil || string(h.Ident[:len(elf.ELFMAG)]) != elf.ELFMAG {
		return nil, errNotLoadable
	}
	if h.Ident[elf.EI_CLASS] != byte(elf.ELFCLASS64) || h.Ident[elf.EI_DATA] != byte(elf.ELFDATA2LSB) || machineNames[elf.Machine(h.Machine)] == "" {
		return &object{}, nil
	}
	if t := elf.Type(h.Type); t != elf.ET_EXEC && t != elf.ET_DYN {
		return nil, errNotLoadable
	}
	o := &object{machine: elf.Machine(h.Machine)}
	if machine != elf.EM_NONE && o.machine != machine {
		return o, nil
	}
	segments, err := readSegments(r, h)
	if err != nil {
		return nil, err
	}
	if at := lastOf(segments, elf.PT_INTERP); at >= 0 {
		if o.interpreter, err = readString(r, segments[at].Off, maxName); err != nil {
			return nil, err
		}
	}
	if at := lastOf(segments, elf.PT_DYNAMIC); at >= 0 {
		err = o.readDynamic(r, segments, segments[at])
	}
	return o, err
}

// lastOf returns the place of the last segment of a kind; -1: there is none.
func lastOf(segments []elf.Prog64, kind elf.ProgType) int {
	for at, s := range slices.Backward(segments) {
		if elf.ProgType(s.Type) == kind {
			return at
		}
	}
	return -1
}

// readSegments reads the program headers.
func readSegments(r io.ReaderAt, h elf.Header64) ([]elf.Prog64, error) {
	size := binary.Size(elf.Prog64{})
	if h.Phnum > 0 && int(h.Phentsize) != size || int(h.Phnum)*size > maxSegments {
		return nil, errDamaged
	}
	segments := make([]elf.Prog64, h.Phnum)
	return segments, readAt(r, h.Phoff, segments)
}

// readDynamic reads the dynamic section, whose segment is s.
func (o *object) readDynamic(r io.ReaderAt, segments []elf.Prog64, s elf.Prog64) error {
	at, ok := offset(segments, s.Vaddr)
	if !ok || s.Filesz > maxDynamic {
		return errDamaged
	}
	entries := make([]byte, s.Filesz/dynamicEntry*dynamicEntry)
	if n, _ := r.ReadAt(entries, int64(at)); n < len(entries) {
		return errDamaged
	}
	var needed []uint64
	last := make(map[elf.DynTag]uint64) // values; of several with one tag, loaders take the last
	for ; len(entries) >= dynamicEntry; entries = entries[dynamicEntry:] {
		tag, value := elf.DynTag(binary.LittleEndian.Uint64(entries)), binary.LittleEndian.Uint64(entries[8:])
		if tag == elf.DT_NULL {
			break
		}
		switch tag {
		case elf.DT_NEEDED:
			needed = append(needed, value)
		case elf.DT_STRTAB, elf.DT_SONAME, elf.DT_RPATH, elf.DT_RUNPATH, elf.DT_FLAGS_1:
			last[tag] = value
		}
	}
	_, o.hasRunpath = last[elf.DT_RUNPATH]
	o.noDefault = elf.DynFlag1(last[elf.DT_FLAGS_1])&elf.DF_1_NODEFLIB != 0
	left := maxNames
	return o.readNames(needed, last, func(value uint64, most int) (string, error) {
		at, ok := offset(segments, last[elf.DT_STRTAB]+value)
		if !ok {
			return "", errDamaged
		}
		text, err := readString(r, at, most)
		if left -= len(text); left < 0 {
			return "", fmt.Errorf("the names of what it needs have more than %d bytes", maxNames)
		}
		return text, err
	})
}

// dynamicEntry is the size of an entry of the dynamic section, in bytes: a tag and a value.
const dynamicEntry = 16

// readNames reads what the values of the dynamic section refer to. text reads a string.
func (o *object) readNames(needed []uint64, last map[elf.DynTag]uint64, text func(value uint64, most int) (string, error)) error {
	if len(needed) > maxNeeded {
		return fmt.Errorf("it needs more than %d libraries", maxNeeded)
	}
	for _, value := range needed {
		name, err := text(value, maxName)
		if err != nil {
			return err
		}
		o.needed = append(o.needed, name)
	}
	if o.hasRunpath {
		delete(last, elf.DT_RPATH)
	}
	for tag, name := range map[elf.DynTag]*string{elf.DT_SONAME: &o.soname, elf.DT_RPATH: &o.rpath, elf.DT_RUNPATH: &o.runpath} {
		value, ok := last[tag]
		if !ok {
			continue
		}
		var err error
		if *name, err = text(value, maxFolders); err != nil {
			return err
		}
	}
	return nil
}

// offset returns where in the file the byte at an address is.
func offset(segments []elf.Prog64, address uint64) (at uint64, ok bool) {
	for _, s := range segments {
		if elf.ProgType(s.Type) == elf.PT_LOAD && address >= s.Vaddr && address-s.Vaddr < s.Filesz {
			return s.Off + (address - s.Vaddr), true
		}
	}
	return 0, false
}

// readAt reads a structure, or a slice of them.
func readAt(r io.ReaderAt, at uint64, into any) error {
	data := make([]byte, binary.Size(into))
	if n, _ := r.ReadAt(data, int64(at)); n < len(data) {
		return errDamaged
	}
	_, err := binary.Decode(data, binary.LittleEndian, into)
	return err
}

// readString reads a string that ends with a NUL and is shorter than most bytes. The table that it
// is in may have many MiB. Few names of it are read, so it is read in pieces that grow.
func readString(r io.ReaderAt, at uint64, most int) (string, error) {
	const piece = 256
	var data []byte
	for size := min(piece, most); ; size = min(2*size, most) {
		have := len(data)
		data = slices.Grow(data, size-have)[:size]
		n, _ := r.ReadAt(data[have:], int64(at)+int64(have))
		if end := bytes.IndexByte(data[have:have+n], 0); end >= 0 {
			return string(data[:have+end]), nil
		}
		if have+n < size || size == most {
			return "", errDamaged
		}
	}
}
