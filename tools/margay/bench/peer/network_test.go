package peer

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
)

// Nodes of a network reach each other, and each sees only its own devices.
func TestNetwork(t *testing.T) {
	w, err := NewNetwork(3)
	if os.Geteuid() != 0 && errors.Is(err, os.ErrPermission) {
		return // others than root use loopback
	}
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	for i := range 3 {
		argv := append(w.Enter(i), "cat", "/proc/thread-self/net/dev", "/proc/thread-self/net/fib_trie")
		out, err := exec.Command(argv[0], argv[1:]...).CombinedOutput()
		if err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		for j := range 3 {
			if has := strings.Contains(string(out), fmt.Sprintf("-- %v\n", address(j))); has != (i == j) {
				t.Errorf("node %d has the address of node %d: %t\n%s", i, j, has, out)
			}
		}
		if strings.Count(string(out), ":") != 4 { // two in the heading: lo and v0
			t.Errorf("node %d has other devices than lo and %s:\n%s", i, device, out)
		}
	}
}
