package control

import (
	"bytes"
	"fmt"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
)

// Fields of Frame.
const (
	fieldCall   protowire.Number = 1
	fieldAnswer protowire.Number = 2
)

// NewFrame wraps a message of this protocol. It panics when the message is none.
func NewFrame(body proto.Message) *Frame {
	f := frameOf(body)
	if f == nil {
		panic(fmt.Sprintf("control: a frame cannot carry %T", body))
	}
	return f
}

// Message returns what the frame carries, nil when it is nothing this version knows.
func (f *Frame) Message() proto.Message {
	if _, body := f.body(); body != nil {
		return body
	}
	return nil
}

// marshalFrame returns an encoded frame after room for its length.
func marshalFrame(f *Frame) (packet []byte, err error) {
	field, body := f.body()
	size := 0
	if body != nil {
		size = body.size()
	}
	e := encoder{b: make([]byte, lengthSize, lengthSize+frameHead+size+len(f.unknownFields))}
	encodeInt(&e, fieldCall, f.Call)
	encodeInt(&e, fieldAnswer, f.Answer)
	if body != nil {
		e.tag(field, protowire.BytesType)
		e.b = protowire.AppendVarint(e.b, uint64(size))
		begin := len(e.b)
		body.encode(&e)
		if len(e.b)-begin != size {
			return nil, fmt.Errorf("%T was changed while it was encoded", body)
		}
	}
	e.b = append(e.b, f.unknownFields...)
	return e.b, e.err
}

// bodySize is at least the bytes of the largest message of a frame, without what it points to.
const bodySize = 512

// parseFrame decodes a frame, which may take so many bytes of memory. Of several messages the last
// one counts; a message that comes in parts is the sum of them.
func parseFrame(packet []byte, memory int) (*Frame, error) {
	f := new(Frame)
	p := parser{in: packet, memory: memory}
	for p.next() {
		switch p.field {
		case fieldCall:
			parseInt(&p, &f.Call)
		case fieldAnswer:
			parseInt(&p, &f.Answer)
		default:
			f.parseBody(&p)
		}
		p.keep(&f.unknownFields)
	}
	return f, p.err
}

// parseBody decodes the current field as the message of a frame.
func (f *Frame) parseBody(p *parser) {
	body := emptyBody(p.field)
	if body == nil {
		p.unknown = true
		return
	}
	if !p.is(protowire.BytesType) {
		return
	}
	if field, had := f.body(); field == p.field {
		body = had
	} else if !p.takes(bodySize) {
		return
	} else {
		f.Body = frameOf(body).Body
	}
	p.inner(body)
}

// Same reports whether two messages of one type have the same encoding.
func Same[T any, M pointer[T]](a, b M) bool {
	var x, y encoder
	a.encode(&x)
	b.encode(&y)
	return (a == nil) == (b == nil) && bytes.Equal(x.b, y.b)
}
