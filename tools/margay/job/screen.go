package job

import (
	"bufio"
	"bytes"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"sync/atomic"

	"margay/internal/printable"
	"margay/kernel/abi/gdb"
)

// maxReply bounds a packet for gdb, in bytes. gdbserver sends less.
const maxReply = 256 << 10

// errOdd reports bytes that gdbserver does not send.
var errOdd = errors.New("the session has ended because the rank has sent bytes that gdbserver does not send")

// errFileRequest reports a request of GDB's File-I/O Remote Protocol Extension.
var errFileRequest = errors.New("the session has ended because the rank has asked gdb for a system call on this host")

// screen lets gdb have only what gdbserver says. The program that is debugged could have taken its
// place, and gdb trusts it: while the program runs, gdb obeys requests to open, write and remove
// files of its own host, and no setting of gdb turns that off. gdb also writes texts to the
// terminal as they come. A screen gives whole packets only, none with a request, and each in its
// plainest form, so that gdb cannot read one otherwise than the screen.
//
// Read is for one goroutine.
type screen struct {
	from  *bufio.Reader
	ready []byte // checked, and not yet read

	refused atomic.Pointer[error] // why it has ended the session
}

func newScreen(from io.Reader) *screen { return &screen{from: bufio.NewReaderSize(from, maxReply)} }

// Refused returns why the screen has ended the session, or nil. It is safe for concurrent use.
func (s *screen) Refused() error {
	if err := s.refused.Load(); err != nil {
		return *err
	}
	return nil
}

// Read implements io.Reader.
func (s *screen) Read(p []byte) (int, error) {
	if len(s.ready) == 0 {
		var err error
		if s.ready, err = s.next(); err != nil {
			if errors.Is(err, errOdd) || errors.Is(err, errFileRequest) {
				s.refused.Store(&err)
			}
			return 0, err
		}
	}
	n := copy(p, s.ready)
	s.ready = s.ready[n:]
	return n, nil
}

// next returns the next packet, or the next acknowledgement.
func (s *screen) next() ([]byte, error) {
	begin, err := s.from.ReadByte()
	switch {
	case err != nil:
		return nil, err
	case begin == '+' || begin == '-':
		return []byte{begin}, nil
	case begin != '$' && begin != '%':
		return nil, errOdd
	}
	body, err := s.from.ReadSlice('#')
	if errors.Is(err, bufio.ErrBufferFull) {
		return nil, errOdd
	} else if err != nil {
		return nil, err
	}
	plain, err := expand(body[:len(body)-1])
	if err != nil {
		return nil, err
	}
	if _, err := s.from.Discard(2); err != nil { // the checksum; gdb gets one of the plain form
		return nil, err
	}
	if begin == '$' {
		plain, err = checkReply(plain)
	}
	packet := gdb.AppendPacket(nil, plain)
	packet[0] = begin
	return packet, err
}

// expand returns a body without run-length encoding: C*N stands for C and N - 29 more of them.
func expand(body []byte) ([]byte, error) {
	plain := make([]byte, 0, len(body))
	for i := 0; i < len(body); i++ {
		switch {
		case body[i] == '$':
			return nil, errOdd // gdb begins a new packet there
		case body[i] != '*':
			plain = append(plain, body[i])
			continue
		}
		i++
		if len(plain) == 0 || i == len(body) || body[i] < ' ' || body[i] > '~' {
			return nil, errOdd
		}
		count := int(body[i]) - ' ' + 3
		if len(plain)+count > maxReply {
			return nil, errOdd
		}
		plain = append(plain, bytes.Repeat(plain[len(plain)-1:], count)...)
	}
	return plain, nil
}

// checkReply returns a reply with its text made printable.
func checkReply(reply []byte) ([]byte, error) {
	if len(reply) < 2 {
		if string(reply) == "F" {
			return nil, errFileRequest
		}
		return reply, nil
	}
	switch text := reply[1:]; {
	case reply[0] == 'F' && !isResult(text):
		return nil, errFileRequest
	case reply[0] == 'O' && string(reply) != "OK": // a text for the terminal
		said, err := hex.AppendDecode(nil, text)
		if err != nil {
			return nil, errOdd
		}
		return fmt.Appendf(nil, "O%x", printable.Lines(string(said))), nil
	case reply[0] == 'E' && text[0] == '.': // an error with a text
		return append([]byte("E"), printable.Line(string(text))...), nil
	}
	return reply, nil
}

// isResult reports whether what follows an F is the result of a request of gdb for a file of the
// node, a number in hexadecimal. Otherwise it is the name of a system call, and each of these names
// has another letter.
func isResult(text []byte) bool {
	if end := bytes.IndexAny(text, ",;"); end >= 0 {
		text = text[:end]
	}
	text = bytes.TrimPrefix(text, []byte("-"))
	return len(text) > 0 && len(bytes.Trim(text, "0123456789abcdef")) == 0
}
