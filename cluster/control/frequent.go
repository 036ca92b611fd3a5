package control

import (
	"fmt"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
)

// The messages of each job and heartbeats are wrapped, unwrapped, encoded and decoded without
// reflection. What protobuf makes of the types of messages at first use would be a fifth of the
// processor time of margay run. control.proto marks these messages, and tools/gen/proto writes
// control.codec.go for them. The encoding is the same: TestFrequent, TestCodec and FuzzFrame
// compare both ways.

// Fields of Frame.
const (
	fieldCall   protowire.Number = 1
	fieldAnswer protowire.Number = 2
)

// marshalFrame returns an encoded frame after room for its length.
func marshalFrame(f *Frame) (packet []byte, err error) {
	field, body := f.frequent()
	if body == nil || len(f.unknownFields) > 0 {
		return marshalByProtobuf(f)
	}
	size := body.size()
	e := encoder{b: make([]byte, lengthSize, lengthSize+frameHead+size)}
	encodeInt(&e, fieldCall, f.Call)
	encodeInt(&e, fieldAnswer, f.Answer)
	e.tag(field, protowire.BytesType)
	e.b = protowire.AppendVarint(e.b, uint64(size))
	begin := len(e.b)
	body.encode(&e)
	if e.wrong {
		return marshalByProtobuf(f)
	}
	if len(e.b)-begin != size {
		return nil, fmt.Errorf("%T was changed while it was encoded", body)
	}
	return e.b, nil
}

func marshalByProtobuf(f *Frame) ([]byte, error) {
	return proto.MarshalOptions{}.MarshalAppend(make([]byte, lengthSize, lengthSize+proto.Size(f)), f)
}

// parseFrame decodes a frame.
func parseFrame(packet []byte) (*Frame, error) {
	if f := parseFrequent(packet); f != nil {
		return f, nil
	}
	f := new(Frame)
	return f, proto.Unmarshal(packet, f)
}

// parseFrequent is parseFrame for a frame with one frequent message. It returns nil for all others,
// and for those with an error.
func parseFrequent(packet []byte) *Frame {
	f := new(Frame)
	p := parser{in: packet}
	for p.next() {
		switch {
		case p.field == fieldCall:
			parseInt(&p, &f.Call)
		case p.field == fieldAnswer:
			parseInt(&p, &f.Answer)
		case p.kind == protowire.BytesType && f.Body == nil:
			body := emptyFrequent(p.field)
			if body == nil {
				return nil
			}
			inner := parser{in: p.data}
			body.parse(&inner)
			p.wrong, f.Body = inner.wrong, frequent(body).Body
		default:
			return nil
		}
	}
	if p.wrong {
		return nil
	}
	return f
}
