package main

import (
	"bytes"
	"os"
	"path/filepath"
	"regexp"
	"testing"

	"margay/nimble/isa"
)

// TestGenerated generates the files and compares them with the engine's.
func TestGenerated(t *testing.T) {
	for _, arch := range []string{"amd64", "arm64"} {
		dir := t.TempDir()
		if err := run(arch, dir); err != nil {
			t.Fatal(err)
		}
		for _, name := range []string{"handlers_" + arch + ".s", "handlers_" + arch + ".go"} {
			got, err := os.ReadFile(filepath.Join(dir, name))
			if err != nil {
				t.Fatal(err)
			}
			want, err := os.ReadFile(filepath.Join("../../nimble/engine/direct", name))
			if err != nil {
				t.Fatal(err)
			}
			if !bytes.Equal(got, want) {
				t.Errorf("%s is not what make generate writes", name)
			}
		}
	}
	if err := run("vax", t.TempDir()); err == nil {
		t.Error("handlers for a vax")
	}
}

// TestEveryInstruction looks for instructions that nothing does.
func TestEveryInstruction(t *testing.T) {
	for arch, write := range map[string]func(*file){"amd64": writeAMD64, "arm64": writeARM64} {
		f := &file{arch: arch}
		write(f)
		for op := isa.Invalid + 1; int(op) < isa.Ops; op++ {
			e, none := f.entries[op], family{}
			if whole := e[checked] != none && e[unchecked] != none && e[proved] != none; !refused(op) && !whole && e[second] == none {
				t.Errorf("%s: no handler for %s", arch, op)
			}
		}
	}
}

// TestForeignRegisters looks for registers that belong to Go.
func TestForeignRegisters(t *testing.T) {
	for arch, foreign := range map[string]string{"amd64": `\b(SP|FP|R14|X1[0-9])\b`, "arm64": `\b(RSP|FP|R1[6-9]|R2[0-9]|R3[0-9])\b`} {
		for _, name := range []string{"handlers_" + arch + ".s", "handlers_" + arch + ".h"} {
			text, err := os.ReadFile(filepath.Join("../../nimble/engine/direct", name))
			if err != nil {
				t.Fatal(err)
			}
			if found := regexp.MustCompile(foreign).Find(text); found != nil {
				t.Errorf("%s uses %s", name, found)
			}
		}
	}
}
