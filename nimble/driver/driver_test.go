package driver

import (
	"bytes"
	"encoding/hex"
	"errors"
	"io"
	"os"
	"regexp"
	"strings"
	"testing"
	"testing/iotest"

	"margay/nimble"
	"margay/nimble/engine"
	"margay/nimble/engine/portable"
	"margay/nimble/isa"
	"margay/nimble/object"
	"margay/nimble/verify"
)

// options are what conformance tests run with, and little fuel.
func options(t testing.TB) nimble.Options {
	t.Helper()
	table, err := Services("test")
	if err != nil {
		t.Fatal(err)
	}
	return nimble.Options{Engine: portable.New(), Services: table, Limits: nimble.Limits{Fuel: 1000}}
}

func TestRun(t *testing.T) {
	for _, c := range []struct {
		name, code string
		mem        string
		want       uint64
		err        string
	}{
		{"value", "b7000000070000009500000000000000", "", 7, ""},
		{"memory", "71100100000000009500000000000000", "aabb", 0xbb, ""},
		{"memory is a copy", "72010000010000009500000000000000", "aabb", 0, ""},
		{"rejection", "9500000001000000", "", 0, "insn=0: exit: field imm is 1, must be 0"},
		{"fault", "71100200000000009500000000000000", "aabb", 0, "pc=0 addr=0x"},
	} {
		spec, err := object.Hex(c.code)
		if err != nil {
			t.Fatal(err)
		}
		mem, err := Memory(c.mem)
		if err != nil {
			t.Fatal(err)
		}
		r0, err := Run(spec, mem, options(t))
		if hex.EncodeToString(mem) != c.mem {
			t.Errorf("%s: the memory given is now %x", c.name, mem)
		}
		if r0 != c.want || (err == nil) != (c.err == "") || err != nil && !strings.HasPrefix(err.Error(), c.err) {
			t.Errorf("%s: got %#x, %v, want %#x, %q", c.name, r0, err, c.want, c.err)
		}
	}
}

// TestErrors looks at the types behind the errors.
func TestErrors(t *testing.T) {
	_, err := Hex(strings.NewReader("95"))
	if _, ok := errors.AsType[*isa.DecodeError](err); !ok {
		t.Errorf("truncated: %T %v", err, err)
	}
	if _, err := Raw(strings.NewReader("123")); err == nil {
		t.Error("three bytes were read as a program")
	}
	spec, err := Raw(strings.NewReader("\xff\x00\x00\x00\x00\x00\x00\x00"))
	if err != nil {
		t.Fatal(err)
	}
	_, err = Run(spec, nil, options(t))
	_, rejected := errors.AsType[*Rejection](err)
	if refusal, ok := errors.AsType[*verify.Refusal](err); !ok || !rejected || refusal.Slot != 0 {
		t.Errorf("unknown opcode: %T %v", err, err)
	}
	if spec, err = Hex(strings.NewReader("7910000000000000 9500000000000000")); err != nil {
		t.Fatal(err)
	}
	_, err = Run(spec, nil, options(t))
	if _, ok := errors.AsType[*engine.Fault](err); !ok {
		t.Errorf("null pointer: %T %v", err, err)
	}
	broken := errors.New("broken")
	_, err = Hex(iotest.ErrReader(broken))
	if _, rejected := errors.AsType[*Rejection](err); rejected || !errors.Is(err, broken) {
		t.Errorf("a broken reader: %v", err)
	}
	if _, err := Object([]byte("no object")); err == nil {
		t.Error("text was read as an object")
	}
	if _, err := Text([]byte("no text")); err == nil {
		t.Error("words were read as instructions")
	}
}

// endless yields zero bytes for ever.
type endless struct{}

func (endless) Read(b []byte) (int, error) {
	clear(b)
	return len(b), nil
}

func TestEndlessInput(t *testing.T) {
	const limit = 10_000
	if data, err := readAll(io.LimitReader(endless{}, limit), limit); err != nil || len(data) != limit {
		t.Errorf("as much as is accepted: %d bytes, %v", len(data), err)
	}
	if _, err := readAll(endless{}, limit); err == nil {
		t.Error("endless input was read")
	}
	if err := batch(endless{}, io.Discard, options(t), limit); err == nil || !strings.Contains(err.Error(), "line 1") {
		t.Errorf("an endless line: %v", err)
	}
}

