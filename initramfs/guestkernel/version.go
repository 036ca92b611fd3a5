package guestkernel

import (
	"cmp"
	"strings"
)

// compareVersions orders kernel releases: runs of digits by their value, everything else byte by
// byte.
func CompareVersions(a, b string) int {
	for a != "" && b != "" {
		var x, y string
		if isDigit(a[0]) && isDigit(b[0]) {
			x, a = cutDigits(a)
			y, b = cutDigits(b)
			if c := cmp.Or(cmp.Compare(len(x), len(y)), strings.Compare(x, y)); c != 0 {
				return c
			}
			continue
		}
		if c := cmp.Compare(a[0], b[0]); c != 0 {
			return c
		}
		a, b = a[1:], b[1:]
	}
	return cmp.Compare(len(a), len(b))
}

// cutDigits splits s after its leading digits, which are returned without leading zeros.
func cutDigits(s string) (digits, rest string) {
	n := 0
	for n < len(s) && isDigit(s[n]) {
		n++
	}
	return strings.TrimLeft(s[:n], "0"), s[n:]
}

func isDigit(c byte) bool { return '0' <= c && c <= '9' }
