package collective

import (
	"cmp"
	"encoding/binary"
	"slices"

	"margay/kernel/abi/wire"
)

// Wish is what a rank wants of a new group. The ranks of a group send each other theirs.
type Wish struct {
	Colour int32  // of the group that it joins; negative: of none
	Key    int32  // its order in that; of ranks with one key, their order before
	Drawn  uint16 // the number that it has drawn for the new group
}

// WishSize is the number of bytes of a wish.
const WishSize = 12

// Encode returns a wish as the ranks of C programs know it, little-endian: 0 u32 colour, 4 u32 key,
// 8 u32 number.
func (w Wish) Encode() []byte {
	b := binary.LittleEndian.AppendUint32(nil, uint32(w.Colour))
	b = binary.LittleEndian.AppendUint32(b, uint32(w.Key))
	return binary.LittleEndian.AppendUint32(b, uint32(w.Drawn))
}

func decodeWish(b []byte) Wish {
	return Wish{int32(binary.LittleEndian.Uint32(b)), int32(binary.LittleEndian.Uint32(b[4:])), uint16(binary.LittleEndian.Uint32(b[8:]))}
}

// Split returns the new group's number, and the places in this group of its ranks in their order,
// none if this rank joins none. wishes has the wishes of all ranks of this group.
func (g *Group) Split(wishes []byte) (id wire.GroupID, places []int) {
	wish := func(place int) Wish { return decodeWish(wishes[place*WishSize:]) }
	colour := wish(g.own).Colour
	if colour < 0 {
		return 0, nil
	}
	for place := range g.Size() {
		if wish(place).Colour == colour {
			places = append(places, place)
		}
	}
	slices.SortStableFunc(places, func(a, b int) int { return cmp.Compare(wish(a).Key, wish(b).Key) })
	return wire.NewGroupID(uint32(g.Rank(places[0])), wish(places[0]).Drawn), places
}
