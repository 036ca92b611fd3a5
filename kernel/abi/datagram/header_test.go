package datagram

import (
	"bytes"
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

// same has the value of each name and expression of datagram.h.
var same = map[string]int{
	"DATAGRAM_VERSION": Version, "DATAGRAM_FRAMES": KindFrames, "DATAGRAM_CLEAR_SIZE": ClearSize, "DATAGRAM_BITMAP_SIZE": BitmapSize,
	"DATAGRAM_FRAGMENT": Fragment, "DATAGRAM_MAX_MESSAGE": MaxMessage, "DATAGRAM_OVERHEAD": Overhead, "DATAGRAM_MAX_SIZE": MaxSize,
	"DATAGRAM_WINDOW": Window, "DATAGRAM_USER": int(User), "DATAGRAM_SYSTEM": int(System), "DATAGRAM_CLASSES": Classes,
	"DATAGRAM_SEALED": FlagSealed, "DATAGRAM_ASK": FlagAsk, "DATAGRAM_END": FlagEnd, "DATAGRAM_USER_BITMAP": FlagUserBitmap,
	"DATAGRAM_SYSTEM_BITMAP": FlagSystemBitmap, "DATAGRAM_FIRST": UnitFirst, "DATAGRAM_LAST": UnitLast,

	"sizeof(struct datagram_header)": HeaderSize, "header.version": offVersion, "header.kind": offKind, "header.flags": offFlags,
	"header.source": offSource, "header.target": offTarget, "header.connection": offConnection, "header.number": offNumber,
	"header.echo": offEcho, "header.delay": offDelay, "header.units": offUnits, "header.zero": offZero, "header.next": offNext,
	"header.credit": offCredit,

	"sizeof(struct datagram_unit)": UnitHeader, "unit.number": offUnitNumber, "unit.message": offUnitMessage, "unit.size": offUnitSize,
	"unit.class": offUnitClass, "unit.flags": offUnitFlags, "unit.job": offUnitJob, "unit.rank": offUnitRank,
	"unit.target": offUnitTarget, "unit.handler": offUnitHandler, "unit.zero": offUnitZero,
}

// The header declares the numbers, sizes and offsets of this package, and no others.
func TestHeaderAgrees(t *testing.T) {
	gcc, err := exec.LookPath("gcc")
	if err != nil {
		t.Skip("this test needs gcc")
	}
	header, err := os.ReadFile("datagram.h")
	if err != nil {
		t.Fatal(err)
	}
	names := make(map[string]string)
	for _, m := range regexp.MustCompile(`(?m)^#define (DATAGRAM_\w+) \(?[0-9]`).FindAllStringSubmatch(string(header), -1) {
		names[m[1]] = m[1]
	}
	for _, s := range regexp.MustCompile(`(?s)struct datagram_(\w+) \{\n(.*?)\};`).FindAllStringSubmatch(string(header), -1) {
		names["sizeof(struct datagram_"+s[1]+")"] = "sizeof(struct datagram_" + s[1] + ")"
		for _, f := range regexp.MustCompile(`(?m)^\t\w+ (\w+)(\[\w+\])?;$`).FindAllStringSubmatch(s[2], -1) {
			names[s[1]+"."+f[1]] = fmt.Sprintf("offsetof(struct datagram_%s, %s)", s[1], f[1])
		}
	}
	source := "#include <stddef.h>\n#include <stdio.h>\n#include \"datagram.h\"\nint main(void)\n{\n"
	for _, name := range slices.Sorted(maps.Keys(names)) {
		source += fmt.Sprintf("\tprintf(\"%s=%%lld\\n\", (long long)(%s));\n", name, names[name])
	}
	program := filepath.Join(t.TempDir(), "header")
	build := exec.Command(gcc, "-Wall", "-Wextra", "-Werror", "-I", ".", "-x", "c", "-o", program, "-")
	build.Stdin = strings.NewReader(source + "\treturn 0;\n}\n")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("gcc: %v\n%s", err, out)
	}
	out, err := exec.Command(program).Output()
	if err != nil {
		t.Fatal(err)
	}
	got := make(map[string]string)
	for line := range bytes.Lines(out) {
		name, value, _ := strings.Cut(strings.TrimSuffix(string(line), "\n"), "=")
		got[name] = value
	}
	for name, value := range same {
		if got[name] != fmt.Sprint(value) {
			t.Errorf("%s is %d here and %q in datagram.h", name, value, got[name])
		}
		delete(got, name)
	}
	for name := range got {
		t.Errorf("this package has nothing for %s", name)
	}
}
