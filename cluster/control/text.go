package control

import (
	"strings"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"margay/internal/printable"
)

// Bounds for messages of an untrusted side, far above the messages of a correct node.
const (
	maxText    = 1000 // bytes of a string
	maxTexts   = 64   // strings of a list
	maxNumbers = 8192 // numbers of a list, such as the cores of a node
)

// Tame makes all strings of a message of unknown origin fit for a log and for a terminal, and
// bounds them and the lists of strings and numbers. Line breaks become semicolons. Byte strings,
// such as output of ranks, stay as they are; unknown fields are dropped.
func Tame(m proto.Message) { tame(m.ProtoReflect()) }

// DropUnknown changes a message: it removes all fields that this version does not know. They may be
// as large as a frame.
func DropUnknown(m proto.Message) { dropUnknown(m.ProtoReflect()) }

func dropUnknown(m protoreflect.Message) {
	if len(m.GetUnknown()) > 0 {
		m.SetUnknown(nil)
	}
	m.Range(func(field protoreflect.FieldDescriptor, value protoreflect.Value) bool {
		switch {
		case field.Kind() != protoreflect.MessageKind || field.IsMap(): // maps are of numbers
		case field.IsList():
			for i := range value.List().Len() {
				dropUnknown(value.List().Get(i).Message())
			}
		default:
			dropUnknown(value.Message())
		}
		return true
	})
}

func tame(m protoreflect.Message) {
	m.SetUnknown(nil)
	m.Range(func(field protoreflect.FieldDescriptor, value protoreflect.Value) bool {
		switch {
		case field.IsMap(): // of numbers, in this protocol
		case field.IsList():
			tameList(field, value.List())
		case field.Kind() == protoreflect.StringKind:
			m.Set(field, tamed(value))
		case field.Kind() == protoreflect.MessageKind:
			tame(value.Message())
		}
		return true
	})
}

func tameList(field protoreflect.FieldDescriptor, list protoreflect.List) {
	switch field.Kind() {
	case protoreflect.MessageKind:
		for i := range list.Len() {
			tame(list.Get(i).Message())
		}
	case protoreflect.StringKind:
		list.Truncate(min(list.Len(), maxTexts))
		for i := range list.Len() {
			list.Set(i, tamed(list.Get(i)))
		}
	case protoreflect.BytesKind:
	default:
		list.Truncate(min(list.Len(), maxNumbers))
	}
}

func tamed(text protoreflect.Value) protoreflect.Value {
	lines := strings.ReplaceAll(strings.TrimRight(text.String(), "\n"), "\n", "; ")
	return protoreflect.ValueOfString(printable.Short(lines, maxText))
}
