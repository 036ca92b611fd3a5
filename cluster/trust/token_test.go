package trust

import (
	"bytes"
	"errors"
	"io"
	"strings"
	"testing"
)

// aToken is a token of any machine.
func aToken() UserToken {
	t := UserToken{Number: 7, Secret: NewSecret()}
	copy(t.Machine[:], "fingerprint")
	return t
}

func TestTokenText(t *testing.T) {
	token := aToken()
	text := token.String()
	if len(text) != LongestToken || LongestToken != 103 {
		t.Errorf("it has %d bytes: %s", len(text), text)
	}
	if got, err := ParseToken(text); err != nil || got != token {
		t.Errorf("%s: %v, %v", text, got, err)
	}
	changed := []byte(text)
	if changed[50]++; changed[50] > 'z' || changed[50] == '[' || changed[50] == ':' || changed[50] == '`' {
		changed[50] = 'A'
	}
	for what, other := range map[string]string{
		"nothing": "", "a prefix": tokenPrefix, "without its end": text[:len(text)-1], "more": text + "A", "a line": text + "\n",
		"a line within": text[:50] + "\n" + text[50:len(text)-1], "changed": string(changed), "spaces": " " + text, "upper case": strings.ToUpper(text),
		"without its prefix": text[len(tokenPrefix):],
	} {
		if got, err := ParseToken(other); !errors.Is(err, ErrNoToken) || got != (UserToken{}) {
			t.Errorf("%s: %v, %v", what, got, err)
		}
	}
}

// Every text is either refused or the very text of its token.
func FuzzParseToken(f *testing.F) {
	text := aToken().String()
	f.Add(text)
	f.Add(text[:40])
	f.Add(text + "\n")
	f.Fuzz(func(t *testing.T, text string) {
		if token, err := ParseToken(text); err == nil && token.String() != text {
			t.Errorf("%q becomes %s", text, token)
		}
	})
}

func TestOpening(t *testing.T) {
	token := aToken()
	r := bytes.NewReader(append(token.Opening(), "the next"...))
	number, secret, err := ReadOpening(r)
	if rest, _ := io.ReadAll(r); err != nil || number != 7 || secret != token.Secret || string(rest) != "the next" {
		t.Errorf("%d, %v, before %q", number, err, rest)
	}
	if _, secret, err := ReadOpening(bytes.NewReader(token.Opening()[:35])); !errors.Is(err, io.ErrUnexpectedEOF) || secret != (Secret{}) {
		t.Errorf("a part of one: %v", err)
	}
}

func TestSecret(t *testing.T) {
	a, b := NewSecret(), NewSecret()
	if a == b || !a.Is(a.Hash()) || a.Is(b.Hash()) || a.Is(nil) || a.Is(a[:]) {
		t.Error("a secret is not known by its hash")
	}
}
