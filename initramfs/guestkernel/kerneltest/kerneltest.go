// Package kerneltest makes synthetic kernels for tests.
package kerneltest

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"strings"
)

// Note is an ELF note.
func Note(name string, kind uint32, content string) string {
	var b bytes.Buffer
	for _, word := range []uint32{uint32(len(name)), uint32(len(content)), kind} {
		binary.Write(&b, binary.LittleEndian, word)
	}
	for _, part := range []string{name, content} {
		b.WriteString(part + strings.Repeat("\x00", -len(part)&3))
	}
	return b.String()
}

// ELF is an ELF file of a machine with notes.
func ELF(machine elf.Machine, notes string) []byte {
	const headerSize, segmentSize = 64, 56
	var b bytes.Buffer
	header := elf.Header64{
		Ident: [elf.EI_NIDENT]byte{0x7f, 'E', 'L', 'F', byte(elf.ELFCLASS64), byte(elf.ELFDATA2LSB), byte(elf.EV_CURRENT)},
		Type:  uint16(elf.ET_EXEC), Machine: uint16(machine), Version: uint32(elf.EV_CURRENT),
		Phoff: headerSize, Ehsize: headerSize, Phentsize: segmentSize, Phnum: 1,
	}
	segment := elf.Prog64{Type: uint32(elf.PT_NOTE), Off: headerSize + segmentSize, Filesz: uint64(len(notes)), Align: 4}
	for _, part := range []any{header, segment} {
		binary.Write(&b, binary.LittleEndian, part)
	}
	return append(b.Bytes(), notes...)
}

// BootImage is an x86 boot image with a payload behind its setup sectors and a few bytes.
func BootImage(payload []byte) []byte {
	const sectors, gap = 3, 100
	image := make([]byte, (sectors+1)*512+gap)
	image[0x1f1] = sectors
	copy(image[0x202:], "HdrS")
	binary.LittleEndian.PutUint16(image[0x206:], 0x20f)
	binary.LittleEndian.PutUint32(image[0x248:], gap)
	binary.LittleEndian.PutUint32(image[0x24c:], uint32(len(payload)))
	return append(append(image, payload...), "more"...)
}
