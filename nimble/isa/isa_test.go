package isa

import (
	"encoding/hex"
	"errors"
	"math"
	"os"
	"reflect"
	"strings"
	"testing"
)

// TestTable checks that the rows are complete and distinct.
func TestTable(t *testing.T) {
	type selector struct {
		code uint8
		key  Key
	}
	seen := make(map[selector]Op)
	for op := Invalid + 1; int(op) < Ops; op++ {
		r := op.Row()
		if r.Name == "" || r.Section == "" || int(r.Form) >= len(forms) || op.Form() != r.Form {
			t.Errorf("row %d is incomplete: %+v", op, r)
		}
		if r.Group == Unassigned && r.Refused == "" {
			t.Errorf("%s is in no conformance group", r.Name)
		}
		s := selector{r.Code, r.Key}
		if other, ok := seen[s]; ok {
			t.Errorf("%s and %s have the same opcode and key", r.Name, other)
		}
		seen[s] = op
		if first := byCode[r.Code][0]; first.Row().Key.Field != r.Key.Field {
			t.Errorf("%s and %s share an opcode but not the field that selects", r.Name, first)
		}
	}
}

// inside returns an instruction of a row with a field at the lower or upper
// bound and the others at a value inside.
func inside(op Op, field Field, upper bool) Instruction {
	i := Instruction{Code: op.Row().Code}
	for f := Dst; f <= High; f++ {
		b := op.Bounds(f)
		v := b.Min + (b.Max-b.Min)/2
		if f == field && upper {
			v = b.Max
		} else if f == field {
			v = b.Min
		}
		i.setField(f, v)
	}
	return i
}

// TestRows takes every row through all that derives from the table, with every
// field at both of its bounds.
func TestRows(t *testing.T) {
	for op := Invalid + 1; int(op) < Ops; op++ {
		for f := Dst; f <= High; f++ {
			for _, upper := range []bool{false, true} {
				i := inside(op, f, upper)
				if got := i.Op(); got != op {
					t.Fatalf("%+v is %s, want %s", i, got, op)
				}
				text := i.String()
				if back, err := Parse(text); err != nil || back != i {
					t.Errorf("%q is parsed as %+v, %v, want %+v", text, back, err, i)
				}
				program := Append(nil, i)
				if back, err := Decode(Encode(program)); err != nil || !reflect.DeepEqual(back, program) {
					t.Errorf("%q is decoded as %v, %v", text, back, err)
				}
				got, err := i.Check()
				if usual, ok := i.Usual(); ok && (usual != got || err != nil) {
					t.Errorf("%q is usually %s: %s, %v", text, usual, got, err)
				}
				if refused := op.Row().Refused != ""; refused != (err != nil) {
					t.Errorf("%q: %v", text, err)
				} else if !refused && got != op {
					t.Errorf("%q is %s", text, got)
				} else if refused && !strings.Contains(err.Error(), op.Row().Name) {
					t.Errorf("%q is refused without its name: %v", text, err)
				}
			}
		}
	}
}

// fits reports whether a field can hold a value at all.
func fits(f Field, v int64) bool {
	switch f {
	case Dst, Src:
		return v >= 0 && v <= 15
	case Off:
		return v >= math.MinInt16 && v <= math.MaxInt16
	}
	return v >= math.MinInt32 && v <= math.MaxInt32
}

// TestFieldsOutOfBounds puts every field of every row just outside its bounds:
// the instruction is refused, unless another row has that value as its key.
func TestFieldsOutOfBounds(t *testing.T) {
	tried := 0
	for op := Invalid + 1; int(op) < Ops; op++ {
		if op.Row().Refused != "" {
			continue
		}
		for f := Dst; f <= High; f++ {
			if f == High && !inside(op, f, false).Wide() {
				continue // no encoding has it
			}
			b := op.Bounds(f)
			for _, v := range []int64{b.Min - 1, b.Max + 1} {
				i := inside(op, f, false)
				i.setField(f, v)
				if other := i.Op(); !fits(f, v) || other != op && other != Invalid {
					continue
				}
				tried++
				if got, ok := i.Usual(); ok {
					t.Errorf("%s with %s=%d: usually %s", op, f, v, got)
				}
				if got, err := i.Check(); err == nil || !strings.Contains(err.Error(), f.String()) {
					t.Errorf("%s with %s=%d: %s, %v", op, f, v, got, err)
				}
			}
		}
	}
	if tried < 500 {
		t.Errorf("only %d cases", tried)
	}
}

// TestAgainstLLVM compares encodings and mnemonics with LLVM's.
func TestAgainstLLVM(t *testing.T) {
	data, err := os.ReadFile("testdata/llvm.txt")
	if err != nil {
		t.Fatal(err)
	}
	seen := make(map[Op]bool)
	for line := range strings.Lines(string(data)) {
		if strings.HasPrefix(line, "#") {
			continue
		}
		digits, text, _ := strings.Cut(strings.TrimSpace(line), " ")
		code, err := hex.DecodeString(digits)
		if err != nil {
			t.Fatal(err)
		}
		program, err := Decode(code)
		if err != nil || program[0].String() != text {
			t.Errorf("%s is %v, %v, want %s", digits, program, err, text)
			continue
		}
		seen[program[0].Op()] = true
		if i, err := Parse(text); err != nil || hex.EncodeToString(Encode(Append(nil, i))) != digits {
			t.Errorf("%s is not encoded as %s: %v", text, digits, err)
		}
	}
	if len(seen) < 160 {
		t.Errorf("only %d rows compared", len(seen))
	}
}

