package ipmi

import (
	"bytes"
	"crypto/aes"
	"crypto/cipher"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha1"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"hash"
)

// payloadType is the type of the payload of a packet (section 13.27.3).
type payloadType byte

const (
	typeMessage      payloadType = 0x00
	typeOpenRequest  payloadType = 0x10
	typeOpenResponse payloadType = 0x11
	typeRAKP1        payloadType = 0x12
	typeRAKP2        payloadType = 0x13
	typeRAKP3        payloadType = 0x14
	typeRAKP4        payloadType = 0x15

	encrypted     payloadType = 0x80
	authenticated payloadType = 0x40
)

// suite is a cipher suite (section 22.15.2): the numbers of its algorithms, its hash, and how many
// bytes of a code of integrity are sent. All encrypt with AES-CBC-128.
type suite struct {
	authentication, integrity byte
	hash                      func() hash.Hash
	code                      int
}

const aesCBC128 = 1

// suites are the cipher suites 17 and 3, the strongest first.
var suites = []suite{
	{authentication: 3, integrity: 4, hash: sha256.New, code: 16},
	{authentication: 1, integrity: 1, hash: sha1.New, code: 12},
}

// mac returns the keyed hash of the parts.
func (s suite) mac(key []byte, parts ...[]byte) []byte {
	h := hmac.New(s.hash, key)
	for _, p := range parts {
		h.Write(p)
	}
	return h.Sum(nil)
}

// proof is what the two sides prove the knowledge of the password with (section 13.31).
type proof struct {
	suite          suite
	key            []byte // the password
	own, remote    []byte // the names of the session, of the console and of the controller
	random, theirs []byte // random numbers of the two
	guid           []byte // of the controller
	role           []byte // privilege level, length of the name of the user, and name
}

// controller returns the proof of the controller, in RAKP message 2.
func (p proof) controller() []byte {
	return p.suite.mac(p.key, p.own, p.remote, p.random, p.theirs, p.guid, p.role)
}

// console returns the proof of the console, in RAKP message 3.
func (p proof) console() []byte { return p.suite.mac(p.key, p.theirs, p.own, p.role) }

// session returns the integrity key of the session.
func (p proof) session() []byte { return p.suite.mac(p.key, p.random, p.theirs, p.role) }

// last returns the proof that the controller has the integrity key, in RAKP message 4.
func (p proof) last(sik []byte) []byte {
	return p.suite.mac(sik, p.random, p.remote, p.guid)[:p.suite.code]
}

// keys protect the packets of a session.
type keys struct {
	suite  suite
	sign   []byte
	cipher cipher.Block
}

// newKeys derives the keys of a session from its integrity key (section 13.32).
func newKeys(s suite, sik []byte) keys {
	block, err := aes.NewCipher(s.mac(sik, bytes.Repeat([]byte{2}, 20))[:16])
	if err != nil {
		panic(err) // the length is right
	}
	return keys{suite: s, sign: s.mac(sik, bytes.Repeat([]byte{1}, 20)), cipher: block}
}

// rmcp begins each packet: RMCP version 1.0, no acknowledgement, class IPMI.
var rmcp = []byte{6, 0, 0xff, 7}

const (
	formatPlus   = 6  // authentication type of IPMI 2.0
	headerLength = 16 // including RMCP's
	nextHeader   = 7
)

// errPacket reports a packet that is not one of the session's. It is ignored, because anything can
// send one.
var errPacket = errors.New("not a packet of this session")

func appendHeader(p []byte, t payloadType, session, sequence uint32, length int) []byte {
	p = append(append(p, rmcp...), formatPlus, byte(t))
	p = binary.LittleEndian.AppendUint32(p, session)
	p = binary.LittleEndian.AppendUint32(p, sequence)
	return binary.LittleEndian.AppendUint16(p, uint16(length))
}

// plain returns a packet outside a session.
func plain(t payloadType, payload []byte) []byte {
	return append(appendHeader(nil, t, 0, 0, len(payload)), payload...)
}

