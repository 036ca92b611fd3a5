package observe

import (
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
)

// families are metrics in the order in which they are printed.
type families []*family

// family is a metric: values that have the name and differ in their labels.
type family struct {
	name, kind, help string
	values           []value
}

// value is a value with its labels, which are escaped.
type value struct {
	labels string
	number float64
}

// add adds a value. Labels are names with their values. The first value of a name decides kind and
// help.
func (f *families) add(name, kind, help string, number float64, labels ...string) {
	i := slices.IndexFunc(*f, func(m *family) bool { return m.name == name })
	if i < 0 {
		i = len(*f)
		*f = append(*f, &family{name: name, kind: kind, help: help})
	}
	var pairs []string
	for pair := range slices.Chunk(labels, 2) {
		pairs = append(pairs, pair[0]+`="`+labelEscapes.Replace(pair[1])+`"`)
	}
	(*f)[i].values = append((*f)[i].values, value{strings.Join(pairs, ","), number})
}

// labelEscapes are what the format demands in values of labels.
var labelEscapes = strings.NewReplacer(`\`, `\\`, `"`, `\"`, "\n", `\n`)

// mediaType is the type of what write writes.
const mediaType = "text/plain; version=0.0.4; charset=utf-8"

// write writes the text format of Prometheus, version 0.0.4.
func (f families) write(w io.Writer) error {
	var text strings.Builder
	for _, m := range f {
		fmt.Fprintf(&text, "# HELP %s %s\n# TYPE %s %s\n", m.name, m.help, m.name, m.kind)
		for _, v := range m.values {
			text.WriteString(m.name)
			if v.labels != "" {
				text.WriteString("{" + v.labels + "}")
			}
			text.WriteString(" " + strconv.FormatFloat(v.number, 'g', -1, 64) + "\n")
		}
	}
	_, err := io.WriteString(w, text.String())
	return err
}
