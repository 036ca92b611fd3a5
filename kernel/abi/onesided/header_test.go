package onesided

import (
	"maps"
	"testing"

	"margay/internal/check"
	"margay/kernel/abi/wire"
)

// same has the value of each name and expression of onesided.h.
var same = map[string]int{
	"ONESIDED_MAGIC": magic, "ONESIDED_VERSION": version, "ONESIDED_GAP": flagGap, "ONESIDED_MOST": Most, "ONESIDED_OUTSTANDING": Outstanding,
	"ONESIDED_FIRST_TIMEOUT": int(firstTimeout), "ONESIDED_LEAST_TIMEOUT": int(leastTimeout), "ONESIDED_MOST_TIMEOUT": int(mostTimeout),
	"ONESIDED_MOST_TRAIN": mostTrain, "ONESIDED_PATIENCE": int(patience), "ONESIDED_LEAST_PAUSE": int(leastPause),
	"ONESIDED_MOST_PAUSE": int(mostPause), "ONESIDED_BY_RANK": int(ByRank),

	"sizeof(struct onesided_request)": RequestSize, "request.magic": 0, "request.version": 2, "request.kind": 3, "request.source": 4,
	"request.target": 8, "request.window": 12, "request.zero": 13, "request.length": 14, "request.key": 16, "request.number": 24,
	"request.offset": 32,

	"sizeof(struct onesided_answer)": AnswerSize, "answer.magic": 0, "answer.version": 2, "answer.kind": 3, "answer.source": 4,
	"answer.target": 8, "answer.flags": 12, "answer.zero": 13, "answer.length": 14, "answer.key": 16, "answer.number": 24,
	"answer.done": 32, "answer.no_window": 40, "answer.outside": 48,

	"sizeof(struct onesided_journal)": JournalSize, "journal.server": 8 * wordServer, "journal.done": 8 * wordDone,
	"journal.intent": 8 * wordIntent, "journal.no_window": 8 * wordNoWindow, "journal.outside": 8 * wordOutside,
	"journal.results": 8 * firstResult,
}

// The header declares the numbers of this package and the places in datagrams, and no others.
func TestHeaderAgrees(t *testing.T) {
	got := check.HeaderValues(t, "onesided.h", "onesided")
	if !maps.Equal(got, same) {
		t.Errorf("the header has %v, this package %v", got, same)
	}
}

// The fields of the datagrams are where the documentation and onesided.h say.
func TestLayout(t *testing.T) {
	q := Request{Pair: Pair{0x04030201, 5}, Kind: wire.RemoteSwap, Window: 6, Length: 16, Key: 7, Number: 8, Offset: 9}
	want := "\x57\x4d\x01\x04\x01\x02\x03\x04" + "\x05\x00\x00\x00\x06\x00\x10\x00" + "\x07\x00\x00\x00\x00\x00\x00\x00" +
		"\x08\x00\x00\x00\x00\x00\x00\x00" + "\x09\x00\x00\x00\x00\x00\x00\x00"
	if got := string(q.Append(nil)); got != want {
		t.Errorf("request %x, want %x", got, want)
	}
	a := Answer{Pair: Pair{1, 2}, Gap: true, Key: 3, Number: 4, Done: 5, NoWindow: 6, Outside: 7}
	want = "\x57\x4d\x01\x05\x01\x00\x00\x00" + "\x02\x00\x00\x00\x01\x00\x01\x00" + "\x03\x00\x00\x00\x00\x00\x00\x00" + "\x04\x00\x00\x00\x00\x00\x00\x00" +
		"\x05\x00\x00\x00\x00\x00\x00\x00" + "\x06\x00\x00\x00\x00\x00\x00\x00" + "\x07\x00\x00\x00\x00\x00\x00\x00x"
	if got := string(a.Append(nil, []byte("x"))); got != want {
		t.Errorf("answer %x, want %x", got, want)
	}
}
