package control

import (
	"errors"
	"maps"
	"math"
	"slices"
	"unicode/utf8"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
)

// All messages are wrapped, unwrapped, encoded and decoded without reflection, by what
// tools/gen/proto writes into control.codec.go. The encoding is protobuf's, byte for byte;
// TestCodec and FuzzFrame compare both. Only programs that call ProtoReflect link protobuf's
// tables. Filling the tables would be a fifth of the processor time of margay run; with their code
// they would be a tenth of a node's program.

// coded is a message with its codec.
type coded interface {
	proto.Message
	size() int // encoded, in bytes
	encode(*encoder)
	parse(*parser)
}

// Reasons why a message cannot be encoded or decoded.
var (
	errText     = errors.New("a string is not UTF-8")
	errEncoding = errors.New("it is not the encoding of a message")
	errSpread   = errors.New("it takes too much memory when it is decoded")
)

// Bounds of the memory for a decoded frame of a connection with a Room, in bytes: a part that does
// not depend on its length, and a multiple of its length. An empty word of a command takes 2 bytes
// in the frame and 24 in memory, which is 12 times as much; an empty message up to 200 times.
const (
	spreadBase = 1 << 20
	spread     = 16
)

// unlimited is the memory for a frame of a connection without a Room.
const unlimited = math.MaxInt

// encoder appends encoded messages to b.
type encoder struct {
	b   []byte
	err error
}

func (e *encoder) tag(field protowire.Number, kind protowire.Type) {
	e.b = protowire.AppendTag(e.b, field, kind)
}

func (e *encoder) blob(field protowire.Number, data []byte) {
	e.tag(field, protowire.BytesType)
	e.b = protowire.AppendBytes(e.b, data)
}

func (e *encoder) text(field protowire.Number, text string) {
	if !utf8.ValidString(text) {
		e.err = errText
	}
	e.tag(field, protowire.BytesType)
	e.b = protowire.AppendString(e.b, text)
}

// parser reads the fields of an encoded message.
type parser struct {
	in      []byte // what follows the current field
	err     error
	field   protowire.Number
	value   []byte // the current field without its tag
	kind    protowire.Type
	number  uint64 // its value, of a number
	data    []byte // its value, of anything with a length
	unknown bool   // the message has no such field, or one of another kind
	memory  int    // bytes that the rest may take in lists and messages
}

// inner parses the current field as a message.
func (p *parser) inner(m interface{ parse(*parser) }) {
	inner := parser{in: p.data, memory: p.memory}
	m.parse(&inner)
	p.err, p.memory = inner.err, inner.memory
}

// takes reports whether there is memory for so many bytes more.
func (p *parser) takes(bytes int) bool {
	if p.memory -= bytes; p.memory < 0 && p.err == nil {
		p.err = errSpread
	}
	return p.err == nil
}

// next reads the next field, and reports whether there is one.
func (p *parser) next() bool {
	if p.err != nil || len(p.in) == 0 {
		return false
	}
	var tag int
	p.field, p.kind, tag = protowire.ConsumeTag(p.in)
	if tag < 0 || p.field > protowire.MaxValidNumber {
		return p.fail(errEncoding)
	}
	n := protowire.ConsumeFieldValue(p.field, p.kind, p.in[tag:])
	if n < 0 {
		return p.fail(errEncoding)
	}
	p.value, p.in, p.unknown = p.in[tag:tag+n], p.in[tag+n:], false
	switch p.kind {
	case protowire.VarintType:
		p.number, _ = protowire.ConsumeVarint(p.value)
	case protowire.Fixed64Type:
		p.number, _ = protowire.ConsumeFixed64(p.value)
	case protowire.BytesType:
		p.data, _ = protowire.ConsumeBytes(p.value)
	}
	return true
}

func (p *parser) fail(err error) bool {
	p.err = err
	return false
}

// is reports whether the current field is of a kind. As protobuf does, the parser keeps a field of
// another kind than its number has as an unknown one.
func (p *parser) is(kind protowire.Type) bool {
	p.unknown = p.kind != kind
	return !p.unknown
}

// read reports whether the current field has been read.
func (p *parser) read() bool { return p.err == nil && !p.unknown }

// keep adds the current field to the unknown ones if it is one.
func (p *parser) keep(unknown *[]byte) {
	if p.unknown {
		*unknown = append(protowire.AppendTag(*unknown, p.field, p.kind), p.value...)
	}
}

// all reads a message that has no fields.
func (p *parser) all(unknown *[]byte) {
	for p.next() {
		p.unknown = true
		p.keep(unknown)
	}
}

// integer are the types of fields that are encoded as a varint.
type integer interface {
	~int32 | ~int64 | ~uint32 | ~uint64
}

func sizeInt[T integer](field protowire.Number, v T) int {
	if v == 0 {
		return 0
	}
	return protowire.SizeTag(field) + protowire.SizeVarint(uint64(v))
}

