package trust

import (
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"hash/crc32"
	"io"
	"strings"
)

// UserToken is the proof of a user of another host to the serve of a machine. It names the machine
// by its fingerprint, so the user's side recognises an impostor before it shows the secret. serve
// keeps only a hash of the secret.
type UserToken struct {
	Machine Fingerprint
	Number  uint32 // of the token on this machine
	Secret  Secret
}

// Secret is the secret of a token. It is random, so its hash need not be slow.
type Secret [32]byte

// NewSecret makes a secret.
func NewSecret() (s Secret) {
	_, _ = rand.Read(s[:]) // it never fails
	return s
}

// Hash returns the hash by which serve recognises the secret.
func (s Secret) Hash() []byte {
	hash := sha256.Sum256(s[:])
	return hash[:]
}

// Is reports whether the secret has a hash, in constant time.
func (s Secret) Is(hash []byte) bool { return subtle.ConstantTimeCompare(s.Hash(), hash) == 1 }

// The text of a token is this prefix, by which programs that look for secrets recognise it, and, in
// base64, the fingerprint, the number (big-endian), the secret and a check sum (CRC-32 of IEEE) of
// these, for copies that lack a part.
const (
	tokenPrefix = "margay_"
	tokenSize   = sha256.Size + openingSize + crc32.Size
)

var tokenText = base64.RawURLEncoding.Strict()

// LongestToken is the length of the text of a token, in bytes.
var LongestToken = len(tokenPrefix) + tokenText.EncodedLen(tokenSize)

// String returns the text of the token.
func (t UserToken) String() string {
	b := append(t.Machine[:], t.Opening()...)
	b = binary.BigEndian.AppendUint32(b, crc32.ChecksumIEEE(b))
	return tokenPrefix + tokenText.EncodeToString(b)
}

// ErrNoToken reports a text that is not a token. It does not quote the text, which may be a part of
// one.
var ErrNoToken = errors.New("that is not a token: it begins with " + tokenPrefix + " and is one line of margay machine token create")

// ParseToken is the inverse of UserToken.String. No other text is a token.
func ParseToken(text string) (t UserToken, err error) {
	text, is := strings.CutPrefix(text, tokenPrefix)
	if !is || len(text) != tokenText.EncodedLen(tokenSize) || strings.ContainsAny(text, "\r\n") { // which the decoder skips
		return t, ErrNoToken
	}
	b, err := tokenText.DecodeString(text)
	if err != nil {
		return t, ErrNoToken
	}
	body, sum := b[:tokenSize-crc32.Size], b[tokenSize-crc32.Size:]
	if binary.BigEndian.Uint32(sum) != crc32.ChecksumIEEE(body) {
		return t, ErrNoToken
	}
	copy(t.Machine[:], body)
	t.Number, t.Secret = parseOpening([openingSize]byte(body[sha256.Size:]))
	return t, nil
}

// MayBeToken reports whether a text may be a token, whole or not.
func MayBeToken(text string) bool { return strings.HasPrefix(strings.TrimSpace(text), tokenPrefix) }

// openingSize is the length of the opening of a user's connection, in bytes: the number and the
// secret of the token. It has this length whatever it says, so before it is read nothing that a
// stranger sends is parsed, save by TLS.
const openingSize = 4 + len(Secret{})

// Opening returns what the user's side of a connection sends first.
func (t UserToken) Opening() []byte {
	return append(binary.BigEndian.AppendUint32(nil, t.Number), t.Secret[:]...)
}

// ReadOpening reads the opening of a user's connection, and not more.
func ReadOpening(r io.Reader) (number uint32, s Secret, err error) {
	var b [openingSize]byte
	if _, err := io.ReadFull(r, b[:]); err != nil {
		return 0, s, err
	}
	number, s = parseOpening(b)
	return number, s, nil
}

func parseOpening(b [openingSize]byte) (number uint32, s Secret) {
	return binary.BigEndian.Uint32(b[:4]), Secret(b[4:])
}