func TestSize(t *testing.T) {
	for op, want := range map[Op]int{
		LdXB: 1, LdXSH: 2, StW: 4, StXDW: 8, AtomicAdd: 8, AtomicCmpXchg32: 4, AddK: 0, LdDW: 0, LdAbsW: 0, Invalid: 0,
	} {
		if got := op.Size(); got != want {
			t.Errorf("%s accesses %d bytes, want %d", op, got, want)
		}
	}
}

// TestDistance compares with the text: the distance is the last operand.
func TestDistance(t *testing.T) {
	for op := Invalid + 1; int(op) < Ops; op++ {
		i := Instruction{Code: op.Row().Code}
		if k := op.Row().Key; k.Field != NoField {
			i.setField(k.Field, k.Value)
		}
		want := NoField
		if strings.HasSuffix(i.String(), " +0") {
			want = Imm
			if i.setField(Off, 7); strings.HasSuffix(i.String(), " +7") {
				want = Off
			}
		}
		if got := op.Distance(); got != want {
			t.Errorf("%s: %s, want %s", op, got, want)
		}
	}
	for _, op := range Named("jeq") {
		if op != JEqK && op != JEqX {
			t.Errorf("jeq is %d", op)
		}
	}
	if Invalid.Distance() != NoField || len(Named("jeq")) != 2 || len(Named("nothing")) != 0 {
		t.Error("wrong rows")
	}
}

func TestConst(t *testing.T) {
	i, err := Parse("lddw r1, 0x80000000ffffffff")
	if err != nil || i.Const() != 0x80000000ffffffff {
		t.Errorf("%#x, %v", i.Const(), err)
	}
	if i, err = Parse("lddw r1, -2"); err != nil || i.Const() != math.MaxUint64-1 {
		t.Errorf("%#x, %v", i.Const(), err)
	}
}

func TestDecodeErrors(t *testing.T) {
	for text, slot := range map[string]int{
		"95":                               0,
		"9500000000000000950000":           1,
		"1801000000000000":                 0,
		"95000000000000001801000000000000": 1,
		"18010000000000000001000000000000": 1,
		"18010000000000000000010000000000": 1,
		"18010000000000009500000000000000": 1,
	} {
		code, err := hex.DecodeString(text)
		if err != nil {
			t.Fatal(err)
		}
		var e *DecodeError
		if _, err := Decode(code); !errors.As(err, &e) || e.Slot != slot {
			t.Errorf("%s: %v, want an error at %d", text, err, slot)
		}
	}
}

func TestParseErrors(t *testing.T) {
	for _, text := range []string{
		"", "nothing", "add", "add r1", "add r1, r2, r3", "add 1, r2", "add r16, r1", "add rx, 1", "add r1, 0x100000000",
		"add r1, -2147483649", "ja 40000", "ldxb r1, r2", "ldxb r1, [r2+40000]", "ldxb r1, [r2", "lddw r1, 0x10000000000000000", "exit 1",
	} {
		if i, err := Parse(text); err == nil {
			t.Errorf("%q is parsed as %+v", text, i)
		}
	}
}

func TestUnknown(t *testing.T) {
	i := Instruction{Code: 0xff, Dst: 1, Src: 2, Off: 3, Imm: 4}
	if got := i.String(); got != "hex ff21030004000000" {
		t.Errorf("got %q", got)
	}
	if Invalid.String() != "invalid" || Op(255).String() != "invalid" {
		t.Error("the invalid instruction has a name")
	}
}

func FuzzDecode(f *testing.F) {
	f.Add([]byte{0x18, 1, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0})
	f.Add([]byte{0xdb, 0x21, 0, 0, 0xf1, 0, 0, 0})
	f.Fuzz(func(t *testing.T, code []byte) {
		program, err := Decode(code)
		if err != nil {
			return
		}
		if got := Encode(program); string(got) != string(code) {
			t.Fatalf("%x is encoded as %x", code, got)
		}
		for _, i := range program {
			op, err := i.Check()
			if err != nil {
				_ = i.String()
				continue
			}
			if back, err := Parse(i.String()); err != nil || back != i || i.Op() != op {
				t.Errorf("%q is parsed as %+v, %v, want %+v", i, back, err, i)
			}
		}
	})
}

func FuzzParse(f *testing.F) {
	f.Add("atomic_fetch_add32 [r1-8], r2")
	f.Add("jsgt r1, 0xffffffff, +3")
	f.Fuzz(func(t *testing.T, text string) {
		i, err := Parse(text)
		if err != nil || i.Op() == Invalid {
			return
		}
		if back, err := Parse(i.String()); err != nil || back != i {
			t.Errorf("%q is printed as %q: %v", text, i, err)
		}
	})
}
