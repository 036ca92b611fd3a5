package gdb

import (
	"bytes"
	"fmt"
	"slices"
)

// Talk follows what gdb and gdbserver say to each other. It is a state machine without input and
// output, and not safe for concurrent use. The zero value is the begin of a session.
type Talk struct {
	requests, replies packets
	asked             int      // requests without a reply
	breakpoints       []string // type, address and kind of those that are in the program
}

// FromGDB takes bytes on their way to gdbserver.
func (t *Talk) FromGDB(p []byte) {
	t.requests.take(p, func(request []byte) {
		t.asked++
		point, _, _ := bytes.Cut(request, []byte(";")) // conditions and commands follow
		if len(point) < 2 || bytes.Count(point, []byte(",")) != 2 {
			return
		}
		switch point[0] {
		case 'Z':
			if at := string(point[1:]); !slices.Contains(t.breakpoints, at) {
				t.breakpoints = append(t.breakpoints, at)
			}
		case 'z':
			t.breakpoints = slices.DeleteFunc(t.breakpoints, func(at string) bool { return at == string(point[1:]) })
		}
	})
}

// FromServer takes bytes on their way to gdb.
func (t *Talk) FromServer(p []byte) {
	t.replies.take(p, func(reply []byte) {
		if len(reply) > 1 && reply[0] == 'O' && reply[1] != 'K' {
			return // a text for people, before the reply
		}
		t.asked = max(0, t.asked-1)
	})
}

// Waits reports whether gdbserver owes gdb a reply: the rank runs, or the reply is to come soon.
// While the rank runs, gdbserver takes nothing but an interrupt.
func (t *Talk) Waits() bool { return t.asked > 0 }

// Farewell returns what gdb has not said that is gone: the removal of its breakpoints. It may be
// sent unless gdbserver owes a reply. gdbserver detaches from the rank at the end of its input.
func (t *Talk) Farewell() []byte {
	words := []byte("+")
	for _, at := range t.breakpoints {
		body := "z" + at
		var sum byte
		for _, c := range []byte(body) {
			sum += c
		}
		words = fmt.Appendf(words, "$%s#%02x+", body, sum) // + acknowledges the reply, where that is needed
	}
	return words
}

// maxBegin is how many bytes of a packet are kept: more than a breakpoint without its conditions
// takes.
const maxBegin = 128

// packets finds the packets in one direction of a session: $BODY#CHECKSUM. A # in a body is
// escaped. Notifications begin with a %, and are passed over with all that is between packets.
type packets struct {
	state  packetState
	begin  []byte
	notice bool
}

type packetState int

const (
	between packetState = iota
	inBody
	inChecksum
	inLastDigit
)

// take looks through bytes, and calls each with the begin of the body of each packet that ends in
// them.
func (s *packets) take(p []byte, each func(begin []byte)) {
	for _, c := range p {
		switch s.state {
		case between:
			if c == '$' || c == '%' {
				s.state, s.begin, s.notice = inBody, s.begin[:0], c == '%'
			}
		case inBody:
			if c == '#' {
				s.state = inChecksum
			} else if len(s.begin) < maxBegin {
				s.begin = append(s.begin, c)
			}
		case inChecksum:
			s.state = inLastDigit
		case inLastDigit:
			s.state = between
			if !s.notice {
				each(s.begin)
			}
		}
	}
}