// cut returns the type, the session and the payload of a packet, and the bytes behind it.
func cut(p []byte) (t payloadType, session uint32, payload, rest []byte, err error) {
	if len(p) < headerLength || !bytes.Equal(p[:len(rmcp)], rmcp) || p[4] != formatPlus {
		return 0, 0, nil, nil, errPacket
	}
	length := int(binary.LittleEndian.Uint16(p[14:]))
	if length > len(p)-headerLength {
		return 0, 0, nil, nil, errPacket
	}
	rest = p[headerLength:]
	return payloadType(p[5]), binary.LittleEndian.Uint32(p[6:]), rest[:length], rest[length:], nil
}

// seal returns a packet of a session: encrypted, then signed.
func (k keys) seal(session, sequence uint32, message []byte) []byte {
	text := append([]byte{}, message...)
	for pad := byte(1); (len(text)+1)%aes.BlockSize != 0; pad++ {
		text = append(text, pad)
	}
	text = append(text, byte(len(text)-len(message)))
	iv := make([]byte, aes.BlockSize)
	rand.Read(iv)
	cipher.NewCBCEncrypter(k.cipher, iv).CryptBlocks(text, text)
	p := appendHeader(nil, typeMessage|encrypted|authenticated, session, sequence, len(iv)+len(text))
	p = append(append(p, iv...), text...)
	pads := byte(0)
	for ; (len(p)-len(rmcp)+2)%4 != 0; pads++ {
		p = append(p, 0xff)
	}
	p = append(p, pads, nextHeader)
	return append(p, k.suite.mac(k.sign, p[len(rmcp):])[:k.suite.code]...)
}

// open returns the message in a packet that seal has made.
func (k keys) open(p []byte, session uint32) (message []byte, err error) {
	t, to, payload, rest, err := cut(p)
	if err != nil || t != typeMessage|encrypted|authenticated || to != session || len(rest) < k.suite.code {
		return nil, errPacket
	}
	signed := len(p) - k.suite.code
	if !hmac.Equal(p[signed:], k.suite.mac(k.sign, p[len(rmcp):signed])[:k.suite.code]) {
		return nil, errPacket
	}
	if len(payload) < 2*aes.BlockSize || len(payload)%aes.BlockSize != 0 {
		return nil, errPacket
	}
	text := append([]byte{}, payload[aes.BlockSize:]...)
	cipher.NewCBCDecrypter(k.cipher, payload[:aes.BlockSize]).CryptBlocks(text, text)
	pads := int(text[len(text)-1]) + 1
	if pads > len(text) || pads > aes.BlockSize {
		return nil, errPacket
	}
	return text[:len(text)-pads], nil
}

// The addresses of the two sides in a message (section 5.5).
const (
	addressBMC     = 0x20
	addressConsole = 0x81
)

// request is a command with its network function. number, 0 to 63, identifies the
// answer.
type request struct {
	function, command, number byte
	data                      []byte
}

func (r request) encode() []byte {
	m := []byte{addressBMC, r.function << 2}
	m = append(m, checksum(m))
	body := append([]byte{addressConsole, r.number << 2, r.command}, r.data...)
	return append(append(m, body...), checksum(body))
}

// answer returns the data in an answer to r. Its addresses do not matter: controllers differ in
// them.
func (r request) answer(m []byte) ([]byte, error) {
	if len(m) < 8 || checksum(m[:len(m)-1][3:]) != m[len(m)-1] || checksum(m[:2]) != m[2] {
		return nil, errPacket
	}
	if m[1]>>2 != r.function|1 || m[4]>>2 != r.number || m[5] != r.command {
		return nil, errPacket
	}
	if code := m[6]; code != 0 {
		return nil, codeError(code)
	}
	return m[7 : len(m)-1], nil
}

func checksum(b []byte) (sum byte) {
	for _, x := range b {
		sum -= x
	}
	return sum
}

// codeError is a completion code other than 0 (section 5.2).
type codeError byte

func (c codeError) Error() string {
	switch c {
	case 0xc0:
		return "it is busy"
	case 0xc1, 0xd6:
		return "it does not have the command"
	case 0xd4:
		return "the user may not do this: it needs the privilege level Operator"
	case 0xd5:
		return "it cannot do this in its present state"
	}
	return fmt.Sprintf("completion code %#02x", byte(c))
}
