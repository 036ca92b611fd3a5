package control

import (
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"
)

func TestTame(t *testing.T) {
	m := NewFrame(&Register{Info: &NodeInfo{
		Kernel: "7.2\x1b[31m\x07\r", Lacks: slices.Repeat([]string{strings.Repeat("é", maxText) + "\u202e"}, maxTexts+1),
		Cores: make([]uint32, maxNumbers+1), Hostname: "node0.margay-1", Arch: "a\nb\n",
	}, PublicKey: []byte("\x1b\n")})
	Tame(m)
	info := m.GetRegister().Info
	if info.Kernel != "7.2?[31m??" || info.Hostname != "node0.margay-1" || info.Arch != "a; b" || len(info.Cores) != maxNumbers || len(info.Lacks) != maxTexts {
		t.Errorf("it is now %.200v", info)
	}
	for _, lack := range info.Lacks {
		if want := strings.Repeat("é", maxText/2) + "... (2003 bytes)"; lack != want {
			t.Fatalf("a long text is now %q", lack)
		}
	}
	if key := m.GetRegister().PublicKey; string(key) != "\x1b\n" {
		t.Errorf("a byte string is now %q", key)
	}
	r := &Record{Data: []byte("\x1b[1mbold\n"), Exit: &ExitStatus{Reason: "\x1b[1m"}}
	want := &Record{Data: []byte("\x1b[1mbold\n"), Exit: &ExitStatus{Reason: "?[1m"}}
	if Tame(r); !proto.Equal(r, want) {
		t.Errorf("a record is now %v", r)
	}
}
