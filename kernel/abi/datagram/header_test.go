package datagram

import (
	"testing"

	"margay/internal/check"
)

// same has the value of each name and expression of datagram.h.
var same = map[string]int{
	"DATAGRAM_VERSION": Version, "DATAGRAM_FRAMES": KindFrames, "DATAGRAM_CLEAR_SIZE": ClearSize, "DATAGRAM_BITMAP_SIZE": BitmapSize,
	"DATAGRAM_FRAGMENT": Fragment, "DATAGRAM_MAX_MESSAGE": MaxMessage, "DATAGRAM_OVERHEAD": Overhead, "DATAGRAM_MAX_SIZE": MaxSize,
	"DATAGRAM_WINDOW": Window, "DATAGRAM_USER": int(User), "DATAGRAM_SYSTEM": int(System), "DATAGRAM_CLASSES": Classes,
	"DATAGRAM_SEALED": FlagSealed, "DATAGRAM_ASK": FlagAsk, "DATAGRAM_END": FlagEnd, "DATAGRAM_USER_BITMAP": FlagUserBitmap,
	"DATAGRAM_SYSTEM_BITMAP": FlagSystemBitmap, "DATAGRAM_FIRST": UnitFirst, "DATAGRAM_LAST": UnitLast,

	"sizeof(struct datagram_header)": HeaderSize, "header.version": offVersion, "header.kind": offKind, "header.flags": offFlags,
	"header.source": offSource, "header.target": offTarget, "header.connection": offConnection, "header.number": offNumber,
	"header.echo": offEcho, "header.delay": offDelay, "header.units": offUnits, "header.zero": offZero, "header.next": offNext,
	"header.credit": offCredit,

	"sizeof(struct datagram_unit)": UnitHeader, "unit.number": offUnitNumber, "unit.message": offUnitMessage, "unit.size": offUnitSize,
	"unit.class": offUnitClass, "unit.flags": offUnitFlags, "unit.job": offUnitJob, "unit.rank": offUnitRank,
	"unit.target": offUnitTarget, "unit.handler": offUnitHandler, "unit.zero": offUnitZero,
}

// The header declares the numbers, sizes and offsets of this package, and no others.
func TestHeaderAgrees(t *testing.T) {
	got := check.HeaderValues(t, "datagram.h", "datagram")
	for name, value := range same {
		if there, ok := got[name]; !ok || there != value {
			t.Errorf("%s is %d here and %d (%v) in datagram.h", name, value, there, ok)
		}
		delete(got, name)
	}
	for name := range got {
		t.Errorf("this package has nothing for %s", name)
	}
}
