package asm

import (
	"bytes"
	"encoding/hex"
	"errors"
	"fmt"
	"math/rand/v2"
	"reflect"
	"strings"
	"testing"

	"margay/nimble/engine/enginetest"
	"margay/nimble/isa"
	"margay/nimble/object"
)

// print returns the text of a program without comments.
func print(t testing.TB, program []isa.Instruction) string {
	t.Helper()
	var text bytes.Buffer
	if err := Print(&text, &object.Spec{Instructions: program}, Notes{}); err != nil {
		t.Fatal(err)
	}
	return text.String()
}

// roundTrip prints a program and demands that it is read back.
func roundTrip(t testing.TB, program []isa.Instruction) (text string) {
	t.Helper()
	text = print(t, program)
	back, err := Parse(text)
	if err != nil {
		t.Fatalf("%v in\n%s", err, text)
	}
	if !bytes.Equal(isa.Encode(back), isa.Encode(program)) {
		t.Fatalf("%x is read back as %x from\n%s", isa.Encode(program), isa.Encode(back), text)
	}
	return text
}

func TestParse(t *testing.T) {
	for _, c := range []struct{ name, text, want string }{
		{"nothing", "", ""},
		{"blank lines and comments", "\n \t\n# a\n  # b: c\r\n", ""},
		{"instruction", "exit", "9500000000000000"},
		{"white space", "\tmov \t r1 , 7  # seven\r\n\n  exit  ", "b7010000070000009500000000000000"},
		{"hexadecimal numbers", "mov r1, 0xffffffff", "b7010000ffffffff"},
		{"forward", "ja end\nexit\nend: exit", "050001000000000095000000000000009500000000000000"},
		{"backward", "here: exit\nja here", "95000000000000000500feff00000000"},
		{"to itself", "x: gotol x", "06000000ffffffff"},
		{"distance", "jeq r1, 2, +5\nja -1\nja 3", "15010500020000000500ffff000000000500030000000000"},
		{"over a wide instruction", "ja x\nlddw r0, 1\nx: exit", "0500020000000000180000000100000000000000000000009500000000000000"},
		{"two labels on a line", "a: b : jne r1, r2, b\nja a", "5d21ffff000000000500feff00000000"},
		{"label on its own line", "f:\n\nexit\ncall_local f", "9500000000000000" + "85100000feffffff"},
		{"label at the end", "ja end\nend:", "0500000000000000"},
		{"labels called like other things", "r1: exit: jeq r1, r1, r1\nja exit", "1d11ffff000000000500feff00000000"},
		{"letters of labels", "_a.B$9: ja _a.B$9", "0500ffff00000000"},
		{"address of code", "lddw_code r1, f\nf: exit", "18410000010000000000000000000000" + "9500000000000000"},
		{"bytes", "hex FF21030004000000", "ff21030004000000"},
		{"bytes of a wide instruction", "hex 1870000001000000\nhex 0000000002000000", "18700000010000000000000002000000"},
	} {
		program, err := Parse(c.text)
		if got := hex.EncodeToString(isa.Encode(program)); err != nil || got != c.want {
			t.Errorf("%s: got %s, %v, want %s", c.name, got, err, c.want)
		}
	}
}

func TestParseErrors(t *testing.T) {
	for _, c := range []struct {
		text         string
		line, column int
		reason       string
	}{
		{"exit\n  nothing r1", 2, 3, `no instruction "nothing"`},
		{"EXIT", 1, 1, `no instruction "EXIT"`},
		{"x: add r1", 1, 4, "add has 2 operands, not 1"},
		{"exit r1", 1, 1, "exit has no operands, not 1"},
		{"add r16, 1", 1, 5, `malformed operand "r16": want a register`},
		{"add r1,  x y # z", 1, 10, `malformed operand "x y": want a 32-bit number or a register`},
		{"add r1,", 1, 8, `malformed operand "": want a 32-bit number or a register`},
		{"add r1, 0x100000000", 1, 9, `malformed operand "0x100000000": want a 32-bit number or a register`},
		{"mov r1, label", 1, 9, `malformed operand "label": want a 32-bit number or a register`},
		{"ldxb r1, [r2+32768]", 1, 10, `malformed operand "[r2+32768]": want [register+offset]`},
		{"jeq r1, 2, 40000", 1, 12, `malformed operand "40000": want a 16-bit distance`},
		{"jeq r1, 2,\tnowhere", 1, 12, `no label "nowhere"`},
		{"a: exit\nb: a: exit", 2, 4, `label "a" exists already`},
		{"1: exit", 1, 1, `"1" cannot be a label`},
		{"exit\n : exit", 2, 2, `"" cannot be a label`},
		{"a b: exit", 1, 1, `"a b" cannot be a label`},
		{"hex 95", 1, 5, `"95": want the 8 bytes of a slot`},
		{"hex", 1, 4, `"": want the 8 bytes of a slot`},
		{"hex 950000000000000000", 1, 5, `"950000000000000000": want the 8 bytes of a slot`},
		{"exit\n\n  hex 1800000000000000", 3, 3, "wide instruction without its second half"},
		{"hex 1800000000000000\n exit", 2, 2, "reserved fields in the second half of a wide instruction must be 0"},
		{"ja far\n" + strings.Repeat("exit\n", 40000) + "far: exit", 1, 4, `label "far" is 40000 slots away, more than 32767`},
	} {
		_, err := Parse(c.text)
		if want := (&Error{c.line, c.column, c.reason}); !reflect.DeepEqual(err, error(want)) {
			t.Errorf("%.40q: got %v, want %v", c.text, err, want)
		}
	}
	if _, err := Parse("x"); err.Error() != `1:1: no instruction "x"` {
		t.Errorf("got %q", err)
	}
}

