package pmi

import (
	"encoding/binary"
	"errors"
	"fmt"
)

// Messages between the job inits of a job, byte by byte. All numbers are little-endian.
//
//	0  u8  kind
//	1  u8  zero[3]
//	4  u32 part, from 0
//	8  u64 number of the barrier, from 1, or of the request
//
// The rest depends on the kind:
//
//	1 fold      16 u32 parts in all, 20 u32 zero, 24 a part of the fold: to the parent in the tree
//	2 table     the same: to a child
//	3 folded    empty: the part has arrived
//	4 tabled    the same
//	5 request   16 u8 operation, 17 u8 zero, 18 u16 bytes of the name, 20 u16 bytes of the port,
//	            22 u16 zero, 24 name, port: to the root
//	6 answer    16 u8 1 if it was carried out, else 0, 17 u8 zero, 18 u16 bytes of the port,
//	            20 u32 zero, 24 port
//
// Folds and tables begin with 8 bytes, and pairs of a key and a value follow:
//
//	0  u32 1 if a rank waits in the barrier, else 0
//	4  u32 a rank that will not enter it, or 2^32-1
//
//	0  u16 bytes of the key
//	2  u16 bytes of the value
//	4  key, value
const (
	kindFold = 1 + iota
	kindTable
	kindFolded
	kindTabled
	kindRequest
	kindAnswer
)

const (
	messageHeader = 16
	bodyHeader    = 24
	foldHeader    = 8
	pairHeader    = 4

	// partSize is the most bytes of a fold or a table in one message.
	partSize = 32 << 10

	// maxParts bounds the parts of a fold or a table.
	maxParts = (foldHeader + maxTable) / partSize * 2
)

// MaxMessage is the size of the longest message, in bytes.
const MaxMessage = bodyHeader + partSize

// noRank stands for none in a fold.
const noRank = 1<<32 - 1

// errMessage reports bytes that are not a message, or a message that its receiver does not expect.
var errMessage = errors.New("pmi: bad message")

type message struct {
	kind   byte
	part   uint32
	number uint64
	parts  uint32 // of a fold or a table
	body   []byte // the same

	operation operation // of a request
	ok        bool      // of an answer
	name      string
	port      string
}

func (m *message) encode() []byte {
	b := []byte{m.kind, 0, 0, 0}
	b = binary.LittleEndian.AppendUint32(b, m.part)
	b = binary.LittleEndian.AppendUint64(b, m.number)
	switch m.kind {
	case kindFold, kindTable:
		b = binary.LittleEndian.AppendUint32(b, m.parts)
		b = binary.LittleEndian.AppendUint32(b, 0)
		b = append(b, m.body...)
	case kindRequest:
		b = append(b, byte(m.operation), 0)
		b = binary.LittleEndian.AppendUint16(b, uint16(len(m.name)))
		b = binary.LittleEndian.AppendUint16(b, uint16(len(m.port)))
		b = append(b, 0, 0)
		b = append(append(b, m.name...), m.port...)
	case kindAnswer:
		ok := byte(0)
		if m.ok {
			ok = 1
		}
		b = append(b, ok, 0)
		b = binary.LittleEndian.AppendUint16(b, uint16(len(m.port)))
		b = append(b, 0, 0, 0, 0)
		b = append(b, m.port...)
	}
	return b
}

