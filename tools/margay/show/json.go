package show

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"strings"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// Message prints a message for programs. Every field is there, zero or not, in the order of the
// protocol. Unlike in the JSON of protobuf, numbers of 64 bits are numbers, and the values of
// enumerations are words: up, not NODE_UP.
func Message(w io.Writer, m proto.Message) error {
	text, err := appendMessage(nil, m.ProtoReflect())
	if err != nil {
		return err
	}
	var out bytes.Buffer
	if err := json.Indent(&out, text, "", "  "); err != nil {
		return err
	}
	_, err = fmt.Fprintln(w, out.String())
	return err
}

func appendMessage(text []byte, m protoreflect.Message) ([]byte, error) {
	text = append(text, '{')
	fields := m.Descriptor().Fields()
	for i := range fields.Len() {
		if i > 0 {
			text = append(text, ',')
		}
		f := fields.Get(i)
		text = append(text, fmt.Sprintf("%q:", f.Name())...)
		var err error
		if text, err = appendField(text, m, f); err != nil {
			return nil, fmt.Errorf("%s: %w", f.FullName(), err)
		}
	}
	return append(text, '}'), nil
}

func appendField(text []byte, m protoreflect.Message, f protoreflect.FieldDescriptor) (_ []byte, err error) {
	switch {
	case f.IsMap():
		return nil, fmt.Errorf("maps are not for output")
	case !f.IsList():
		if f.Message() != nil && !m.Has(f) {
			return append(text, "null"...), nil
		}
		return appendValue(text, f, m.Get(f))
	}
	list := m.Get(f).List()
	text = append(text, '[')
	for i := range list.Len() {
		if i > 0 {
			text = append(text, ',')
		}
		if text, err = appendValue(text, f, list.Get(i)); err != nil {
			return nil, err
		}
	}
	return append(text, ']'), nil
}

func appendValue(text []byte, f protoreflect.FieldDescriptor, v protoreflect.Value) ([]byte, error) {
	var plain any
	switch value := v.Interface().(type) {
	case protoreflect.Message:
		return appendMessage(text, value)
	case protoreflect.EnumNumber:
		plain = enumWord(f.Enum(), value)
	case []byte:
		plain = base64.StdEncoding.EncodeToString(value)
	case float64:
		if plain = value; math.IsNaN(value) || math.IsInf(value, 0) {
			plain = nil // JSON has no number for it
		}
	default:
		plain = value
	}
	word, err := json.Marshal(plain)
	return append(text, word...), err
}

// enumWord is the name of a value without the prefix that all values of its enumeration have, in
// lower case. A value that has no name is its number.
func enumWord(e protoreflect.EnumDescriptor, n protoreflect.EnumNumber) any {
	value := e.Values().ByNumber(n)
	if value == nil {
		return int32(n)
	}
	_, word, _ := strings.Cut(string(value.Name()), "_")
	return strings.ToLower(word)
}
