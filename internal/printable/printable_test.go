package printable

import (
	"testing"
	"unicode/utf8"
)

func TestShort(t *testing.T) {
	for text, want := range map[string]string{
		"plain":               "plain",
		"two\nlines\x1b[2J":   "two?lines?[2J",
		"0123456789abcdef":    "0123456789abcdef",
		"0123456789abcdefg":   "0123456789abcdef... (17 bytes)",
		"0123456789abcdeé":    "0123456789abcde... (17 bytes)",
		"bad \xff UTF-8":      "bad ? UTF-8",
		"\u202eright to left": "?right to left",
	} {
		if got := Short(text, 16); got != want || !utf8.ValidString(got) {
			t.Errorf("%q becomes %q, not %q", text, got, want)
		}
	}
}

func TestLines(t *testing.T) {
	const text = "two\n\tlines, größe µ\x1b[2J\xff\r"
	if got, want := Lines(text), "two\n\tlines, größe µ?[2J??"; got != want {
		t.Errorf("%q", got)
	}
	if got, want := Line(text), "two??lines, größe µ?[2J??"; got != want {
		t.Errorf("%q", got)
	}
}

func TestName(t *testing.T) {
	for name, want := range map[string]string{"größe µ": "größe µ", "a\x1b[2J": `"a\x1b[2J"`, "bad \xff": `"bad \xff"`} {
		if got := Name(name); got != want {
			t.Errorf("%q becomes %s", name, got)
		}
	}
}
