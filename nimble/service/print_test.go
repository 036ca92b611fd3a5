package service

import (
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// printed calls trace_printk with a format, its zero included, and returns the result.
func printed(t testing.TB, c *Call, mem []byte, base uint64, format string, args ...uint64) (line string, result uint64) {
	t.Helper()
	table, err := NewTable(Linux()...)
	if err != nil {
		t.Fatal(err)
	}
	c.Print = func(l string) { line = l }
	c.Args = [5]uint64{base, uint64(copy(mem, format))}
	copy(c.Args[2:], args)
	result, err = table.Name("trace_printk").Call(c)
	if err != nil {
		t.Fatal(err)
	}
	return line, result
}

func TestTracePrintk(t *testing.T) {
	c, mem, base := newCall(t, array)
	copy(mem[40:], "text\n\xff")
	minus := ^uint64(0)
	invalid := Errno(unix.EINVAL)
	for _, tc := range []struct {
		format string
		args   []uint64
		want   string
	}{
		{"plain", nil, "plain"},
		{"a line\n", nil, "a line"},
		{"two\nlines\n", nil, "two?lines"},
		{"%d|%i|%u", []uint64{minus, 5, minus}, "-1|5|4294967295"},
		{"%ld|%lli|%lu", []uint64{minus, minus, minus}, "-1|-1|18446744073709551615"},
		{"%x|%lx|%#llx", []uint64{1<<32 | 0xab, 1<<32 | 0xab, 0xab}, "ab|1000000ab|0xab"},
		{"%c%c%% %p", []uint64{'a', '\n', 0x1000}, "a?% 0x1000"},
		{"%5d|%05d|%#06x", []uint64{7, minus - 6, 0xab}, "    7|-0007|0x00ab"},
		{"<%s>", []uint64{base + 40}, "<text??>"},
		{"<%8s>", []uint64{base + 42}, "<    xt??>"},
		{"<%s>", []uint64{0}, "<(fault)>"},
		{"<%s>", []uint64{base + 64 - 1}, "<>"},
	} {
		line, n := printed(t, c, mem, base, tc.format+"\x00", tc.args...)
		if line != tc.want || n != uint64(len(line))+1 {
			t.Errorf("%q with %x: %q, %d; want %q", tc.format, tc.args, line, n, tc.want)
		}
	}
	mem[63] = 'x' // a string that runs out of the memory
	if line, _ := printed(t, c, mem, base, "%s\x00", base+63); line != "(fault)" {
		t.Errorf("read past the end: %q", line)
	}
	for _, format := range []string{
		"no zero", "", "%\x00", "%q\x00", "%lld%d%d%d\x00", "%llld\x00", "%100d\x00", "%-5d\x00", "%s%", "%.3s\x00", "%5\x00",
	} {
		if line, n := printed(t, c, mem, base, format); n != invalid || line != "" {
			t.Errorf("%q: %q, %d", format, line, int64(n))
		}
	}
	c.Print = nil
	c.Args = [5]uint64{base, uint64(copy(mem, "x\x00"))}
	if n, err := tracePrintkOf(t, c); n != 2 || err != nil {
		t.Errorf("with nobody to read it: %d, %v", n, err)
	}
}

func tracePrintkOf(t testing.TB, c *Call) (uint64, error) {
	t.Helper()
	table, err := NewTable(Linux()...)
	if err != nil {
		t.Fatal(err)
	}
	return table.Number(6).Call(c)
}

// FuzzTracePrintk formats anything: a line is printable and has an end.
func FuzzTracePrintk(f *testing.F) {
	f.Add("%d and %s\x00", uint64(1), uint64(2))
	f.Fuzz(func(t *testing.T, format string, a, b uint64) {
		c, mem, base := newCall(t, array)
		line, _ := printed(t, c, mem, base, format, a, b, base)
		if len(line) > maxFormat*100 || strings.ContainsFunc(line, func(r rune) bool { return r < ' ' || r > '~' }) {
			t.Errorf("%q gives %q", format, line)
		}
	})
}
