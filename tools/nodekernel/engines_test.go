package main

import (
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"margay/nimble/engine"
	"margay/nimble/engine/list"
	"margay/nimble/isa"
	"margay/nimble/object"
	"margay/nimble/verify"
)

// TestEngine compares the engine that a node takes for a program with the first
// of the list.
func TestEngine(t *testing.T) {
	p, err := verify.Verify(&object.Spec{Instructions: []isa.Instruction{{Code: isa.Exit.Row().Code}}}, verify.Config{})
	if err != nil {
		t.Fatal(err)
	}
	var names [2]string
	for n, e := range []engine.Engine{engines(), list.Automatic()} {
		c, err := e.Thread(p, nil)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		names[n] = c.(*engine.Chosen).Engine
	}
	if names[0] != names[1] {
		t.Errorf("a node takes %s, the list %s", names[0], names[1])
	}
}

// TestLinked looks at the engines that are linked, for each processor.
func TestLinked(t *testing.T) {
	for arch, want := range map[string]bool{"amd64": false, "arm64": true} {
		cmd := exec.Command("go", "list", "-deps", ".")
		cmd.Env = append(os.Environ(), "GOARCH="+arch, "CGO_ENABLED=0")
		out, err := cmd.Output()
		if err != nil {
			t.Fatal(err)
		}
		packages := strings.Fields(string(out))
		if got := slices.Contains(packages, "margay/nimble/engine/direct"); got != want {
			t.Errorf("%s: direct is linked: %v", arch, got)
		}
		if slices.Contains(packages, "margay/nimble/engine/list") {
			t.Errorf("%s: the list of all engines is linked", arch)
		}
	}
}
