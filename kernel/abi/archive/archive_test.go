package archive

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"slices"
	"strings"
	"testing"
)

func FuzzParse(f *testing.F) {
	digest := Digest(sha256.Sum256([]byte("x")))
	f.Add(digest.String())
	f.Add(strings.Repeat("0", 63))
	f.Add(strings.ToUpper(digest.String()))
	f.Fuzz(func(t *testing.T, text string) {
		d, err := Parse(text)
		if err == nil && d.String() != strings.ToLower(text) {
			t.Fatalf("%q is read as %v", text, d)
		}
	})
}

func TestText(t *testing.T) {
	digests := []Digest{sha256.Sum256(nil), sha256.Sum256([]byte("x"))}
	text, err := json.Marshal(digests)
	if err != nil {
		t.Fatal(err)
	}
	var got []Digest
	if err := json.Unmarshal(text, &got); err != nil || !slices.Equal(got, digests) {
		t.Errorf("%s is read as %v: %v", text, got, err)
	}
	if err := json.Unmarshal([]byte(`["00"]`), &got); err == nil {
		t.Error("a short digest is read")
	}
}

func TestFromBytes(t *testing.T) {
	digest := Digest(sha256.Sum256(nil))
	if d, err := FromBytes(digest[:]); err != nil || d != digest {
		t.Errorf("%v, %v", d, err)
	}
	for _, n := range []int{0, 31, 33} {
		if d, err := FromBytes(bytes.Repeat([]byte{1}, n)); err == nil {
			t.Errorf("%d bytes are read as %v", n, d)
		}
	}
}
