package echo_test

import (
	"encoding/binary"
	"testing"

	"golang.org/x/sys/unix"

	"margay/ext/message/echo"
	"margay/ext/message/messagetest"
	"margay/kernel/abi/slot"
	"margay/nimble"
	"margay/nimble/engine/portable"
)

func TestEcho(t *testing.T) {
	j := messagetest.NewJob(t, portable.New(), echo.Object, nimble.Options{
		Variables: map[string]any{echo.Handler: uint32(5), echo.Answer: uint32(7), echo.Copies: uint32(slot.MaxSends + 2)},
	}, 1, 0, 1)
	j.Send(0, 1, 5, [2]uint64{1, 2}, []byte("hello"))
	j.Run()
	got := j.Took(0)
	if len(got) != slot.MaxSends || len(j.Delivered) != 0 {
		t.Fatalf("%d answers, and %+v", len(got), j.Delivered)
	}
	for _, m := range got {
		if m.Source != 1 || m.Handler != 7 || m.Args != [2]uint64{1, 2} || string(m.Payload) != "hello" || !m.Extension {
			t.Fatalf("%+v", m)
		}
	}
	b := j.Nodes[1].Map(echo.Refused).Memory().Bytes()
	if n, err := binary.LittleEndian.Uint64(b), -int32(binary.LittleEndian.Uint32(b[8:])); n != 2 || unix.Errno(err) != unix.EDQUOT {
		t.Errorf("%d refused, the last with %v", n, unix.Errno(err))
	}
}
