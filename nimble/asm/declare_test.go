package asm

import (
	"bytes"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"testing"

	"margay/nimble/object"
	"margay/nimble/state"
)

// objectText is a text of two programs with all that can be declared.
const objectText = `.program one message
.license "Dual\x20BSD/GPL"
.map counts array 8 0x10
.map ".rodata.\x23\x0a" array 4 1 readonly
.bytes 0102
.bytes 03
.map cores per_core 12 2
.variable limit ".rodata.\x23\x0a" 0 4
.pointer counts 8 ".rodata.\x23\x0a" 2
.extern notify
    lddw_map r1, counts
    lddw_value r2, ".rodata.\x23\x0a", 2
    lddw_map_fd r3, 2
    call_named notify  # or its number
    call_named 0
L: ja L
.program two "timer/every"
L: ja L
`

func TestPrograms(t *testing.T) {
	specs, err := Programs(objectText)
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range specs {
		s.Instructions = nil
	}
	want := []*object.Spec{{
		Name: "one", Section: "message", License: "Dual BSD/GPL",
		Maps: []state.Spec{
			{Name: "counts", ValueSize: 8, Entries: 16},
			{Name: ".rodata.#\n", ValueSize: 4, Entries: 1, ReadOnly: true, Contents: []byte{1, 2, 3}},
			{Name: "cores", Kind: state.PerCore, ValueSize: 12, Entries: 2},
		},
		Variables: []object.Variable{{Name: "limit", Map: ".rodata.#\n", Offset: 0, Size: 4}},
		Pointers:  []object.Pointer{{Map: "counts", Offset: 8, To: ".rodata.#\n", Distance: 2}},
		Externs:   []string{"notify"},
	}, {Name: "two", Section: "timer/every"}}
	if !reflect.DeepEqual(specs, want) {
		t.Errorf("got %+v, %+v", specs[0], specs[1])
	}
}

// roundTripSpecs prints programs and demands that they are read back.
func roundTripSpecs(t testing.TB, specs []*object.Spec) {
	t.Helper()
	for _, spec := range specs {
		var text bytes.Buffer
		if err := Print(&text, spec, Notes{}); err != nil {
			t.Fatal(err)
		}
		back, err := Programs(text.String())
		if err != nil || len(back) != 1 {
			t.Fatalf("%d programs, %v in\n%s", len(back), err, &text)
		}
		want := *spec
		want.Lines, want.Maps = nil, slices.Clone(spec.Maps)
		if want.Section == "" {
			want.Name = "text"
		}
		for i := range want.Maps {
			if len(want.Maps[i].Contents) == 0 {
				want.Maps[i].Contents = nil
			}
		}
		if !reflect.DeepEqual(back[0], &want) {
			t.Fatalf("%+v\nis read back as\n%+v from\n%s", want, back[0], &text)
		}
	}
}

// TestObjects takes real objects through text.
func TestObjects(t *testing.T) {
	files, err := filepath.Glob("../object/testdata/*.o")
	if err != nil {
		t.Fatal(err)
	}
	programs, maps := 0, 0
	for _, name := range append(files, "../../ext/message/accumulate/accumulate.o") {
		file, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		specs, err := object.ELF(file)
		if err != nil {
			continue // package object tests why
		}
		roundTripSpecs(t, specs)
		for _, s := range specs {
			programs, maps = programs+1, maps+len(s.Maps)
		}
	}
	if programs < 10 || maps < 5 {
		t.Errorf("%d programs with %d maps: what is tested here?", programs, maps)
	}
}

func TestDeclarationErrors(t *testing.T) {
	for _, c := range []struct {
		text         string
		line, column int
		reason       string
	}{
		{"exit\n .section x", 2, 2, `no declaration ".section"`},
		{".map a array 8", 1, 1, ".map wants NAME array|per_core SIZE ENTRIES [readonly]"},
		{".extern a b", 1, 1, ".extern wants NAME"},
		{".map a  hash 8 1", 1, 9, `"hash": want array or per_core`},
		{".map a array 8 -1", 1, 16, `"-1": want a 32-bit number`},
		{".map a array 0x100000000 1", 1, 14, `"0x100000000": want a 32-bit number`},
		{".map a array 8 1 writable", 1, 18, `"writable": want readonly`},
		{".map 1 array 8 1", 1, 6, `"1" cannot be a name`},
		{".map \"a array 8 1", 1, 6, `"\"a" cannot be a name`},
		{".map a array 8 1\n.map a array 8 1", 2, 6, `map "a" exists already`},
		{".extern a\n.extern \"a\"", 2, 9, `extern "a" exists already`},
		{".bytes 00", 1, 1, "no map to hold it"},
		{".map a array 8 1\n.bytes 0", 2, 8, "encoding/hex: odd length hex string"},
		{".pointer a b c 1", 1, 12, `"b": want a 32-bit number`},
		{".pointer a 8 c -1", 1, 16, `"-1": want a 32-bit number`},
		{".variable a b 1 x", 1, 17, `"x": want a 32-bit number`},
		{"x: .program a b", 1, 4, "a label before .program belongs to no program"},
		{"lddw_map r1, a\n.map a array 8 1", 1, 14, "a is not declared"},
		{"call_named  a", 1, 13, "a is not declared"},
		{".extern a\nlddw_value r1, a, 0", 2, 16, "a is not declared"},
		{".map a array 8 1\nlddw_value r1, a, b", 2, 19, `malformed operand "b": want a 32-bit number`},
		{".program a b\nx: exit\n.program c d\nja x", 4, 4, `no label "x"`},
		{".program a b\nja x\n.program c d\nx: exit", 2, 4, `no label "x"`},
	} {
		_, err := Programs(c.text)
		if want := (&Error{c.line, c.column, c.reason}); !reflect.DeepEqual(err, error(want)) {
			t.Errorf("%.40q: got %v, want %v", c.text, err, want)
		}
	}
	if _, err := Parse(objectText); err == nil {
		t.Error("two programs were read as one")
	}
}
