package uuid

import (
	"bytes"
	"encoding/hex"
	"strings"
	"testing"
)

const text = "4c4c4544-0042-3510-8051-b4c04f4a4e32"

// A client sends the first three fields in one of two orders. Both are the machine of the text.
func TestOrders(t *testing.T) {
	id, err := Parse(text)
	if err != nil || id.String() != text {
		t.Fatalf("%v, %v", id, err)
	}
	for name, sent := range map[string]string{
		"as UEFI sends it":       "00" + "44454c4c420010358051b4c04f4a4e32",
		"in the order of a text": "00" + "4c4c4544004235108051b4c04f4a4e32",
	} {
		option, err := hex.DecodeString(sent)
		if err != nil {
			t.Fatal(err)
		}
		if got := FromOption(option); got.Key() != id.Key() {
			t.Errorf("%s: %v", name, got)
		}
	}
	if got := FromOption(id.Option()); got != id {
		t.Errorf("its own option is %v", got)
	}
	if other, err := Parse("4c4c4544-0042-3510-8051-b4c04f4a4e33"); err != nil || other.Key() == id.Key() {
		t.Errorf("another machine is the same: %v", err)
	}
}

func TestRefused(t *testing.T) {
	for _, bad := range []string{
		"", "4c4c4544", text[:35], text + "0", strings.ReplaceAll(text, "-", ""), "4c4c45440042-3510-8051-b4c04f4a4e32-", "g" + text[1:],
		"00000000-0000-0000-0000-000000000000", "FFFFFFFF-FFFF-FFFF-FFFF-FFFFFFFFFFFF",
		"fefefefe-fefe-fefe-fefe-fefefefefefe", "03000200-0400-0500-0006-000700080009", "00020003-0004-0005-0006-000700080009",
	} {
		if id, err := Parse(bad); err == nil || id != (ID{}) {
			t.Errorf("%q is %v", bad, id)
		}
	}
	for _, bad := range [][]byte{
		nil, {0}, bytes.Repeat([]byte{1}, 17), make([]byte, 17), make([]byte, 18), append([]byte{0}, bytes.Repeat([]byte{0xff}, 16)...),
		append([]byte{0}, example[:]...),
	} {
		if id := FromOption(bad); id != (ID{}) {
			t.Errorf("%x is %v", bad, id)
		}
	}
}

// FuzzParse: an identifier is read again from its text and from its option.
func FuzzParse(f *testing.F) {
	f.Add(text)
	f.Add(strings.ToUpper(text))
	f.Fuzz(func(t *testing.T, s string) {
		id, err := Parse(s)
		if err != nil {
			return
		}
		if again, err := Parse(id.String()); err != nil || again != id || !strings.EqualFold(s, id.String()) {
			t.Errorf("%q is %v, and again %v, %v", s, id, again, err)
		}
		if FromOption(id.Option()) != id {
			t.Errorf("%v is lost in an option", id)
		}
	})
}
