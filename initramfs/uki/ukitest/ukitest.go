// Package ukitest has an EFI stub for tests, which firmware would not run.
package ukitest

import (
	"bytes"
	"debug/pe"
	"encoding/binary"
)

// The parts of a stub, in bytes.
const (
	align   = 512
	headers = 0x40             // where the PE headers begin
	Option  = headers + 4 + 20 // where the optional header begins
	option  = 240              // size of that
	section = 40               // size of a section's header
)

// Stub returns a stub with one section, .text, with room in its headers for some more, and with
// symbols at its end.
func Stub(room int) []byte {
	size := (Option + option + (1+room)*section + align - 1) / align * align
	b := make([]byte, size)
	little := binary.LittleEndian
	copy(b, "MZ")
	little.PutUint32(b[0x3c:], headers)
	copy(b[headers:], "PE\x00\x00")
	file := b[headers+4:]
	little.PutUint16(file, pe.IMAGE_FILE_MACHINE_AMD64)
	little.PutUint16(file[2:], 1) // section
	little.PutUint16(file[16:], option)
	h := b[Option:]
	little.PutUint16(h, 0x20b)       // PE32+
	little.PutUint32(h[8:], align)   // initialized data
	little.PutUint32(h[32:], align)  // alignment in memory
	little.PutUint32(h[36:], align)  // alignment in the file
	little.PutUint32(h[56:], 0x1200) // size in memory
	little.PutUint32(h[60:], uint32(size))
	little.PutUint32(h[64:], 7) // checksum
	little.PutUint16(h[68:], pe.IMAGE_SUBSYSTEM_EFI_APPLICATION)
	little.PutUint32(h[108:], 16) // data directories
	s := h[option:]
	copy(s, ".text")
	little.PutUint32(s[8:], 100)
	little.PutUint32(s[12:], 0x1000)
	little.PutUint32(s[16:], align)
	little.PutUint32(s[20:], uint32(size))
	return append(append(b, bytes.Repeat([]byte{0x90}, align)...), "symbols"...)
}
