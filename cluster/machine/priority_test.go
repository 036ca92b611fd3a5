package machine

import (
	"os"
	"testing"

	"margay/kernel/abi/node"
)

// Only the serve of hosted nodes goes first, and only in a session that is the machine's own and
// has no virtual machines.
func TestGoesFirst(t *testing.T) {
	held := Inherited{Lifeline: os.Stdin}
	for _, c := range []struct {
		substrate string
		in        Inherited
		want      bool
	}{
		{node.Hosted, held, true},
		{node.Hosted, Inherited{}, false},
		{node.Virtual, held, false},
		{node.Metal, held, false},
		{node.Hosts, held, false},
	} {
		if got := (&Spec{Substrate: c.substrate}).goesFirst(c.in); got != c.want {
			t.Errorf("%s, %+v: %v", c.substrate, c.in, got)
		}
	}
}