func encodeInt[T integer](e *encoder, field protowire.Number, v T) {
	if v != 0 {
		e.tag(field, protowire.VarintType)
		e.b = protowire.AppendVarint(e.b, uint64(v))
	}
}

func parseInt[T integer](p *parser, to *T) {
	if p.is(protowire.VarintType) {
		*to = T(p.number)
	}
}

func sizeBool(field protowire.Number, v bool) int { return sizeInt(field, protowire.EncodeBool(v)) }

func encodeBool(e *encoder, field protowire.Number, v bool) {
	encodeInt(e, field, protowire.EncodeBool(v))
}

func parseBool(p *parser, to *bool) {
	if p.is(protowire.VarintType) {
		*to = protowire.DecodeBool(p.number)
	}
}

func sizeDouble(field protowire.Number, v float64) int {
	if math.Float64bits(v) == 0 {
		return 0
	}
	return protowire.SizeTag(field) + protowire.SizeFixed64()
}

func encodeDouble(e *encoder, field protowire.Number, v float64) {
	if math.Float64bits(v) != 0 {
		e.tag(field, protowire.Fixed64Type)
		e.b = protowire.AppendFixed64(e.b, math.Float64bits(v))
	}
}

func parseDouble(p *parser, to *float64) {
	if p.is(protowire.Fixed64Type) {
		*to = math.Float64frombits(p.number)
	}
}

// Lists of numbers are packed, and read either way.

func sizePacked[T any](field protowire.Number, list []T, of func(T) uint64) int {
	if len(list) == 0 {
		return 0
	}
	return protowire.SizeTag(field) + protowire.SizeBytes(sizeNumbers(list, of))
}

func sizeNumbers[T any](list []T, of func(T) uint64) (n int) {
	for _, v := range list {
		n += protowire.SizeVarint(of(v))
	}
	return n
}

func encodePacked[T any](e *encoder, field protowire.Number, list []T, of func(T) uint64) {
	if len(list) == 0 {
		return
	}
	e.tag(field, protowire.BytesType)
	e.b = protowire.AppendVarint(e.b, uint64(sizeNumbers(list, of)))
	for _, v := range list {
		e.b = protowire.AppendVarint(e.b, of(v))
	}
}

func parsePacked[T any](p *parser, to *[]T, value func(uint64) T) {
	if p.kind == protowire.VarintType {
		if p.takes(memoryOf[T]()) {
			*to = append(*to, value(p.number))
		}
		return
	}
	if !p.is(protowire.BytesType) {
		return
	}
	for len(p.data) > 0 {
		v, n := protowire.ConsumeVarint(p.data)
		if n < 0 {
			p.fail(errEncoding)
			return
		}
		if !p.takes(memoryOf[T]()) {
			return
		}
		*to = append(*to, value(v))
		p.data = p.data[n:]
	}
}

// How numbers of a list are encoded: as they are, or with a sign (sint32).

func number[T integer](v T) uint64      { return uint64(v) }
func numberValue[T integer](v uint64) T { return T(v) }
func signed(v int32) uint64             { return protowire.EncodeZigZag(int64(v)) }
func signedValue(v uint64) int32        { return int32(protowire.DecodeZigZag(v & (1<<32 - 1))) }

func sizeInts[T integer](field protowire.Number, list []T) int {
	return sizePacked(field, list, number[T])
}

func encodeInts[T integer](e *encoder, field protowire.Number, list []T) {
	encodePacked(e, field, list, number[T])
}

func parseInts[T integer](p *parser, to *[]T) { parsePacked(p, to, numberValue[T]) }

func sizeSigneds(field protowire.Number, list []int32) int { return sizePacked(field, list, signed) }

func encodeSigneds(e *encoder, field protowire.Number, list []int32) {
	encodePacked(e, field, list, signed)
}

func parseSigneds(p *parser, to *[]int32) { parsePacked(p, to, signedValue) }

func sizeBools(field protowire.Number, list []bool) int {
	return sizePacked(field, list, protowire.EncodeBool)
}

func encodeBools(e *encoder, field protowire.Number, list []bool) {
	encodePacked(e, field, list, protowire.EncodeBool)
}

func parseBools(p *parser, to *[]bool) { parsePacked(p, to, protowire.DecodeBool) }

// Maps are lists of messages with a key and a value, which are in the order of the keys here.

// pair is an entry of a map.
type pair struct{ key, value uint64 }

func (m pair) size() int {
	return 2*protowire.SizeTag(1) + protowire.SizeVarint(m.key) + protowire.SizeVarint(m.value)
}

func (m *pair) parse(p *parser) {
	for p.next() {
		switch p.field {
		case 1:
			parseInt(p, &m.key)
		case 2:
			parseInt(p, &m.value)
		}
	}
}

