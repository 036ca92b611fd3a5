package wake

import (
	"bytes"
	"errors"
	"net"
	"net/netip"
	"testing"
	"time"

	"margay/cluster/power"
	"margay/cluster/power/powertest"
)

// The card gets its address sixteen times, and can do nothing but wake.
func TestWake(t *testing.T) {
	conn, err := net.ListenPacket("udp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	card := Card{Address: net.HardwareAddr{1, 2, 3, 4, 5, 6}, Broadcast: netip.MustParseAddrPort(conn.LocalAddr().String())}
	if state, err := power.Carry(t.Context(), card, power.SwitchOn); err != nil || state != power.Unknown {
		t.Errorf("on: %v, %v", state, err)
	}
	buffer := make([]byte, 200)
	_ = conn.SetReadDeadline(time.Now().Add(powertest.Patience))
	n, _, err := conn.ReadFrom(buffer)
	if err != nil || n != 102 || !bytes.Equal(buffer[:6], bytes.Repeat([]byte{255}, 6)) || !bytes.Equal(buffer[6:n], bytes.Repeat(card.Address, 16)) {
		t.Errorf("it gets %x, %v", buffer[:n], err)
	}
	for _, a := range []power.Action{power.SwitchOff, power.Reset, power.Look} {
		if _, err := power.Carry(t.Context(), card, a); !errors.Is(err, power.ErrUnsupported) {
			t.Errorf("%s: %v", a, err)
		}
	}
}
