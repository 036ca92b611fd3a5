// Package uuid reads the identifiers by which the firmware of a machine knows it (RFC 4122).
//
// The first three fields of an identifier travel in either byte order: little-endian, as SMBIOS 2.6
// and UEFI have them, or big-endian, as older firmware and boot programs send them. Neither order
// says which one it is. So two identifiers are the same machine's if they are equal in any order.
package uuid

import (
	"bytes"
	"encoding/hex"
	"fmt"
	"strings"
)

// ID is an identifier, as its text has it. The zero value is none.
type ID [16]byte

// Parse reads the text of an identifier, such as 4c4c4544-0042-3510-8051-b4c04f4a4e32. One that
// many machines have, because their firmware has none, is an error.
func Parse(text string) (ID, error) {
	digits := strings.ReplaceAll(text, "-", "")
	b, err := hex.DecodeString(digits)
	if err != nil || len(b) != len(ID{}) || !strings.EqualFold(text, ID(b).String()) {
		return ID{}, fmt.Errorf("%.60q is not the UUID of a machine, such as 4c4c4544-0042-3510-8051-b4c04f4a4e32", text)
	}
	id := ID(b)
	if id.common() {
		return ID{}, fmt.Errorf("the UUID %v is of a machine whose firmware has none", id)
	}
	return id, nil
}

// FromOption reads the identifier in a DHCP option (RFC 4578, section 2.3), which is untrusted. It
// is the zero ID if there is none.
func FromOption(option []byte) ID {
	if len(option) != 1+len(ID{}) || option[0] != 0 {
		return ID{}
	}
	id := ID(option[1:]).swapped()
	if id.common() {
		return ID{}
	}
	return id
}

// Option returns the value of the DHCP option for an identifier.
func (id ID) Option() []byte {
	swapped := id.swapped()
	return append([]byte{0}, swapped[:]...)
}

// Key returns what all byte orders of an identifier have in common.
func (id ID) Key() ID {
	if swapped := id.swapped(); bytes.Compare(swapped[:], id[:]) < 0 {
		return swapped
	}
	return id
}

// String returns the text of the identifier.
func (id ID) String() string {
	h := hex.EncodeToString(id[:])
	return strings.Join([]string{h[:8], h[8:12], h[12:16], h[16:20], h[20:]}, "-")
}

// swapped returns the identifier with its first three fields in the other byte order.
func (id ID) swapped() ID {
	return ID{id[3], id[2], id[1], id[0], id[5], id[4], id[7], id[6], id[8], id[9], id[10], id[11], id[12], id[13], id[14], id[15]}
}

// example is the identifier of boards whose maker has left the one of the firmware's template.
var example = ID{0x03, 0x00, 0x02, 0x00, 0x04, 0x00, 0x05, 0x00, 0x00, 0x06, 0x00, 0x07, 0x00, 0x08, 0x00, 0x09}

// common reports whether many machines have the identifier: all its bytes are equal, which says
// that nothing was set, or it is an example.
func (id ID) common() bool {
	return id == ID(bytes.Repeat(id[:1], len(id))) || id.Key() == example.Key()
}
