package mirror

import (
	"maps"
	"testing"

	"margay/internal/check"
	"margay/kernel/abi/wire"
)

// same has the value of each name and expression of mirror.h.
var same = map[string]int{
	"MIRROR_MAGIC": magic, "MIRROR_VERSION": version, "MIRROR_ASK": flagAsk, "MIRROR_LEAST": Least, "MIRROR_MOST": Most,
	"MIRROR_ACK_DELAY": int(ackDelay), "MIRROR_ACK_EACH": ackEach, "MIRROR_FIRST_TIMEOUT": int(firstTimeout),
	"MIRROR_LEAST_TIMEOUT": int(leastTimeout), "MIRROR_MOST_TIMEOUT": int(mostTimeout), "MIRROR_FIRST_WINDOW": firstWindow,
	"MIRROR_MOST_WINDOW": mostWindow, "MIRROR_EQUAL_ACKS": equalAcks, "MIRROR_FEW": few, "MIRROR_GATHER": gather,

	"sizeof(struct mirror_header)": HeaderSize, "header.magic": 0, "header.version": 2, "header.flags": 3, "header.number": 4, "header.key": 8,
	"header.offset": 16, "header.arrived": 24, "header.taken": 32,
}

// The header declares the numbers of this package and the places in a datagram, and no others.
func TestHeaderAgrees(t *testing.T) {
	got := check.HeaderValues(t, "mirror.h", "mirror")
	if !maps.Equal(got, same) {
		t.Errorf("the header has %v, this package %v", got, same)
	}
}

// The fields of a header are where its documentation and mirror.h say.
func TestLayout(t *testing.T) {
	h := Header{Number: 0x04030201, Key: 5, Ask: true, Offset: 6, Arrived: 7, Taken: 8}
	want := "\x4d\x4d\x01\x01\x01\x02\x03\x04" + "\x05\x00\x00\x00\x00\x00\x00\x00" + "\x06\x00\x00\x00\x00\x00\x00\x00" +
		"\x07\x00\x00\x00\x00\x00\x00\x00" + "\x08\x00\x00\x00\x00\x00\x00\x00"
	if got := string(h.append(nil)); got != want {
		t.Errorf("%x, want %x", got, want)
	}
	if Least%8 != 0 || wire.ChannelHeader+wire.MaxPayload > Least-HeaderSize {
		t.Errorf("a datagram of %d bytes may be too small for a record", Least)
	}
}
