package service

import (
	"bytes"
	"errors"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"margay/internal/printable"
)

// Bounds of printed text, in bytes.
const (
	maxFormat = 128
	maxString = 64
)

// tracePrintk formats its third to fifth arguments as the format in the first
// two says and gives the line to Call.Print. It returns the length of the line
// and its zero, as Linux does. A format is a string with its zero; it may have
// %d %i %u %x %p %c %s and %%, with l or ll, # and 0 flags and a width below
// 100. A %s takes at most 64 bytes of memory that the extension may read. A
// format that is none of this is an error code, EINVAL. A trailing newline is removed; a byte that
// is not printable ASCII becomes a question mark.
func tracePrintk(c *Call) (uint64, error) {
	format := c.Bytes(0)
	if len(format) > maxFormat { // not searched: one instruction pays for any length
		return Errno(unix.EINVAL), nil
	}
	end := bytes.IndexByte(format, 0)
	if end < 0 {
		return Errno(unix.EINVAL), nil
	}
	// Copied at once, since an application may share the memory.
	line, err := c.format(string(format[:end]), c.Args[2:])
	if err != nil {
		return Errno(unix.EINVAL), nil
	}
	if c.Print != nil {
		c.Print(line)
	}
	return uint64(len(line)) + 1, nil
}

var errFormat = errors.New("bad format")

// format formats arguments. The error is always errFormat.
func (c *Call) format(format string, args []uint64) (string, error) {
	var line strings.Builder
	for {
		text, rest, found := strings.Cut(format, "%")
		line.WriteString(text)
		if !found {
			return printable.Line(strings.TrimSuffix(line.String(), "\n")), nil
		}
		if strings.HasPrefix(rest, "%") {
			line.WriteByte('%')
			format = rest[1:]
			continue
		}
		v, rest, err := parseVerb(rest)
		if err != nil || len(args) == 0 {
			return "", errFormat
		}
		line.WriteString(v.pad(c.value(v, args[0])))
		args, format = args[1:], rest
	}
}

// verb is one conversion of a format.
type verb struct {
	alternate, zero, wide bool
	width                 int
	letter                byte
}

// parseVerb reads what follows a percent sign.
func parseVerb(s string) (v verb, rest string, err error) {
	next := func() (b byte) {
		if s != "" {
			b, s = s[0], s[1:]
		}
		return b
	}
	b := next()
	for ; b == '#' || b == '0'; b = next() {
		v.alternate, v.zero = v.alternate || b == '#', v.zero || b == '0'
	}
	for digits := 0; b >= '0' && b <= '9'; b = next() {
		if digits++; digits > 2 {
			return v, "", errFormat
		}
		v.width = v.width*10 + int(b-'0')
	}
	for longs := 0; b == 'l'; b = next() {
		if longs++; longs > 2 {
			return v, "", errFormat
		}
		v.wide = true
	}
	if b == 0 || !strings.ContainsRune("diuxpcs", rune(b)) {
		return v, "", errFormat
	}
	v.letter = b
	return v, s, nil
}

// value returns an argument as text, without padding.
func (c *Call) value(v verb, arg uint64) string {
	switch v.letter {
	case 'd', 'i':
		if !v.wide {
			return strconv.FormatInt(int64(int32(arg)), 10)
		}
		return strconv.FormatInt(int64(arg), 10)
	case 'p':
		return "0x" + strconv.FormatUint(arg, 16)
	case 'c':
		return string([]byte{byte(arg)})
	case 's':
		return c.text(arg)
	}
	if !v.wide {
		arg = uint64(uint32(arg))
	}
	if v.letter == 'u' {
		return strconv.FormatUint(arg, 10)
	}
	text := strconv.FormatUint(arg, 16)
	if v.alternate {
		text = "0x" + text
	}
	return text
}

// text reads the string at addr.
func (c *Call) text(addr uint64) string {
	var text []byte
	for n := range uint64(maxString) {
		b, ok := c.Space.View(addr+n, 1, false)
		if !ok {
			return "(fault)"
		}
		if b[0] == 0 {
			break
		}
		text = append(text, b[0])
	}
	return string(text)
}

// pad makes text as wide as the verb wants.
func (v verb) pad(text string) string {
	n := v.width - len(text)
	switch {
	case n <= 0:
		return text
	case !v.zero || v.letter == 's' || v.letter == 'c':
		return strings.Repeat(" ", n) + text
	}
	sign := ""
	for _, s := range []string{"-", "0x"} {
		if rest, ok := strings.CutPrefix(text, s); ok {
			sign, text = s, rest
		}
	}
	return sign + strings.Repeat("0", n) + text
}
