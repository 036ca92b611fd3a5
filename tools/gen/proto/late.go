package main

import (
	"fmt"
	"regexp"
)

// Patterns of protoc-gen-go's source.
var (
	texts   = regexp.MustCompile(`(?m)^func \(x \*?\w+\) String\(\) string \{\n\treturn protoimpl\.X\.\w+StringOf\(.*\n\}\n\n`)
	start   = regexp.MustCompile(`(?m)^func init\(\) \{ (file_\w+_proto_init)\(\) \}\nfunc file_\w+_proto_init\(\) \{\n\tif File_\w+_proto != nil \{\n\t\treturn\n\t\}\n`)
	tables  = regexp.MustCompile(`(?m)^(var file_\w+_proto_\w+Types) = make\(\[\](\S+), (\d+)\)$`)
	infos   = regexp.MustCompile(`(?m)^(\t\t(?:Enum|Message)Infos:\s+file_\w+),$`)
	reflect = regexp.MustCompile(`(?m)^(func \(x \*?\w+\) ProtoReflect\(\) protoreflect\.Message \{|func \(\w+\) (?:Descriptor\(\) protoreflect\.EnumDescriptor|Type\(\) protoreflect\.EnumType) \{)\n`)
)

// late changes the source that protoc-gen-go makes of a file: protobuf's tables of its types are
// filled at the first use of reflection, not at the start of each program. A program without
// reflection is then linked without them, and without most of protobuf. Printing must not be such a
// use, so the codec has the methods String.
func late(source string) (string, error) {
	found := start.FindStringSubmatch(source)
	if found == nil || !texts.MatchString(source) || !reflect.MatchString(source) || !tables.MatchString(source) || !infos.MatchString(source) {
		return "", fmt.Errorf("protoc-gen-go writes other source than it did")
	}
	source = texts.ReplaceAllString(source, "")
	source = start.ReplaceAllString(source, "var ${1}_once sync.Once\n\nfunc ${1}() { ${1}_once.Do(${1}_tables) }\nfunc ${1}_tables() {\n")
	source = tables.ReplaceAllString(source, "${1} [${3}]${2}")
	source = infos.ReplaceAllString(source, "${1}[:],")
	return reflect.ReplaceAllString(source, "${1}\n\t"+found[1]+"()\n"), nil
}
