package control

import (
	"unicode/utf8"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
)

// coded is a message with a codec of its own (control.codec.go). The codec encodes as protobuf
// does, byte for byte. It leaves unknown fields, unusual encodings of lists, and errors to
// protobuf.
type coded interface {
	proto.Message
	size() int // encoded, in bytes
	encode(*encoder)
	parse(*parser)
}

// encoder appends encoded messages to b.
type encoder struct {
	b     []byte
	wrong bool // protobuf must encode the message, or refuse it
}

func (e *encoder) tag(field protowire.Number, kind protowire.Type) {
	e.b = protowire.AppendTag(e.b, field, kind)
}

func (e *encoder) blob(field protowire.Number, data []byte) {
	e.tag(field, protowire.BytesType)
	e.b = protowire.AppendBytes(e.b, data)
}

func (e *encoder) text(field protowire.Number, text string) {
	e.wrong = e.wrong || !utf8.ValidString(text)
	e.tag(field, protowire.BytesType)
	e.b = protowire.AppendString(e.b, text)
}

// parser reads the fields of an encoded message.
type parser struct {
	in     []byte // what follows the current field
	wrong  bool   // protobuf must read the message, or refuse it
	field  protowire.Number
	number uint64 // its value, of a varint
	data   []byte // its value, of anything with a length
	kind   protowire.Type
}

// next reads the next field, and reports whether there is one.
func (p *parser) next() bool {
	if p.wrong || len(p.in) == 0 {
		return false
	}
	var n int
	p.field, p.kind, n = protowire.ConsumeTag(p.in)
	if n < 0 {
		return p.foreign()
	}
	p.in = p.in[n:]
	switch p.kind {
	case protowire.VarintType:
		p.number, n = protowire.ConsumeVarint(p.in)
	case protowire.BytesType:
		p.data, n = protowire.ConsumeBytes(p.in)
	default:
		return p.foreign()
	}
	if n < 0 {
		return p.foreign()
	}
	p.in = p.in[n:]
	return true
}

// foreign leaves the message to protobuf.
func (p *parser) foreign() bool {
	p.wrong = true
	return false
}

// is reports whether the current field has the encoding that its type has usually.
func (p *parser) is(kind protowire.Type) bool {
	p.wrong = p.wrong || p.kind != kind
	return !p.wrong
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

// Lists of numbers are packed.

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
	if !p.is(protowire.BytesType) {
		return
	}
	for len(p.data) > 0 {
		v, n := protowire.ConsumeVarint(p.data)
		if n < 0 {
			p.foreign()
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
	if p.is(protowire.BytesType) && utf8.Valid(p.data) {
		*to = string(p.data)
	} else {
		p.foreign()
	}
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
	if parseText(p, &text); !p.wrong {
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
	if parseBlob(p, &data); !p.wrong {
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
		*to = new(T)
	}
	inner := parser{in: p.data}
	(*to).parse(&inner)
	p.wrong = inner.wrong
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
	if parseMessage[T](p, &m); !p.wrong {
		*to = append(*to, m)
	}
}