// TestPrint looks at the whole text of a program: labels, comments and bytes.
func TestPrint(t *testing.T) {
	program, err := Parse(`
		jeq r1, 0, x
		call_local g
		ja -3
		x: ja +100
		lddw r0, 0x1122334455667788
		ja -2
		hex ff21030004000000
		g: exit`)
	if err != nil {
		t.Fatal(err)
	}
	var text bytes.Buffer
	err = Print(&text, &object.Spec{Instructions: program}, Notes{
		Above:  func(slot int) string { return map[int]string{1: "over\nhere"}[slot] },
		Beside: func(slot int) string { return fmt.Sprint(slot) },
	})
	want := `
L0:
    jeq r1, 0, L3                       # 0
    # over here
    call_local f8                       # 1
    ja L0                               # 2
L3:
    ja +100                             # 3
    lddw r0, 0x1122334455667788         # 4
    ja -2                               # 6
    hex ff21030004000000                # 7
f8:
    exit                                # 8
`[1:]
	if err != nil || text.String() != want {
		t.Errorf("got, %v\n%swant\n%s", err, &text, want)
	}
}

// TestRows takes every row of the table through text, with the fields at their
// bounds.
func TestRows(t *testing.T) {
	for op := isa.Invalid + 1; int(op) < isa.Ops; op++ {
		for _, upper := range []bool{false, true} {
			value := func(f isa.Field) int64 {
				if upper {
					return op.Bounds(f).Max
				}
				return op.Bounds(f).Min
			}
			i := isa.Instruction{
				Code: op.Row().Code,
				Dst:  isa.Register(value(isa.Dst)), Src: isa.Register(value(isa.Src)),
				Off: int16(value(isa.Off)), Imm: int32(value(isa.Imm)), High: int32(value(isa.High)),
			}
			if i.Op() != op {
				t.Fatalf("%+v is no %s", i, op)
			}
			if text := roundTrip(t, isa.Append(nil, i)); !strings.HasPrefix(strings.TrimSpace(text), op.Row().Name) {
				t.Errorf("%s is printed as %s", op, text)
			}
		}
	}
}

// random returns a program of random instructions, most of them valid and most
// jumps inside it.
func random(r *rand.Rand) []isa.Instruction {
	var program []isa.Instruction
	length := 1 + r.IntN(50)
	for len(program) < length {
		op := isa.Op(1 + r.IntN(isa.Ops-1))
		pick := func(f isa.Field) int64 {
			b := op.Bounds(f)
			if f == op.Distance() && r.IntN(8) > 0 {
				return int64(r.IntN(length)) - int64(len(program))
			}
			return b.Min + r.Int64N(b.Max-b.Min+1)
		}
		i := isa.Instruction{
			Code: op.Row().Code,
			Dst:  isa.Register(pick(isa.Dst)), Src: isa.Register(pick(isa.Src)),
			Off: int16(pick(isa.Off)), Imm: int32(pick(isa.Imm)), High: int32(pick(isa.High)),
		}
		if r.IntN(10) == 0 {
			i.Off, i.Dst = int16(r.Uint32()), isa.Register(r.IntN(16))
		}
		program = isa.Append(program, i)
	}
	return program
}

func TestRandomPrograms(t *testing.T) {
	r := enginetest.Seeded(t)
	for range 2000 {
		roundTrip(t, random(r))
	}
}

// broken is a writer that fails.
type broken struct{}

var errBroken = errors.New("broken")

func (broken) Write([]byte) (int, error) { return 0, errBroken }

func TestPrintFails(t *testing.T) {
	if err := Print(broken{}, &object.Spec{Instructions: []isa.Instruction{{Code: 0x95}}}, Notes{}); !errors.Is(err, errBroken) {
		t.Errorf("got %v", err)
	}
}

// FuzzPrint prints whatever can be decoded and reads it back.
func FuzzPrint(f *testing.F) {
	for _, text := range []string{
		"9500000000000000", "0500ffff00000000", "18700000010000000000000002000000", "85100000000000009500000000000000", "0711ffff00000080",
	} {
		code, err := hex.DecodeString(text)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(code)
	}
	f.Fuzz(func(t *testing.T, code []byte) {
		if program, err := isa.Decode(code); err == nil {
			roundTrip(t, program)
		}
	})
}

// FuzzParse reads whatever text: it is refused with a place inside it, or what
// was read can be printed and read again.
func FuzzParse(f *testing.F) {
	f.Add("next: ldxb r3, [r1]\n jne r0, 0x2a, next # comment\n exit")
	f.Add("a:b:call_local a\nhex 9500000000000000\nlddw_code r1, b")
	f.Add("hex 1800000000000000\nexit")
	f.Add("x:\t\njeq r1,,x")
	f.Add(objectText)
	f.Fuzz(func(t *testing.T, text string) {
		program, err := Parse(text)
		if err == nil {
			roundTrip(t, program)
		}
		var specs []*object.Spec
		if specs, err = Programs(text); err == nil {
			roundTripSpecs(t, specs)
			return
		}
		e, ok := errors.AsType[*Error](err)
		lines := strings.Split(text, "\n")
		if !ok || e.Line < 1 || e.Line > len(lines) || e.Column < 1 || e.Column > len(lines[e.Line-1])+1 || e.Reason == "" {
			t.Errorf("%q: %v", text, err)
		}
	})
}
