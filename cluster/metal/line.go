package metal

import (
	"fmt"
	"net/netip"
)

// Sight is the state of the interface of a boot network at one moment.
type Sight struct {
	Index   int  // 0: there is no interface of the name
	Up      bool // it is switched on
	Carrier bool // a cable is in it, and something at the other end
	Address bool // it has the address of the services
}

// Line follows the interface of a boot network, which can be pulled out, renamed or made again
// while the machine is up. It is a state machine without input and output, and not safe for
// concurrent use.
type Line struct {
	name    string
	server  netip.Prefix
	gives   bool // this program gives the interface its address
	index   int
	trouble string
}

// NewLine returns the line of an interface that is well and has an index.
func NewLine(name string, server netip.Prefix, gives bool, index int) *Line {
	return &Line{name: name, server: server, gives: gives, index: index}
}

// See takes a look at the interface. Bind demands that the sockets are bound to it again, because
// it is another one or has lost its address; Bound has the outcome. Changed reports that Trouble
// has changed.
func (l *Line) See(s Sight) (bind, changed bool) {
	was := l.trouble
	switch {
	case s.Index == 0:
		l.index = 0
		l.trouble = fmt.Sprintf("the interface %s is gone: no machine can boot and no node can be reached until it is back", l.name)
	case s.Index != l.index || !s.Address && l.gives:
		return true, false
	case !s.Address:
		l.trouble = fmt.Sprintf("the interface %s has lost the address %v: no machine can boot and no node can be reached until it has it (ip address add %v dev %s)",
			l.name, l.server, l.server, l.name)
	case !s.Up:
		l.trouble = fmt.Sprintf("the interface %s is switched off: no machine can boot and no node can be reached (ip link set %s up)", l.name, l.name)
	case !s.Carrier:
		l.trouble = fmt.Sprintf("the interface %s has no link: is its cable plugged in?", l.name)
	default:
		l.trouble = ""
	}
	return false, l.trouble != was
}

// Bound takes the outcome of binding the sockets to the interface that has an index now, and
// reports whether Trouble has changed.
func (l *Line) Bound(index int, err error) (changed bool) {
	was := l.trouble
	l.index, l.trouble = index, ""
	if err != nil { // it is tried again
		l.index, l.trouble = 0, fmt.Sprintf("the interface %s is back and cannot be used: %v", l.name, err)
	}
	return l.trouble != was
}

// Trouble says what keeps machines from their boot; empty if nothing does.
func (l *Line) Trouble() string { return l.trouble }
