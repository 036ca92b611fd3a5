package wasm

import (
	"bytes"
	"testing"
)

func TestSigned(t *testing.T) {
	// From the LEB128 of DWARF 5, section 7.6, figure 23.
	for v, want := range map[int64]string{2: "\x02", -2: "\x7e", 127: "\xff\x00", -127: "\x81\x7f", 128: "\x80\x01", -128: "\x80\x7f", 64: "\xc0\x00", -64: "\x40"} {
		if got := signed(v); !bytes.Equal(got, []byte(want)) {
			t.Errorf("%d is %x, want %x", v, got, want)
		}
	}
}

func TestMistakes(t *testing.T) {
	for _, text := range []string{
		"i64.power", "local.get x", "end", "br there", "i64.load x", "i64.const x", "i64.const", "repeat 3", "repeat x i64.add again", "block a i64.const",
	} {
		if code, err := assemble(text); err == nil {
			t.Errorf("%q was read as %x", text, code)
		}
	}
	if _, err := Module("nothing", 0, nil, nil); err == nil {
		t.Error("a module without a program")
	}
}
