package words

import (
	"bytes"
	"fmt"
	"regexp"
	"strings"
	"testing"
)

// plain finds the words of a text by another way.
func plain(text string) []string {
	return regexp.MustCompile(fmt.Sprintf(`[A-Za-z0-9_]{1,%d}`, MaxWord)).FindAllString(text, -1)
}

// However a text is cut into shares, each word is found once.
func TestSharesCoverTheText(t *testing.T) {
	text := "one two_2 " + strings.Repeat("x", 3*MaxWord+5) + ".ende\n a" + strings.Repeat("y", MaxWord) + " z"
	want := strings.Join(plain(text), " ")
	for shares := 1; shares <= len(text)+1; shares++ {
		var got []string
		for i := range shares {
			Each([]byte(text), len(text)*i/shares, len(text)*(i+1)/shares, func(w []byte) { got = append(got, string(w)) })
		}
		if strings.Join(got, " ") != want {
			t.Fatalf("%d shares: %q", shares, got)
		}
	}
}

func FuzzEach(f *testing.F) {
	f.Add("one two", uint8(3))
	f.Fuzz(func(t *testing.T, text string, shares uint8) {
		var got []string
		n := int(shares) + 1
		for i := range n {
			Each([]byte(text), len(text)*i/n, len(text)*(i+1)/n, func(w []byte) { got = append(got, string(w)) })
		}
		if strings.Join(got, " ") != strings.Join(plain(text), " ") {
			t.Fatalf("%q in %d shares: %q", text, n, got)
		}
	})
}

func TestHistogram(t *testing.T) {
	var whole, a, b Histogram
	for i := range 50 {
		word := []byte(fmt.Sprint("w", i))
		count := uint64(i * i % 37)
		whole.Add(word, count)
		if i%2 == 0 {
			a.Add(word, count)
		} else {
			b.Add(word, count)
		}
	}
	sum := Histogram{Words: a.Words + b.Words, Different: a.Different + b.Different, Fingerprint: a.Fingerprint + b.Fingerprint}
	for _, c := range append(a.Top, b.Top...) {
		sum.AddTop(c)
	}
	var x, y bytes.Buffer
	whole.Print(&x)
	sum.Print(&y)
	if x.String() != y.String() || len(whole.Top) != TopTen {
		t.Errorf("whole:\n%s\nput together:\n%s", x.String(), y.String())
	}
}
