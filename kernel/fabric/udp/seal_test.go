package udp

import (
	"bytes"
	"testing"

	"margay/kernel/abi/datagram"
)

// sample makes a datagram with a number.
func sample(number uint64) []byte {
	d := datagram.Datagram{Source: 1, Target: 2, Connection: 3, Number: number}
	b := make([]byte, datagram.HeaderSize, 4096)
	d.Put(b, 1)
	return datagram.AppendUnit(b, &datagram.Unit{First: true, Last: true, Message: 6, Payload: []byte("secret")})
}

func sealed(t *testing.T, k *keys, number uint64) []byte {
	t.Helper()
	b, err := k.seal(append(make([]byte, 10, 4096), sample(number)...), 10)
	if err != nil {
		t.Fatal(err)
	}
	return b[10:]
}

func TestSeal(t *testing.T) {
	secret := newIdentity().key
	sender, receiver := newKeys(secret), newKeys(secret)
	const epoch = 1 << epochBits
	// Epochs change, and datagrams of the last one still arrive.
	for _, number := range []uint64{1, 2, epoch - 1, epoch, epoch - 2, epoch + 1, 2*epoch - 1, 2 * epoch, 2*epoch - 2} {
		k := sender
		if number>>epochBits < k.epoch {
			k = newKeys(secret) // it was sent earlier
			k.use(number >> epochBits)
		}
		b := sealed(t, k, number)
		if bytes.Contains(b, []byte("secret")) || len(b) != len(sample(number))+datagram.Overhead {
			t.Fatalf("datagram %d: %q", number, b)
		}
		clear, err := receiver.open(b)
		if err != nil {
			t.Fatalf("datagram %d: %v", number, err)
		}
		want := sample(number)
		datagram.MarkSealed(want)
		if !bytes.Equal(clear, want) {
			t.Fatalf("datagram %d became %x", number, clear)
		}
	}
	if len(receiver.aeads) > 3 || len(sender.aeads) > 3 {
		t.Errorf("%d and %d keys are kept", len(receiver.aeads), len(sender.aeads))
	}
}

// A changed bit anywhere, another key, a datagram that is not sealed or far ahead do not
// authenticate, and cost no key.
func TestSealRefuses(t *testing.T) {
	secret := newIdentity().key
	sender, receiver := newKeys(secret), newKeys(secret)
	whole := sealed(t, sender, 7)
	for i := range len(whole) * 8 {
		b := bytes.Clone(whole)
		b[i/8] ^= 1 << (i % 8)
		if _, err := receiver.open(b); err == nil {
			t.Fatalf("bit %d was changed, and the datagram is accepted", i)
		}
	}
	if _, err := newKeys(newIdentity().key).open(bytes.Clone(whole)); err == nil {
		t.Error("a datagram with another key is accepted")
	}
	if _, err := receiver.open(sample(8)); err == nil {
		t.Error("a datagram that is not sealed is accepted")
	}
	if _, err := receiver.open(whole[:datagram.HeaderSize]); err == nil {
		t.Error("a truncated datagram is accepted")
	}
	if len(receiver.aeads) > 2 {
		t.Errorf("forged numbers have derived %d keys", len(receiver.aeads))
	}
}
