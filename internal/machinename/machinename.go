// Package machinename says what a machine may be called.
package machinename

// longest is how many bytes a name has at most.
const longest = 32

// Valid reports whether a machine may have a name. A name has 1 to 32 letters and digits of ASCII,
// dots, underscores and hyphens, and begins with a letter or a digit.
func Valid(name string) bool {
	if name == "" || len(name) > longest {
		return false
	}
	for i := range len(name) {
		switch c := name[i]; {
		case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9':
		case i > 0 && (c == '.' || c == '_' || c == '-'):
		default:
			return false
		}
	}
	return true
}
