package control

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"testing"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"margay/internal/check"
)

// bodies maps the name of a message to the field of Frame that carries it.
func bodies() map[protoreflect.FullName]protoreflect.FieldDescriptor {
	fields := new(Frame).ProtoReflect().Descriptor().Oneofs().ByName("body").Fields()
	m := make(map[protoreflect.FullName]protoreflect.FieldDescriptor, fields.Len())
	for i := range fields.Len() {
		m[fields.Get(i).Message().FullName()] = fields.Get(i)
	}
	return m
}

// Messages with values in all their fields are encoded and decoded as by protobuf, and so are those
// that were damaged.
func TestCodec(t *testing.T) {
	r := rand.New(rand.NewPCG(check.Seed(t), 0))
	for name, field := range bodies() {
		for n := range 20 {
			body := new(Frame).ProtoReflect().NewField(field).Message()
			fill(r, body, n == 0)
			f := NewFrame(body.Interface())
			want, err := proto.Marshal(f)
			if err != nil {
				t.Fatal(err)
			}
			packet, err := encode(f)
			if err != nil || !bytes.Equal(packet[lengthSize:], want) {
				t.Fatalf("%s was encoded as %.999x, %v, not %.999x", name, packet[lengthSize:], err, want)
			}
			if got, err := parseFrame(want, unlimited); err != nil || !proto.Equal(got, f) {
				t.Fatalf("%.999s came back as %.999s, %v", f, got, err)
			}
			if len(want) > 0 {
				want[r.IntN(len(want))] += byte(r.IntN(256))
				want = want[:len(want)-r.IntN(2)]
				if err := sameFrame(want); err != nil {
					t.Errorf("%x: %v", want, err)
				}
			}
		}
	}
}

// sameFrame compares parseFrame with protobuf.
func sameFrame(packet []byte) error {
	want := new(Frame)
	wrong := proto.Unmarshal(packet, want)
	got, err := parseFrame(packet, unlimited)
	if (err == nil) != (wrong == nil) || err == nil && !proto.Equal(got, want) {
		return fmt.Errorf("%v, %v; protobuf: %v, %v", got, err, want, wrong)
	}
	return nil
}

// fill sets all fields of a message, or some.
func fill(r *rand.Rand, m protoreflect.Message, all bool) {
	fields := m.Descriptor().Fields()
	for i := range fields.Len() {
		field := fields.Get(i)
		if !all && r.IntN(3) == 0 {
			continue
		}
		value := func(new func() protoreflect.Value) protoreflect.Value {
			if field.Message() == nil {
				return scalar(r, field.Kind())
			}
			v := new()
			fill(r, v.Message(), all)
			return v
		}
		switch {
		case field.IsMap(): // of one entry, because protobuf gives them no order
			key := scalar(r, field.MapKey().Kind()).MapKey()
			m.Mutable(field).Map().Set(key, scalar(r, field.MapValue().Kind()))
		case field.IsList():
			list := m.Mutable(field).List()
			for range 1 + r.IntN(3) {
				list.Append(value(list.NewElement))
			}
		default:
			m.Set(field, value(func() protoreflect.Value { return m.NewField(field) }))
		}
	}
}

// scalar returns a value of a kind; the smallest, the largest and zero are likely.
func scalar(r *rand.Rand, kind protoreflect.Kind) protoreflect.Value {
	n := []uint64{0, 1, 1 << 31, 1<<32 - 1, 1 << 63, 1<<64 - 1, r.Uint64() >> r.IntN(64)}[r.IntN(7)]
	text := []string{"", "x", "\x00é", string(make([]byte, 200))}[r.IntN(4)]
	switch kind {
	case protoreflect.BoolKind:
		return protoreflect.ValueOfBool(n%2 == 1)
	case protoreflect.EnumKind:
		return protoreflect.ValueOfEnum(protoreflect.EnumNumber(n))
	case protoreflect.Int32Kind, protoreflect.Sint32Kind:
		return protoreflect.ValueOfInt32(int32(n))
	case protoreflect.Int64Kind:
		return protoreflect.ValueOfInt64(int64(n))
	case protoreflect.Uint32Kind:
		return protoreflect.ValueOfUint32(uint32(n))
	case protoreflect.Uint64Kind:
		return protoreflect.ValueOfUint64(n)
	case protoreflect.DoubleKind:
		return protoreflect.ValueOfFloat64(float64(n))
	case protoreflect.StringKind:
		return protoreflect.ValueOfString(text)
	case protoreflect.BytesKind:
		return protoreflect.ValueOfBytes(append([]byte(text), 0xff))
	}
	panic(kind)
}

// Text that is not UTF-8 is refused, as by protobuf.
func TestCodecText(t *testing.T) {
	if packet, err := encode(NewFrame(&Hello{Token: "\xff"})); err == nil {
		t.Errorf("%x", packet)
	}
	if err := sameFrame([]byte{0x52, 3, 0x1a, 1, 0xff}); err != nil {
		t.Error(err)
	}
}
