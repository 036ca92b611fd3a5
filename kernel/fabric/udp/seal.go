package udp

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/hkdf"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"

	"margay/kernel/abi/datagram"
)

// keySize is the size of the secret from which the keys of a direction are derived, in bytes.
const keySize = 32

// epochBits is how many numbers of datagrams share a key, as a power of two. With at most 2^12
// blocks in a datagram that keeps AES-GCM below 2^36 blocks for each key, far from its limit of
// confidentiality (RFC 9001, B.1).
const epochBits = 24

// keys seals or opens the datagrams of one direction of a connection. The nonce is the number of
// the datagram, which the direction never uses again. Each epoch of numbers has a key of its own,
// derived from the secret, so no message is needed to change it. It is not safe for concurrent use.
type keys struct {
	secret [keySize]byte
	epoch  uint64 // the largest in use
	aeads  map[uint64]cipher.AEAD
	nonce  [12]byte
}

func newKeys(secret [keySize]byte) *keys {
	return &keys{secret: secret, aeads: make(map[uint64]cipher.AEAD)}
}

var errSeal = errors.New("datagram is not authentic")

// at returns the cipher of an epoch: the current one or a neighbour, so that a forged number costs
// one derivation at most.
func (k *keys) at(epoch uint64) (cipher.AEAD, error) {
	if epoch > k.epoch+1 || epoch+1 < k.epoch {
		return nil, errSeal
	}
	if a := k.aeads[epoch]; a != nil {
		return a, nil
	}
	key, err := hkdf.Expand(sha256.New, k.secret[:], fmt.Sprintf("margay datagram epoch %d", epoch), 16)
	if err != nil {
		return nil, err
	}
	block, err := aes.NewCipher(key)
	if err != nil {
		return nil, err
	}
	a, err := cipher.NewGCM(block)
	if err == nil {
		k.aeads[epoch] = a
	}
	return a, err
}

// use notes that an epoch has begun, and forgets those before the last one.
func (k *keys) use(epoch uint64) {
	for ; k.epoch < epoch; k.epoch++ {
		if k.epoch > 0 {
			delete(k.aeads, k.epoch-1)
		}
	}
}

func (k *keys) set(number uint64) []byte {
	binary.LittleEndian.PutUint64(k.nonce[4:], number)
	return k.nonce[:]
}

// seal encrypts the datagram that begins at start of b, and appends the overhead.
func (k *keys) seal(b []byte, start int) ([]byte, error) {
	d := b[start:]
	number := datagram.Number(d)
	a, err := k.at(number >> epochBits)
	if err != nil {
		return nil, err
	}
	k.use(number >> epochBits)
	datagram.MarkSealed(d)
	return a.Seal(b[:start+datagram.ClearSize], k.set(number), d[datagram.ClearSize:], d[:datagram.ClearSize]), nil
}

// open decrypts a datagram in place and returns it without the overhead.
func (k *keys) open(d []byte) ([]byte, error) {
	if !datagram.Sealed(d) {
		return nil, errSeal
	}
	number := datagram.Number(d)
	a, err := k.at(number >> epochBits)
	if err != nil {
		return nil, err
	}
	clear, err := a.Open(d[:datagram.ClearSize], k.set(number), d[datagram.ClearSize:], d[:datagram.ClearSize])
	if err != nil {
		return nil, errSeal
	}
	k.use(number >> epochBits)
	return clear, nil
}
