package asm

import (
	"encoding/hex"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"margay/nimble/isa"
	"margay/nimble/object"
	"margay/nimble/state"
)

// declaration is what follows a directive.
type declaration struct {
	operands string // for people
	min, max int    // how many
	read     func(*parser, []string) (bad int, err error)
}

// declarations are the directives.
var declarations = map[string]declaration{
	".program":  {"NAME SECTION", 2, 2, (*parser).readProgram},
	".license":  {"NAME", 1, 1, (*parser).readLicense},
	".map":      {"NAME array|per_core SIZE ENTRIES [readonly]", 4, 5, (*parser).readMap},
	".bytes":    {"HEX", 1, 1, (*parser).readBytes},
	".variable": {"NAME MAP OFFSET SIZE", 4, 4, (*parser).readVariable},
	".pointer":  {"MAP OFFSET MAP DISTANCE", 4, 4, (*parser).readPointer},
	".extern":   {"NAME", 1, 1, (*parser).readExtern},
}

// isDeclaration reports whether a line begins with a directive.
func isDeclaration(line, name string) bool {
	words := strings.Fields(line)
	return len(words) > 0 && words[0] == name
}

// declare reads a directive and its operands.
func (p *parser) declare(line, left string) error {
	words := strings.FieldsFunc(left, func(r rune) bool { return strings.ContainsRune(blank, r) })
	d, ok := declarations[words[0]]
	if !ok {
		return p.fail(line, left, "no declaration %q", words[0])
	}
	if n := len(words) - 1; n < d.min || n > d.max {
		return p.fail(line, left, "%s wants %s", words[0], d.operands)
	}
	bad, err := d.read(p, words[1:])
	if err == nil {
		p.used = true
		return nil
	}
	for range bad + 1 {
		left = strings.TrimLeft(left[strings.IndexAny(left, blank):], blank)
	}
	return p.fail(line, left, "%v", err)
}

func (p *parser) readProgram(words []string) (bad int, err error) {
	if p.used {
		return -1, errors.New("a label before .program belongs to no program")
	}
	return names(words, &p.spec.Name, &p.spec.Section)
}

func (p *parser) readLicense(words []string) (bad int, err error) {
	return names(words, &p.spec.License)
}

func (p *parser) readExtern(words []string) (bad int, err error) {
	var name string
	if bad, err = names(words, &name); err != nil {
		return bad, err
	}
	if _, twice := p.externs[name]; twice {
		return 0, fmt.Errorf("extern %q exists already", name)
	}
	p.externs[name] = len(p.spec.Externs)
	p.spec.Externs = append(p.spec.Externs, name)
	return 0, nil
}

// kinds are the kinds of maps.
var kinds = map[string]state.Kind{"array": state.Array, "per_core": state.PerCore}

func (p *parser) readMap(words []string) (bad int, err error) {
	var m state.Spec
	if bad, err = names(words[:1], &m.Name); err != nil {
		return bad, err
	}
	if _, twice := p.maps[m.Name]; twice {
		return 0, fmt.Errorf("map %q exists already", m.Name)
	}
	var ok bool
	if m.Kind, ok = kinds[words[1]]; !ok {
		return 1, fmt.Errorf("%q: want array or per_core", words[1])
	}
	if bad, err = numbers(words[2:4], &m.ValueSize, &m.Entries); err != nil {
		return 2 + bad, err
	}
	if len(words) == 5 {
		if words[4] != "readonly" {
			return 4, fmt.Errorf("%q: want readonly", words[4])
		}
		m.ReadOnly = true
	}
	p.maps[m.Name] = len(p.spec.Maps)
	p.spec.Maps = append(p.spec.Maps, m)
	return 0, nil
}

func (p *parser) readBytes(words []string) (bad int, err error) {
	if len(p.spec.Maps) == 0 {
		return -1, errors.New("no map to hold it")
	}
	contents, err := hex.DecodeString(words[0])
	if err != nil {
		return 0, err
	}
	m := &p.spec.Maps[len(p.spec.Maps)-1]
	m.Contents = append(m.Contents, contents...)
	return 0, nil
}

func (p *parser) readVariable(words []string) (bad int, err error) {
	var v object.Variable
	if bad, err = names(words[:2], &v.Name, &v.Map); err != nil {
		return bad, err
	}
	if bad, err = numbers(words[2:], &v.Offset, &v.Size); err != nil {
		return 2 + bad, err
	}
	p.spec.Variables = append(p.spec.Variables, v)
	return 0, nil
}

func (p *parser) readPointer(words []string) (bad int, err error) {
	var pointer object.Pointer
	if bad, err = names(words[:1], &pointer.Map); err != nil {
		return bad, err
	}
	if bad, err = numbers(words[1:2], &pointer.Offset); err != nil {
		return 1 + bad, err
	}
	if bad, err = names(words[2:3], &pointer.To); err != nil {
		return 2 + bad, err
	}
	if bad, err = numbers(words[3:], &pointer.Distance); err != nil {
		return 3 + bad, err
	}
	p.spec.Pointers = append(p.spec.Pointers, pointer)
	return 0, nil
}

// names reads each word as a name.
func names(words []string, to ...*string) (bad int, err error) {
	for n, word := range words {
		name, ok := unquote(word)
		if !ok {
			return n, fmt.Errorf("%q cannot be a name", word)
		}
		*to[n] = name
	}
	return 0, nil
}

// numbers reads each word as a number.
func numbers(words []string, to ...*uint32) (bad int, err error) {
	for n, word := range words {
		v, err := strconv.ParseUint(word, 0, 32)
		if err != nil {
			return n, fmt.Errorf("%q: want a 32-bit number", word)
		}
		*to[n] = uint32(v)
	}
	return 0, nil
}

// unquote returns what a name stands for.
func unquote(word string) (name string, ok bool) {
	if isLabel(word) {
		return word, true
	}
	if !strings.HasPrefix(word, `"`) {
		return "", false
	}
	name, err := strconv.Unquote(word)
	return name, err == nil
}

// quote writes a name so that it is one word of a line: bare if it can be, or
// else with everything escaped that has a meaning elsewhere.
func quote(name string) string {
	if isLabel(name) {
		return name
	}
	var text strings.Builder
	for _, c := range []byte(name) {
		if isLabel("_"+string(rune(c))) || c == '/' || c == '-' {
			text.WriteByte(c)
		} else {
			fmt.Fprintf(&text, `\x%02x`, c)
		}
	}
	return `"` + text.String() + `"`
}

// reference returns which operand of an instruction may be a name instead of a
// number, -1 if none does.
func reference(op isa.Op) (operand int) {
	switch op {
	case isa.CallNamed:
		return 0
	case isa.LdMap, isa.LdMapFD, isa.LdValue, isa.LdValueFD:
		return 1
	}
	return -1
}

// number puts the number of a map or an extern in the place of its name, which
// is operand n.
func (p *parser) number(mnemonic string, words []string) (n int, err error) {
	rows := isa.Named(mnemonic)
	if len(rows) == 0 {
		return 0, nil
	}
	n = reference(rows[0])
	if n < 0 || n >= len(words) {
		return 0, nil
	}
	word := strings.Trim(words[n], blank)
	name, ok := unquote(word)
	if !ok {
		return 0, nil
	}
	numbers := p.maps
	if rows[0] == isa.CallNamed {
		numbers = p.externs
	}
	number, ok := numbers[name]
	if !ok {
		return n, fmt.Errorf("%s is not declared", word)
	}
	words[n] = strconv.Itoa(number)
	return n, nil
}
