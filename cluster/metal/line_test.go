package metal

import (
	"errors"
	"net/netip"
	"strings"
	"testing"
)

// An interface that goes and comes back is bound again, until that succeeds. Each trouble is said
// once, and so is its end.
func TestLine(t *testing.T) {
	good := Sight{Index: 3, Up: true, Carrier: true, Address: true}
	for name, c := range map[string]struct {
		gives bool
		steps []any // a Sight, or the outcome of a binding, and then what follows: bind, changed and trouble
	}{
		"well": {true, []any{good, false, false, ""}},
		"pulled out and plugged in": {true, []any{
			Sight{}, false, true, "eth1 is gone",
			Sight{}, false, false, "eth1 is gone",
			Sight{Index: 9}, true, false, "eth1 is gone",
			errors.New("no"), false, true, "cannot be used: no",
			Sight{Index: 9}, true, false, "cannot be used: no",
			errors.New("no"), false, false, "cannot be used: no",
			Sight{Index: 9}, true, false, "cannot be used: no",
			nil, false, true, "",
			Sight{Index: 9, Up: true, Carrier: true, Address: true}, false, false, "",
		}},
		"made again between two looks": {true, []any{Sight{Index: 4, Up: true, Carrier: true, Address: true}, true, false, "", nil, false, false, ""}},
		"without its address":          {true, []any{Sight{Index: 3, Up: true, Carrier: true}, true, false, "", nil, false, false, ""}},
		"without an address of others": {false, []any{
			Sight{Index: 3, Up: true, Carrier: true}, false, true, "ip address add 10.8.0.1/24 dev eth1",
			good, false, true, "",
		}},
		"switched off": {true, []any{Sight{Index: 3, Address: true}, false, true, "ip link set eth1 up", good, false, true, ""}},
		"unplugged":    {true, []any{Sight{Index: 3, Up: true, Address: true}, false, true, "is its cable", good, false, true, ""}},
	} {
		l, index := NewLine("eth1", netip.MustParsePrefix("10.8.0.1/24"), c.gives, 3), 3
		for i := 0; i < len(c.steps); i += 4 {
			var bind, changed bool
			if s, ok := c.steps[i].(Sight); ok {
				bind, changed = l.See(s)
				index = s.Index
			} else {
				err, _ := c.steps[i].(error)
				changed = l.Bound(index, err)
			}
			want := c.steps[i+3].(string)
			if bind != c.steps[i+1] || changed != c.steps[i+2] || !strings.Contains(l.Trouble(), want) || (want == "") != (l.Trouble() == "") {
				t.Errorf("%s: step %d: bind %t, changed %t, %q; want %v", name, i/4, bind, changed, l.Trouble(), c.steps[i+1:i+4])
			}
		}
	}
}
