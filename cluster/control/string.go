package control

import (
	"fmt"
	"reflect"
	"strings"
)

// text returns the fields of a message that are set, for people. Protobuf's own text needs the
// descriptor of the message.
func text(m any) string {
	message := reflect.ValueOf(m).Elem()
	if !message.IsValid() {
		return "<nil>"
	}
	var words []string
	for i := range message.NumField() {
		field, value := message.Type().Field(i), message.Field(i)
		if !field.IsExported() || value.IsZero() {
			continue
		}
		if value.Kind() == reflect.Interface { // the message of a frame
			value = value.Elem().Elem().Field(0)
		}
		form := "%s:%v"
		if kind := value.Type(); kind.Kind() == reflect.String || kind == reflect.TypeFor[[]byte]() {
			form = "%s:%q"
		}
		words = append(words, fmt.Sprintf(form, field.Name, value))
	}
	return "{" + strings.Join(words, " ") + "}"
}
