package check

import (
	"fmt"
	"maps"
	"os/exec"
	"path/filepath"
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
