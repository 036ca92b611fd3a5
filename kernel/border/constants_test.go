//go:build !guest

package border

import (
	"os"
	"regexp"
	"testing"

	"margay/internal/check"
	"margay/kernel/abi/mirror"
	"margay/kernel/abi/slot"
	"margay/kernel/abi/wire"
)

// The constants of skeleton.c are equal to the Go ones.
func TestConstants(t *testing.T) {
	source, err := os.ReadFile("skeleton.c")
	if err != nil {
		t.Fatal(err)
	}
	const header = 14 + 20 + 8
	want := map[string]int{
		"HEADER": header, "KEY": header + 8, "DATA": header + mirror.HeaderSize, "MOST_DATA": mirror.Most - mirror.HeaderSize, "RING": wire.ChannelRing,
		"RECORD": wire.ChannelHeader, "MOST_PAYLOAD": wire.ChannelPayload, "PIECE": wire.HandlerPiece, "PIECE_ARGS": wire.PieceArgs, "STOPPED": wire.HandlerStopped,
		"MOST_LONG": wire.MaxMessage, "RECORDS": records, "FAULTS": slot.FaultLimit,
	}
	defines, names := "", make(map[string]string)
	for _, define := range regexp.MustCompile(`(?m)^#define [A-Z_]+ .*$`).FindAllString(string(source), -1) {
		defines += define + "\n"
	}
	for name := range want {
		names[name] = name
	}
	got := check.CValues(t, defines, names)
	for name, value := range want {
		if got[name] != value {
			t.Errorf("%s is not %d in skeleton.c, but %d", name, value, got[name])
		}
	}
}
