package launch

import (
	"errors"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"margay/cluster/launch/proxy"
	"margay/kernel/abi/fuse"
)

func TestTrace(t *testing.T) {
	at := time.Date(2026, 11, 26, 10, 51, 2, 123456789, time.UTC)
	for want, e := range map[string]proxy.Event{
		"10:51:02.123456 node3 write-behind /a/b 4096+8192 ok 0.250ms\n": {Operation: fuse.Write, Behind: true, Path: "/a/b", Sized: true, Offset: 4096, Length: 8192},
		"10:51:02.123456 node3 rename /a->/b - EACCES 0.250ms\n":         {Operation: fuse.Rename, Path: "/a", To: "/b", Errno: unix.EACCES},
		"10:51:02.123456 node3 stat - - ok 0.250ms\n":                    {Operation: fuse.GetAttr},
		"10:51:02.123456 node3 open \"/a b\" - ok 0.250ms\n":             {Operation: fuse.Open, Path: "/a b"},
		"10:51:02.123456 node3 unlink \"/a\\nb\" - ok 0.250ms\n":         {Operation: fuse.Unlink, Path: "/a\nb"},
	} {
		e.Begun, e.Took = at, 250*time.Microsecond
		var out strings.Builder
		NewTrace(&out).print(3, e)
		if out.String() != want {
			t.Errorf("%q, want %q", out.String(), want)
		}
	}
	lost := NewTrace(failing{})
	lost.print(3, proxy.Event{})
	lost.print(3, proxy.Event{})
	if lost.Err() == nil {
		t.Error("a trace that cannot be written is complete")
	}
}

// A job that has succeeded but for its files has not succeeded.
func TestDataLost(t *testing.T) {
	var said strings.Builder
	s, sh := &session{Options: Options{Status: &Status{W: &said, Quiet: true}}}, new(sharing)
	if code, err := sh.lost(0, nil); code != 0 || err != nil {
		t.Errorf("%d, %v", code, err)
	}
	s.dataLost(sh, 2, "/a/b", unix.ENOSPC)
	if said.String() != "margay: /a/b lacks data that a rank on node2 has written: no space left on device\n" {
		t.Errorf("it says %q", said.String())
	}
	if code, err := sh.lost(0, nil); code != ExitMargay || err == nil {
		t.Errorf("%d, %v", code, err)
	}
	for range 100 {
		s.dataLost(sh, 2, "/a/b", unix.ENOSPC)
	}
	if n := strings.Count(said.String(), "\n"); n != mostLosses+1 {
		t.Errorf("it says %d lines", n)
	}
	failed := errors.New("the rank")
	if code, err := sh.lost(3, failed); code != 3 || err != failed {
		t.Errorf("%d, %v", code, err)
	}
}