// TestBatchAnswersAtOnce sends a line only when the one before has been
// answered.
func TestBatchAnswersAtOnce(t *testing.T) {
	in, lines := io.Pipe()
	answers, out := io.Pipe()
	done := make(chan error)
	go func() { done <- Batch(in, out, options(t)) }()
	for range 3 {
		if _, err := io.WriteString(lines, "- b7000000070000009500000000000000\n"); err != nil {
			t.Fatal(err)
		}
		got := make([]byte, 2)
		if _, err := io.ReadFull(answers, got); err != nil || string(got) != "7\n" {
			t.Fatalf("got %q, %v", got, err)
		}
	}
	lines.Close()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

func TestBatchWriteFails(t *testing.T) {
	in, out := io.Pipe()
	in.Close()
	if err := Batch(strings.NewReader("- 95\n"), out, options(t)); !errors.Is(err, io.ErrClosedPipe) {
		t.Errorf("got %v", err)
	}
}

func TestServices(t *testing.T) {
	for _, name := range TableNames() {
		if _, err := Services(name); err != nil {
			t.Error(err)
		}
	}
	if _, err := Services("unknown"); err == nil {
		t.Error("services that nobody declared")
	}
}

func TestOneLine(t *testing.T) {
	if got := OneLine("a\nb\x1b[2J\u202ec"); got != "a b?[2J?c" {
		t.Errorf("got %q", got)
	}
}

// TestExplain names maps, services and functions.
func TestExplain(t *testing.T) {
	spec, err := object.Hex("85100000 01000000 95000000 00000000 7ba1f8ff 00000000 7b11f8ff 00000000 b7000000 00000000 95000000 00000000")
	if err != nil {
		t.Fatal(err)
	}
	for _, trusted := range []bool{false, true} {
		p, err := verify.Verify(spec, verify.Config{Trusted: trusted})
		if err != nil {
			t.Fatal(err)
		}
		var out bytes.Buffer
		r := NewReport(spec, p, nil)
		if err := r.Explain(&out); err != nil {
			t.Fatal(err)
		}
		want := []string{"function 0 to 1: no stack frame", "function 2 to 5: a stack frame of 512 bytes", "insn=3 "}
		if trusted {
			want = append(want, "unchecked")
		}
		for _, text := range want {
			if !strings.Contains(out.String(), text) {
				t.Errorf("%q is missing in\n%s", text, out.String())
			}
		}
	}
}

// TestChoice chooses among programs by section and function.
func TestChoice(t *testing.T) {
	var specs []*object.Spec
	for _, name := range []string{"a one", "a two", "b one"} {
		section, function, _ := strings.Cut(name, " ")
		specs = append(specs, &object.Spec{Section: section, Name: function})
	}
	for _, c := range []struct {
		choice Choice
		all    int
		one    string // a program or an error
	}{
		{Choice{}, 3, "3 programs, choose one by --section or --function: a one, a two, b one"},
		{Choice{Section: "a"}, 2, "2 programs, choose one by --section or --function: a one, a two"},
		{Choice{Section: "b"}, 1, "b one"},
		{Choice{Function: "two"}, 1, "a two"},
		{Choice{Section: "a", Function: "one"}, 1, "a one"},
		{Choice{Section: "c"}, 0, "no program with --section c; there are a one, a two, b one"},
		{Choice{Section: "b", Function: "two"}, 0, "no program with --section b --function two; there are a one, a two, b one"},
	} {
		all, _ := c.choice.All(specs)
		one, err := c.choice.One(specs)
		got := ""
		if err != nil {
			got = err.Error()
		} else {
			got = qualified(one)
		}
		if len(all) != c.all || got != c.one {
			t.Errorf("%v: %d, %q", c.choice, len(all), got)
		}
	}
}

// TestList prints real objects, and programs that lie, as text that is read
// back.
func TestList(t *testing.T) {
	specs := []*object.Spec{{
		Name: "liar\nexit", Section: "x\nexit",
		Instructions: []isa.Instruction{{Code: 0x85, Src: 2, Imm: 1}, {Code: 0x85, Src: 2}, {Code: 0x95}},
		Externs:      []string{"a\nexit"},
		Lines:        object.Lines{{Slot: 0, File: "f", Number: 1, Text: "one\nexit"}, {Slot: 2, File: "f", Number: 1, Text: "one\nexit"}},
	}}
	for _, name := range []string{"counter", "faults"} {
		file, err := os.ReadFile("../object/testdata/" + name + ".o")
		if err != nil {
			t.Fatal(err)
		}
		all, err := Object(file)
		if err != nil {
			t.Fatal(err)
		}
		specs = append(specs, all...)
	}
	for _, spec := range specs {
		for _, slots := range []bool{false, true} {
			var text bytes.Buffer
			if err := List(&text, spec, slots); err != nil {
				t.Fatal(err)
			}
			back, err := Text(text.Bytes())
			if err != nil || len(back) != 1 || back[0].Name != spec.Name || back[0].Section != spec.Section ||
				!bytes.Equal(isa.Encode(back[0].Instructions), isa.Encode(spec.Instructions)) {
				t.Errorf("%s: %v in\n%s", spec.Name, err, &text)
			}
		}
	}
	var text bytes.Buffer
	if err := List(&text, specs[0], true); err != nil {
		t.Fatal(err)
	}
	want := `.program "liar\x0aexit" "x\x0aexit"` + "\n" +
		`.extern "a\x0aexit"` + "\n" +
		"    # f:1: one exit\n" +
		"    call_named 1                        # 0\n" +
		`    call_named "a\x0aexit"              # 1` + "\n" +
		"    exit                                # 2\n"
	if text.String() != want {
		t.Errorf("got\n%swant\n%s", &text, want)
	}
}

// FuzzHex runs whatever is read: a program is run, rejected or stopped, and a
// rejection names the instruction.
func FuzzHex(f *testing.F) {
	f.Add("b7000000 07000000 95000000 00000000", "00")
	f.Add("18000000010000000000000002000000 9500000000000000", "")
	f.Add("7910000000000000\n9500000000000000", "01 02")
	f.Add("95x", "0")
	o := options(f)
	f.Fuzz(func(t *testing.T, code, memory string) {
		mem, err := Memory(memory)
		if err != nil {
			return
		}
		spec, err := Hex(strings.NewReader(code))
		if err == nil {
			_, err = Run(spec, mem, o)
		}
		checkOutcome(t, err)
	})
}

// checkOutcome demands that an error is of a known kind and in the right words.
func checkOutcome(t *testing.T, err error) {
	t.Helper()
	if err == nil {
		return
	}
	pattern := `^pc=\d+ addr=0x[0-9a-f]+ kind=[a-z]+ fuel=\d+`
	if _, ok := errors.AsType[*Rejection](err); ok {
		pattern = `^insn=\d+: .`
	} else if _, ok := errors.AsType[*engine.Fault](err); !ok {
		t.Fatalf("%T: %v", err, err)
	}
	if !regexp.MustCompile(pattern).MatchString(err.Error()) {
		t.Errorf("%q does not match %s", err, pattern)
	}
}

// answer matches a line of a batch.
var answer = regexp.MustCompile(`^([0-9a-f]{1,16}|reject insn=\d+: .+|fault pc=\d+ addr=0x[0-9a-f]+ kind=[a-z]+ fuel=\d+.*|error .+)$`)

// FuzzBatch gets one answer for each line, whatever the lines are.
func FuzzBatch(f *testing.F) {
	f.Add("- b7000000070000009500000000000000\n00 9500000000000000\n\n- 95")
	f.Add("0102 7910000000000000 9500000000000000\r\n- \n-")
	f.Add("- 0500ffff00000000\nzz 95\n")
	o := options(f)
	f.Fuzz(func(t *testing.T, text string) {
		var out bytes.Buffer
		err := Batch(strings.NewReader(text), &out, o)
		lines := 0
		for range strings.Lines(text) {
			lines++
		}
		answers, failed := 0, false
		for line := range strings.Lines(out.String()) {
			answers++
			failed = failed || strings.HasPrefix(line, "error ")
			if !answer.MatchString(strings.TrimSuffix(line, "\n")) {
				t.Errorf("answer %q", line)
			}
		}
		if answers != lines || failed != (err != nil) {
			t.Errorf("%d answers to %d lines, %v", answers, lines, err)
		}
	})
}