// decode reads a message, which may be any bytes. It keeps parts of b.
func decode(b []byte) (m message, err error) {
	if len(b) < messageHeader || len(b) > MaxMessage {
		return m, fmt.Errorf("%w: %d bytes", errMessage, len(b))
	}
	m.kind, m.part, m.number = b[0], binary.LittleEndian.Uint32(b[4:]), binary.LittleEndian.Uint64(b[8:])
	if m.kind == kindFolded || m.kind == kindTabled {
		if len(b) != messageHeader {
			return m, fmt.Errorf("%w: %d bytes", errMessage, len(b))
		}
		return m, nil
	}
	if len(b) < bodyHeader {
		return m, fmt.Errorf("%w: %d bytes", errMessage, len(b))
	}
	header, rest := b[messageHeader:bodyHeader], b[bodyHeader:]
	switch m.kind {
	case kindFold, kindTable:
		m.parts, m.body = binary.LittleEndian.Uint32(header), rest
		if m.parts == 0 || m.parts > maxParts || m.part >= m.parts {
			return m, fmt.Errorf("%w: part %d of %d", errMessage, m.part, m.parts)
		}
		return m, nil
	case kindRequest:
		m.operation = operation(header[0])
		name, port := int(binary.LittleEndian.Uint16(header[2:])), int(binary.LittleEndian.Uint16(header[4:]))
		if m.operation > unpublish || name > maxName || port > maxValue || name+port != len(rest) {
			return m, fmt.Errorf("%w: operation %d, name of %d bytes, port of %d", errMessage, m.operation, name, port)
		}
		m.name, m.port = string(rest[:name]), string(rest[name:])
		return m, nil
	case kindAnswer:
		m.ok = header[0] == 1
		if port := int(binary.LittleEndian.Uint16(header[2:])); header[0] > 1 || port > maxValue || port != len(rest) {
			return m, fmt.Errorf("%w: answer %d, port of %d bytes in %d", errMessage, header[0], port, len(rest))
		}
		m.port = string(rest)
		return m, nil
	}
	return m, fmt.Errorf("%w: kind %d", errMessage, m.kind)
}

// pair is an entry of the key space.
type pair struct{ key, value string }

func (p pair) size() int { return pairHeader + len(p.key) + len(p.value) }

// fold is what a part of the tree brings to a barrier, or what the barrier has brought to all.
type fold struct {
	waits bool   // a rank waits in the barrier
	gone  uint32 // a rank that will not enter it, or noRank
	pairs []pair
}

func (f *fold) encode() []byte {
	waits := uint32(0)
	if f.waits {
		waits = 1
	}
	b := binary.LittleEndian.AppendUint32(nil, waits)
	b = binary.LittleEndian.AppendUint32(b, f.gone)
	for _, p := range f.pairs {
		b = binary.LittleEndian.AppendUint16(b, uint16(len(p.key)))
		b = binary.LittleEndian.AppendUint16(b, uint16(len(p.value)))
		b = append(append(b, p.key...), p.value...)
	}
	return b
}

// decodeFold reads a fold or a table, which may be any bytes.
func decodeFold(b []byte) (f fold, err error) {
	if len(b) < foldHeader || binary.LittleEndian.Uint32(b) > 1 {
		return f, fmt.Errorf("%w: fold of %d bytes", errMessage, len(b))
	}
	f.waits, f.gone = binary.LittleEndian.Uint32(b) == 1, binary.LittleEndian.Uint32(b[4:])
	total := 0
	for b = b[foldHeader:]; len(b) > 0; {
		if len(b) < pairHeader {
			return f, fmt.Errorf("%w: %d bytes at the end of a fold", errMessage, len(b))
		}
		key, value := int(binary.LittleEndian.Uint16(b)), int(binary.LittleEndian.Uint16(b[2:]))
		if key >= maxKey || value >= maxValue || pairHeader+key+value > len(b) {
			return f, fmt.Errorf("%w: key of %d bytes and value of %d in %d", errMessage, key, value, len(b))
		}
		p := pair{string(b[pairHeader : pairHeader+key]), string(b[pairHeader+key : pairHeader+key+value])}
		if !printable(p.key) || !printable(p.value) {
			return f, fmt.Errorf("%w: key %.40q or its value has bytes that a line cannot have", errMessage, p.key)
		}
		if total += p.size(); total > maxTable {
			return f, fmt.Errorf("%w: more than %d bytes of pairs", errMessage, maxTable)
		}
		f.pairs = append(f.pairs, p)
		b = b[p.size():]
	}
	return f, nil
}

// printable reports whether a text can be a value in a line.
func printable(text string) bool {
	for _, b := range []byte(text) {
		if b <= ' ' || b > '~' {
			return false
		}
	}
	return true
}
