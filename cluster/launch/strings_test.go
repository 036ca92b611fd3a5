package launch

import (
	"errors"
	"slices"
	"strings"
	"testing"
)

func TestCheckStrings(t *testing.T) {
	long := func(n int) string { return strings.Repeat("x", n) }
	// So much fits beside an argument of one byte.
	rest := maxStrings - 2 - pointerSize
	whole := maxString + pointerSize
	fill := slices.Repeat([]string{long(maxString - 1)}, rest/whole)
	last := rest%whole - 1 - pointerSize
	for _, k := range []struct {
		name      string
		argv, env []string
		says      []string // nothing: they fit
	}{
		{"nothing", nil, nil, nil},
		{"the longest argument", []string{"p", long(131071)}, nil, nil},
		{"one byte more", []string{"p", long(131072)}, []string{"A=b"}, []string{"argument 1 is 131072 bytes, at most 131071 fit", "--with"}},
		{"the longest variable", nil, []string{"BIG=" + long(131067)}, nil},
		{"a longer one", []string{"p"}, []string{"A=b", "BIG=" + long(131068)}, []string{"variable BIG is 131072 bytes, at most 131071 fit"}},
		{"a strange name", nil, []string{"\x1b\xff=" + long(131072)}, []string{"variable ?? is 131075 bytes"}},
		{"as many as fit", []string{"p"}, append(slices.Clone(fill), long(last)), nil},
		{"one byte more in all", []string{"p"}, append(slices.Clone(fill), long(last+1)),
			[]string{"arguments and environment are 2092033 bytes", "at most 2092032 fit", "the longest is variable xxx", "of 131071 bytes", "--with"}},
		{"many empty ones", slices.Repeat([]string{""}, 300_000), nil, []string{"arguments and environment are 2700000 bytes"}},
	} {
		err := CheckStrings(k.argv, k.env)
		if len(k.says) == 0 && err != nil || len(k.says) > 0 && (!errors.Is(err, ErrTooLong) || ExitStatus(err) != 126) {
			t.Errorf("%s: %v", k.name, err)
			continue
		}
		for _, text := range k.says {
			if !strings.Contains(err.Error(), text) {
				t.Errorf("%s: %v, without %q", k.name, err, text)
			}
		}
	}
}
