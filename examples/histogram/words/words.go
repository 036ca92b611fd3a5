// Package words defines words, and the printed form of a histogram, for the histogram examples.
//
// A word is a run of ASCII letters, digits and underscores. A run of more than MaxWord bytes counts
// as several words of MaxWord bytes and the rest.
package words

import (
	"bytes"
	"cmp"
	"fmt"
	"io"
	"slices"
)

// MaxWord is the length of the longest word, in bytes.
const MaxWord = 64

// TopTen is the number of words printed.
const TopTen = 10

// part marks the bytes that are part of a word.
var part = func() (t [256]bool) {
	for c := range t {
		t[c] = c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '_'
	}
	return t
}()

// Each calls f for every word of the runs that begin in text[begin:end]. The word is a part of
// text.
func Each(text []byte, begin, end int, f func(word []byte)) {
	at := begin
	if begin > 0 && begin < len(text) && part[text[begin-1]] {
		for at < len(text) && part[text[at]] {
			at++ // this run began before
		}
	}
	for at < end {
		for at < end && !part[text[at]] {
			at++
		}
		if at == end {
			return
		}
		first := at
		for at < len(text) && part[text[at]] {
			if at++; at-first == MaxWord {
				f(text[first:at])
				first = at
			}
		}
		if at > first {
			f(text[first:at])
		}
	}
}

// Hash is the FNV-1a hash of a word.
func Hash(word []byte) uint64 {
	h := uint64(14695981039346656037)
	for _, c := range word {
		h = (h ^ uint64(c)) * 1099511628211
	}
	return h
}

// Count is a word and its frequency.
type Count struct {
	Word  string
	Count uint64
}

// Histogram is the histogram of a text. Histograms of different words can be merged.
type Histogram struct {
	Words       uint64  // all
	Different   uint64  // different ones
	Fingerprint uint64  // of all words and their counts
	Top         []Count // the most frequent ones, at most TopTen
}

// Add adds a word that has not been added before.
func (h *Histogram) Add(word []byte, count uint64) {
	h.Words += count
	h.Different++
	h.Fingerprint += Hash(word) * count
	if last := len(h.Top) - 1; len(h.Top) < TopTen || count > h.Top[last].Count || count == h.Top[last].Count && string(word) < h.Top[last].Word {
		h.AddTop(Count{string(word), count})
	}
}

// AddTop puts a count among the most frequent ones if it belongs there.
func (h *Histogram) AddTop(c Count) {
	at, _ := slices.BinarySearchFunc(h.Top, c, func(a, b Count) int {
		return cmp.Or(cmp.Compare(b.Count, a.Count), cmp.Compare(a.Word, b.Word))
	})
	h.Top = slices.Insert(h.Top, at, c)
	h.Top = h.Top[:min(len(h.Top), TopTen)]
}

// Print prints the histogram.
func (h *Histogram) Print(w io.Writer) error {
	var out bytes.Buffer
	fmt.Fprintf(&out, "%10s  %s\n", "count", "word")
	for _, c := range h.Top {
		fmt.Fprintf(&out, "%10d  %s\n", c.Count, c.Word)
	}
	fmt.Fprintf(&out, "%d words, %d different, fingerprint %016x\n", h.Words, h.Different, h.Fingerprint)
	_, err := w.Write(out.Bytes())
	return err
}
