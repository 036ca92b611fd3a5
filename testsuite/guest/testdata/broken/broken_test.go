package broken

import "testing"

func TestGood(t *testing.T) {}

func TestPanic(t *testing.T) {
	var m map[string]int
	m["x"] = 1
}

func TestNever(t *testing.T) {}
