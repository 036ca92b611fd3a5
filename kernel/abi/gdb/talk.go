package gdb

import (
	"bytes"
	"fmt"
	"slices"
)

// Bounds of what a session keeps. A session beyond one of them ends.
const (
	maxPacket      = 256 << 10 // bytes of a packet; gdbserver takes half of that
	maxPoint       = 128       // bytes of a breakpoint without its conditions
	maxBreakpoints = 4096
	maxNumber      = 8 // digits of the number of a process
)

// Talk follows what gdb and gdbserver say to each other. It is a state machine without input and
// output, and not safe for concurrent use. The zero value is the begin of a session.
type Talk struct {
	requests, replies packets
	asked             int          // requests without a reply
	process           string       // the one that requests are about; empty: gdb has named none
	breakpoints       []breakpoint // those that are in the program
	whole             []byte
}

// breakpoint is a breakpoint that is in a process. A fork has its parent's breakpoints, until gdb
// removes them or lets it go.
type breakpoint struct {
	process string // its number in hexadecimal
	point   string // type, address and kind
}

// FromGDB takes bytes of gdb, and returns those that are for gdbserver now: a packet only when it
// is whole, so that gdbserver waits for no end of a packet when gdb is gone. They are valid until
// the next call. The session must end after an error.
func (t *Talk) FromGDB(p []byte) ([]byte, error) {
	t.whole = t.whole[:0]
	err := t.requests.take(p, func(piece []byte) error {
		if body, ok := packetBody(piece); ok {
			if err := t.request(body); err != nil {
				return err
			}
		}
		t.whole = append(t.whole, piece...)
		return nil
	})
	return t.whole, err
}

// request notes what gdb wants.
func (t *Talk) request(body []byte) error {
	t.asked++
	if thread, ok := bytes.CutPrefix(body, []byte("Hg")); ok {
		t.about(thread)
		return nil
	}
	if process, ok := bytes.CutPrefix(body, []byte("D;")); ok {
		t.breakpoints = slices.DeleteFunc(t.breakpoints, func(b breakpoint) bool { return b.process == string(process) })
		return nil
	}
	point, _, _ := bytes.Cut(body, []byte(";")) // conditions and commands follow
	if len(point) < 2 || bytes.Count(point, []byte(",")) != 2 {
		return nil
	}
	at := breakpoint{t.process, string(point[1:min(len(point), maxPoint)])}
	switch point[0] {
	case 'Z':
		if slices.Contains(t.breakpoints, at) {
			return nil
		}
		if len(point) > maxPoint || len(t.breakpoints) == maxBreakpoints {
			return ErrFormat
		}
		t.breakpoints = append(t.breakpoints, at)
	case 'z':
		t.breakpoints = slices.DeleteFunc(t.breakpoints, func(other breakpoint) bool { return other == at })
	}
	return nil
}

// about notes the process of a thread, pPROCESS.THREAD. Other names of threads leave it as it is:
// they name all or any.
func (t *Talk) about(thread []byte) {
	if process, ok := processOf(thread); ok {
		t.process = process
	}
}

func processOf(thread []byte) (process string, ok bool) {
	name, ok := bytes.CutPrefix(thread, []byte("p"))
	number, _, dot := bytes.Cut(name, []byte("."))
	if !ok || !dot || len(number) == 0 || string(number) == "0" || len(number) > maxNumber || len(bytes.Trim(number, "0123456789abcdef")) > 0 {
		return "", false
	}
	return string(number), true
}

// stopped notes a reply that says where the program has stopped: later requests are about that
// process, and a fork has the breakpoints of its parent.
func (t *Talk) stopped(reply []byte) error {
	var forked []byte
	for word := range bytes.SplitSeq(reply[min(len(reply), len("T05")):], []byte(";")) {
		name, value, _ := bytes.Cut(word, []byte(":"))
		switch string(name) {
		case "thread":
			t.about(value)
		case "fork", "vfork":
			forked = value
		}
	}
	child, ok := processOf(forked)
	if !ok {
		return nil
	}
	for _, b := range slices.Clone(t.breakpoints) {
		if b.process != t.process || slices.Contains(t.breakpoints, breakpoint{child, b.point}) {
			continue
		}
		if len(t.breakpoints) == maxBreakpoints {
			return ErrFormat
		}
		t.breakpoints = append(t.breakpoints, breakpoint{child, b.point})
	}
	return nil
}

// FromServer takes bytes on their way to gdb. The session must end after an error.
func (t *Talk) FromServer(p []byte) error {
	return t.replies.take(p, func(piece []byte) error {
		reply, ok := packetBody(piece)
		if !ok || len(reply) > 1 && reply[0] == 'O' && reply[1] != 'K' {
			return nil // a text for people, before the reply
		}
		t.asked = max(0, t.asked-1)
		if len(reply) > 0 && reply[0] == 'T' {
			return t.stopped(reply)
		}
		return nil
	})
}

// Waits reports whether gdbserver owes gdb a reply: the rank runs, or the reply is to come soon.
// While the rank runs, gdbserver takes nothing but an interrupt.
func (t *Talk) Waits() bool { return t.asked > 0 }

// Farewell returns what gdb has not said that is gone: the removal of its breakpoints. It may be
// sent unless gdbserver owes a reply. gdbserver detaches from the rank at the end of its input.
func (t *Talk) Farewell() []byte {
	words, process := []byte("+"), t.process
	say := func(text string) {
		words = AppendPacket(words, []byte(text))
		words = append(words, '+') // acknowledges the reply, where that is needed
	}
	for _, b := range t.breakpoints {
		if b.process != process && b.process != "" {
			say("Hgp" + b.process + ".0") // any of its threads
			process = b.process
		}
		say("z" + b.point)
	}
	return words
}

// AppendPacket appends the packet with a body, in which #, $, } and * must be escaped.
func AppendPacket(to, body []byte) []byte {
	var sum byte
	for _, c := range body {
		sum += c
	}
	return fmt.Appendf(to, "$%s#%02x", body, sum)
}

// packets finds the packets in one direction of a session: $BODY#CHECKSUM. A # in a body is
// escaped. Notifications begin with a %.
type packets struct {
	state packetState
	piece []byte // the begin of a packet
}

type packetState int

const (
	between packetState = iota
	inBody
	inChecksum
	inLastDigit
)

// take looks through bytes, and calls each with each packet or notification that ends in them, and
// with each byte between them.
func (s *packets) take(p []byte, each func(piece []byte) error) error {
	for _, c := range p {
		if len(s.piece) == maxPacket {
			return ErrFormat
		}
		s.piece = append(s.piece, c)
		switch {
		case s.state == between && (c == '$' || c == '%'):
			s.state = inBody
		case s.state == inBody && c == '#':
			s.state = inChecksum
		case s.state == inChecksum:
			s.state = inLastDigit
		case s.state != inBody:
			s.state = between
			if err := each(s.piece); err != nil {
				return err
			}
			s.piece = s.piece[:0]
		}
	}
	return nil
}

// packetBody returns the body of a packet. A notification and a byte between packets are none.
func packetBody(piece []byte) (body []byte, ok bool) {
	if piece[0] != '$' || len(piece) < len("$#00") {
		return nil, false
	}
	return piece[1 : len(piece)-len("#00")], true
}
