package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// The program in the README does what the README says.
func TestProgramOfReadme(t *testing.T) {
	readme, err := os.ReadFile("../../README.md")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(readme), "```c\n")
	source, _, ok := strings.Cut(rest, "```")
	if !ok {
		t.Fatal("the README has no C program")
	}
	file, program := filepath.Join(scratch, "greet.c"), filepath.Join(scratch, "greet")
	if err := os.WriteFile(file, []byte(source), 0o644); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("gcc", "-Wall", "-Wextra", "-Werror", "-static", "-I", "../../lib/c", file, filepath.Join(bin, "libmargay.a"), "-o", program)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	r := use(t, "hosted").run(0, "-n", "8", program)
	for rank := range 8 {
		if !strings.Contains(r.stdout, fmt.Sprintf("rank %d on node %d greets rank %d\n", rank, rank/2, (rank+1)%8)) {
			t.Fatal(r)
		}
	}
}
