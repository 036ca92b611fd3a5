package stack

import (
	"encoding/binary"
	"errors"
)

// errFrame reports call frame information that is damaged, or of a kind that is not supported.
var errFrame = errors.New("call frame information is not understood")

// cursor reads values from bytes. After an error all values are 0.
type cursor struct {
	data []byte
	addr uint64 // of data[0] in the process
	err  error
}

func (c *cursor) take(n uint64) []byte {
	if c.err != nil || n > uint64(len(c.data)) {
		c.err = errFrame
		return make([]byte, min(n, 8))
	}
	out := c.data[:n]
	c.data, c.addr = c.data[n:], c.addr+n
	return out
}

func (c *cursor) u8() uint64  { return uint64(c.take(1)[0]) }
func (c *cursor) u16() uint64 { return uint64(binary.LittleEndian.Uint16(c.take(2))) }
func (c *cursor) u32() uint64 { return uint64(binary.LittleEndian.Uint32(c.take(4))) }
func (c *cursor) u64() uint64 { return binary.LittleEndian.Uint64(c.take(8)) }

// uleb reads a number in LEB128; bits above 64 are lost.
func (c *cursor) uleb() (value uint64) {
	for shift := 0; c.err == nil; shift += 7 {
		b := c.u8()
		if shift < 64 {
			value |= b & 0x7f << shift
		}
		if b&0x80 == 0 {
			break
		}
	}
	return value
}

// sleb reads a signed number in LEB128.
func (c *cursor) sleb() (value int64) {
	for shift := 0; c.err == nil; {
		b := c.u8()
		if shift < 64 {
			value |= int64(b&0x7f) << shift
		}
		shift += 7
		if b&0x80 == 0 {
			if b&0x40 != 0 && shift < 64 {
				value |= -1 << shift
			}
			break
		}
	}
	return value
}

// text reads up to a NUL.
func (c *cursor) text() string {
	for i, b := range c.data {
		if b == 0 {
			return string(c.take(uint64(i) + 1)[:i])
		}
	}
	c.err = errFrame
	return ""
}

// Encodings of pointers (Linux Standard Base, "DWARF Exception Header Encoding").
const (
	encAbsolute = 0x00
	encULEB     = 0x01
	encU16      = 0x02
	encU32      = 0x03
	encU64      = 0x04
	encS32      = 0x0b
	encS64      = 0x0c
	encFormat   = 0x0f
	encPCRel    = 0x10
	encHow      = 0x70
	encIndirect = 0x80
	encOmit     = 0xff
)

// pointer reads an encoded pointer. Those relative to anything but their own place are not
// supported; no compiler uses them in .eh_frame.
func (c *cursor) pointer(enc uint64) uint64 {
	if enc == encOmit {
		return 0
	}
	at := c.addr
	var value uint64
	switch enc & encFormat {
	case encAbsolute, encU64, encS64:
		value = c.u64()
	case encU16:
		value = c.u16()
	case encU32:
		value = c.u32()
	case encS32:
		value = uint64(int64(int32(c.u32())))
	case encULEB:
		value = c.uleb()
	default:
		c.err = errFrame
	}
	switch enc & encHow {
	case encAbsolute:
	case encPCRel:
		value += at
	default:
		c.err = errFrame
	}
	return value
}