func sizeMap(field protowire.Number, m map[uint32]uint64) (n int) {
	for k, v := range m {
		n += protowire.SizeTag(field) + protowire.SizeBytes(pair{uint64(k), v}.size())
	}
	return n
}

func encodeMap(e *encoder, field protowire.Number, m map[uint32]uint64) {
	for _, k := range slices.Sorted(maps.Keys(m)) {
		e.tag(field, protowire.BytesType)
		e.b = protowire.AppendVarint(e.b, uint64(pair{uint64(k), m[k]}.size()))
		e.tag(1, protowire.VarintType)
		e.b = protowire.AppendVarint(e.b, uint64(k))
		e.tag(2, protowire.VarintType)
		e.b = protowire.AppendVarint(e.b, m[k])
	}
}

func parseMap(p *parser, to *map[uint32]uint64) {
	if !p.is(protowire.BytesType) {
		return
	}
	if *to == nil {
		*to = make(map[uint32]uint64)
	}
	var entry pair
	if p.inner(&entry); p.takes(4 * memoryOf[pair]()) { // maps are not full
		(*to)[uint32(entry.key)] = entry.value
	}
}

func sizeText(field protowire.Number, text string) int {
	if text == "" {
		return 0
	}
	return protowire.SizeTag(field) + protowire.SizeBytes(len(text))
}

func encodeText(e *encoder, field protowire.Number, text string) {
	if text != "" {
		e.text(field, text)
	}
}

func parseText(p *parser, to *string) {
	if !p.is(protowire.BytesType) {
		return
	}
	if !utf8.Valid(p.data) {
		p.fail(errText)
		return
	}
	*to = string(p.data)
}

func sizeTexts(field protowire.Number, list []string) (n int) {
	for _, text := range list {
		n += protowire.SizeTag(field) + protowire.SizeBytes(len(text))
	}
	return n
}

func encodeTexts(e *encoder, field protowire.Number, list []string) {
	for _, text := range list {
		e.text(field, text)
	}
}

func parseTexts(p *parser, to *[]string) {
	var text string
	if parseText(p, &text); p.read() && p.takes(memoryOf[string]()+len(text)) {
		*to = append(*to, text)
	}
}

func sizeBlob(field protowire.Number, data []byte) int {
	if len(data) == 0 {
		return 0
	}
	return protowire.SizeTag(field) + protowire.SizeBytes(len(data))
}

func encodeBlob(e *encoder, field protowire.Number, data []byte) {
	if len(data) > 0 {
		e.blob(field, data)
	}
}

// parseBlob copies the data, as protobuf does: a message must not keep its frame.
func parseBlob(p *parser, to *[]byte) {
	if p.is(protowire.BytesType) {
		*to = append([]byte{}, p.data...)
	}
}

func sizeBlobs(field protowire.Number, list [][]byte) (n int) {
	for _, data := range list {
		n += protowire.SizeTag(field) + protowire.SizeBytes(len(data))
	}
	return n
}

func encodeBlobs(e *encoder, field protowire.Number, list [][]byte) {
	for _, data := range list {
		e.blob(field, data)
	}
}

func parseBlobs(p *parser, to *[][]byte) {
	var data []byte
	if parseBlob(p, &data); p.read() && p.takes(memoryOf[[]byte]()+len(data)) {
		*to = append(*to, data)
	}
}

// pointer is a pointer to a message of type T.
type pointer[T any] interface {
	*T
	coded
}

func sizeMessage[T any, M pointer[T]](field protowire.Number, m M) int {
	if m == nil {
		return 0
	}
	return protowire.SizeTag(field) + protowire.SizeBytes(m.size())
}

func encodeMessage[T any, M pointer[T]](e *encoder, field protowire.Number, m M) {
	if m != nil {
		encodeMessages[T](e, field, []M{m})
	}
}

// parseMessage adds to a message that an earlier field has brought, as protobuf does.
func parseMessage[T any, M pointer[T]](p *parser, to *M) {
	if !p.is(protowire.BytesType) {
		return
	}
	if *to == nil {
		if !p.takes(memoryOf[T]() + memoryOf[*T]()) {
			return
		}
		*to = new(T)
	}
	p.inner(*to)
}

func sizeMessages[T any, M pointer[T]](field protowire.Number, list []M) (n int) {
	for _, m := range list {
		n += protowire.SizeTag(field) + protowire.SizeBytes(m.size())
	}
	return n
}

func encodeMessages[T any, M pointer[T]](e *encoder, field protowire.Number, list []M) {
	for _, m := range list {
		e.tag(field, protowire.BytesType)
		e.b = protowire.AppendVarint(e.b, uint64(m.size()))
		m.encode(e)
	}
}

func parseMessages[T any, M pointer[T]](p *parser, to *[]M) {
	var m M
	if parseMessage[T](p, &m); p.read() {
		*to = append(*to, m)
	}
}
