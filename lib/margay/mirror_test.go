package margay

import (
	"net"
	"testing"

	"margay/internal/check"
	"margay/kernel/abi/mirror"
	"margay/kernel/abi/onesided"
	"margay/kernel/abi/wire"
)

// A goroutine that sleeps wakes to send a request again that another one has sent since, and that
// was lost.
func TestLostBesideSleeper(t *testing.T) {
	conn, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	socket, err := conn.File()
	if err != nil {
		t.Fatal(err)
	}
	defer socket.Close()
	j := &Job{}
	j.changed.L = &j.mu
	j.initMirrors()
	if err := j.openSocket(socket); err != nil {
		t.Fatal(err)
	}
	out, in, err := wire.OpenMirror(make([]byte, wire.MirrorSize))
	if err != nil {
		t.Fatal(err)
	}
	d := &direct{Requester: onesided.NewRequester(onesided.Peer{Largest: 1372})} // to nowhere
	j.mirrors.ends = []*far{{End: mirror.NewEnd(out, in, mirror.Peer{Largest: 1372}), out: out, direct: d}}
	j.mirrors.armWatch()
	check.Await(t, "sleep", func() bool {
		j.sending.Lock()
		defer j.sending.Unlock()
		return j.mirrors.polled == noTime
	})
	d.Add(onesided.Request{Kind: wire.RemotePut, Length: 8}, make([]byte, 8))
	d.news = true
	j.sendAsked()
	check.Await(t, "wake", func() bool {
		j.mu.Lock()
		defer j.mu.Unlock()
		return j.rung > 0
	})
	j.sending.Lock()
	defer j.sending.Unlock()
	j.finalized.Store(true)
	j.closeMirrors()
}
