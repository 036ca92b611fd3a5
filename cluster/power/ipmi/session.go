package ipmi

import (
	"context"
	"crypto/hmac"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"time"
)

// The pauses after which a packet without an answer is sent again.
const (
	firstPause = time.Second
	lastPause  = 5 * time.Second
)

// maxPacket bounds a packet, in bytes. An answer has fewer than 200.
const maxPacket = 1024

// session is an exchange with a controller, first without keys, then with them.
type session struct {
	conn     net.Conn
	own      uint32 // the console's name of the session
	remote   uint32 // the controller's
	keys     keys
	sequence uint32 // of the last packet that was sent
	number   byte   // of the last request
	tag      byte   // of the last packet of its beginning
}

// exchange sends what next returns, again after pauses, until take accepts a packet or ctx ends. An
// errPacket of take means that the packet is ignored.
func (s *session) exchange(ctx context.Context, next func() []byte, take func([]byte) error) error {
	buffer := make([]byte, maxPacket)
	for pause := firstPause; ; pause = min(2*pause, lastPause) {
		if _, err := s.conn.Write(next()); err != nil && ctx.Err() == nil {
			return err // on loopback, that no controller listens
		}
		until := time.Now().Add(pause)
		for {
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			_ = s.conn.SetReadDeadline(until)
			n, err := s.conn.Read(buffer)
			if timeout := net.Error(nil); errors.As(err, &timeout) && timeout.Timeout() && ctx.Err() == nil {
				break
			}
			if err != nil && ctx.Err() == nil {
				return err
			}
			if err == nil {
				if err := take(buffer[:n]); !errors.Is(err, errPacket) {
					return err
				}
			}
		}
	}
}

// greet sends a packet of the beginning of a session and returns the payload of the answer, which
// has least bytes or more. The first byte of both is a tag, which greet sets. The second byte of
// the answer is a status; if that is not 0, nothing needs to follow.
func (s *session) greet(ctx context.Context, ask, answer payloadType, payload []byte, least int) (got []byte, err error) {
	s.tag++
	payload[0] = s.tag
	err = s.exchange(ctx, func() []byte { return plain(ask, payload) }, func(p []byte) error {
		t, to, body, _, err := cut(p)
		if err != nil || t != answer || to != 0 || len(body) < 2 || body[0] != s.tag {
			return errPacket
		}
		if body[1] != 0 {
			return status(body[1])
		}
		if len(body) < least || binary.LittleEndian.Uint32(body[4:]) != s.own {
			return errPacket
		}
		got = append([]byte{}, body...)
		return nil
	})
	return got, err
}

// begin opens a session (sections 13.17 to 13.24, 13.31): the two sides prove to each other that
// they know the password, and derive keys from it.
func (s *session) begin(ctx context.Context, u suite, user, password string) error {
	var name [4]byte
	rand.Read(name[:])
	name[0] |= 1 // 0 means none
	s.own = binary.LittleEndian.Uint32(name[:])
	open := append([]byte{0, operator, 0, 0}, name[:]...)
	for i, algorithm := range []byte{u.authentication, u.integrity, aesCBC128} {
		open = append(open, byte(i), 0, 0, 8, algorithm, 0, 0, 0)
	}
	opened, err := s.greet(ctx, typeOpenRequest, typeOpenResponse, open, 36)
	if err != nil {
		return err
	}
	for i, at := range []int{16, 24, 32} {
		if opened[at] != []byte{u.authentication, u.integrity, aesCBC128}[i] {
			return errors.New("it chooses other ciphers than it was offered")
		}
	}
	p := proof{suite: u, key: []byte(password), own: name[:], remote: opened[8:12], random: make([]byte, 16)}
	rand.Read(p.random)
	p.role = append([]byte{operator | nameOnly, byte(len(user))}, user...)
	s.remote = binary.LittleEndian.Uint32(p.remote)

	rakp1 := append(append([]byte{0, 0, 0, 0}, p.remote...), p.random...)
	rakp1 = append(append(rakp1, p.role[0], 0, 0), p.role[1:]...)
	size := u.hash().Size()
	rakp2, err := s.greet(ctx, typeRAKP1, typeRAKP2, rakp1, 40+size)
	if err != nil {
		return err
	}
	p.theirs, p.guid = rakp2[8:24], rakp2[24:40]
	if !hmac.Equal(rakp2[40:40+size], p.controller()) {
		return errPassword
	}
	rakp3 := append(append([]byte{0, 0, 0, 0}, p.remote...), p.console()...)
	rakp4, err := s.greet(ctx, typeRAKP3, typeRAKP4, rakp3, 8+u.code)
	if err != nil {
		return err
	}
	sik := p.session()
	if !hmac.Equal(rakp4[8:8+u.code], p.last(sik)) {
		return errPassword
	}
	s.keys = newKeys(u, sik)
	_, err = s.ask(ctx, functionApp, commandSetPrivilege, operator)
	return err
}

// ask sends a request over the session and returns the data of the answer. A session has fewer than
// 64 requests, so the answer to an earlier one has another number.
func (s *session) ask(ctx context.Context, function, command byte, data ...byte) (got []byte, err error) {
	s.number++
	r := request{function: function, command: command, number: s.number, data: data}
	err = s.exchange(ctx, func() []byte {
		s.sequence++
		return s.keys.seal(s.remote, s.sequence, r.encode())
	}, func(p []byte) error {
		m, err := s.keys.open(p, s.own)
		if err != nil {
			return err
		}
		got, err = r.answer(m)
		return err
	})
	return got, err
}

// errPassword reports a side that does not know the password, which may be either.
var errPassword = errors.New("the password is wrong, or something else answers for it")

// status is a status of the beginning of a session other than 0 (section 13.24).
type status byte

func (s status) Error() string {
	switch s {
	case 0x01, 0x0b:
		return "it has no room for a session: it is busy, or others hold all of them"
	case 0x09, 0x0a:
		return "it refuses the user the privilege level Operator"
	case 0x0d, 0x0e:
		return "it does not know the user"
	case 0x0f:
		return errPassword.Error()
	}
	return fmt.Sprintf("it refuses the session with status %#02x", byte(s))
}

// otherSuite reports whether the controller lacks the algorithms that it was offered.
func (s status) otherSuite() bool {
	switch s {
	case 0x04, 0x05, 0x06, 0x07, 0x10, 0x11, 0x12:
		return true
	}
	return false
}
