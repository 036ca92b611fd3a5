package check

import (
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// CValues returns the values of integer expressions in C, by name. They follow source, which may
// include headers of the current folder. Without gcc the test is skipped.
func CValues(t testing.TB, source string, expressions map[string]string) map[string]int {
	t.Helper()
	gcc, err := exec.LookPath("gcc")
	if err != nil {
		t.Skip("this test needs gcc")
	}
	source += "\n#include <stddef.h>\n#include <stdio.h>\nint main(void)\n{\n"
	names := slices.Sorted(maps.Keys(expressions))
	for _, name := range names {
		source += fmt.Sprintf("\tprintf(\"%%lld\\n\", (long long)(%s));\n", expressions[name])
	}
	program := filepath.Join(t.TempDir(), "values")
	build := exec.Command(gcc, "-Wall", "-Wextra", "-Werror", "-I", ".", "-x", "c", "-o", program, "-")
	build.Stdin = strings.NewReader(source + "\treturn 0;\n}\n")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("gcc: %v\n%s", err, out)
	}
	out, err := exec.Command(program).Output()
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Fields(string(out))
	if len(lines) != len(names) {
		t.Fatalf("%d values of %d expressions:\n%s", len(lines), len(names), out)
	}
	values := make(map[string]int)
	for i, name := range names {
		var n int
		if _, err := fmt.Sscan(lines[i], &n); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		values[name] = n
	}
	return values
}

// unsigned matches macros that name an unsigned type.
var unsigned = regexp.MustCompile(`_U(8|16|32|64)$`)

// HeaderValues returns the values that a C header of the current folder declares under a prefix:
// its macros except types, and of each structure the size, as sizeof(struct prefix_name), and the
// offsets of the fields, as name.field. Without gcc the test is skipped.
func HeaderValues(t testing.TB, file, prefix string) map[string]int {
	t.Helper()
	header, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	names := make(map[string]string)
	for _, m := range regexp.MustCompile(`(?m)^#define (`+strings.ToUpper(prefix)+`_\w+) `).FindAllStringSubmatch(string(header), -1) {
		if !unsigned.MatchString(m[1]) {
			names[m[1]] = m[1]
		}
	}
	for _, s := range regexp.MustCompile(`(?ms)^struct `+prefix+`_(\w+) \{(.*?)^\}`).FindAllStringSubmatch(string(header), -1) {
		size := fmt.Sprintf("sizeof(struct %s_%s)", prefix, s[1])
		names[size] = size
		for _, f := range regexp.MustCompile(`(?m)^\t\w+ (\w+)(\[\w+\])?;`).FindAllStringSubmatch(s[2], -1) {
			names[s[1]+"."+f[1]] = fmt.Sprintf("offsetof(struct %s_%s, %s)", prefix, s[1], f[1])
		}
	}
	return CValues(t, fmt.Sprintf("#include %q", file), names)
}
