package launch

import (
	"context"
	"encoding/binary"
	"errors"
	"net"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"

	"margay/cluster/launch/proxy"
	"margay/kernel/abi/fuse"
	"margay/kernel/abi/share"
)

// makeFolder is a request to make a folder.
func makeFolder(unique uint64, name string) []byte {
	b := make([]byte, fuse.HeaderSize+8)
	binary.LittleEndian.PutUint32(b[4:], uint32(fuse.MkDir))
	binary.LittleEndian.PutUint64(b[8:], unique)
	binary.LittleEndian.PutUint64(b[16:], fuse.RootNode)
	binary.LittleEndian.PutUint32(b[fuse.HeaderSize:], 0o700)
	b = append(append(b, name...), 0)
	binary.LittleEndian.PutUint32(b, uint32(len(b)))
	return b
}

// A request that comes again, over the same stream or another one, is carried out once and answered
// each time. A node that breaks the protocol loses its stream, and nothing else.
func TestPeer(t *testing.T) {
	dir := t.TempDir()
	folders, err := proxy.Open([]proxy.Folder{{Path: dir}}, 1)
	if err != nil {
		t.Fatal(err)
	}
	defer folders.Close()
	p := newPeer(share.MinWindow, 2)
	defer p.close()
	// connect returns the node's side of a new stream, and what its end is.
	connect := func() (net.Conn, <-chan error) {
		node, run := net.Pipe()
		t.Cleanup(func() { node.Close() })
		ended := make(chan error, 1)
		go func() { ended <- p.serve(context.WithoutCancel(t.Context()), run, folders) }()
		if _, err := node.Write(share.Greeting{UID: 5, GID: 6}.Frame().Append(nil)); err != nil {
			t.Fatal(err)
		}
		f, err := share.ReadFrame(node)
		if err != nil {
			t.Fatal(err)
		}
		if window, err := share.ReadWelcome(f); err != nil || window != share.MinWindow {
			t.Fatalf("%d, %v", window, err)
		}
		return node, ended
	}
	ask := func(node net.Conn, number uint64) {
		t.Helper()
		request := share.Frame{Kind: share.Request, Number: number, Floor: number, Body: makeFolder(number, "made")}
		if _, err := node.Write(request.Append(nil)); err != nil {
			t.Fatal(err)
		}
		f, err := share.ReadFrame(node)
		if err != nil || f.Number != number || !fuse.Valid(f.Body, number) || binary.LittleEndian.Uint32(f.Body[4:]) != 0 {
			t.Errorf("request %d: %+v, %v", number, f, err)
		}
	}
	first, ended := connect()
	ask(first, 3)
	ask(first, 3)
	if err := os.Remove(filepath.Join(dir, "made")); err != nil {
		t.Error(err)
	}
	first.Close()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	second, ended := connect()
	ask(second, 3)
	if _, err := os.Stat(filepath.Join(dir, "made")); err == nil {
		t.Error("the folder was made once more")
	}
	ask(second, 4)
	if _, err := second.Write(share.Frame{Kind: share.Request, Number: 3, Floor: 3}.Append(nil)); err != nil {
		t.Fatal(err)
	}
	if err := <-ended; !errors.Is(err, share.ErrProtocol) {
		t.Error(err)
	}
	third, ended := connect()
	ask(third, 4)
	third.Close()
	<-ended
}

// The end does not wait for ever for a file system that does not answer.
func TestSharingClose(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		answers := make(chan bool)
		sh := new(sharing)
		sh.running.Go(func() { <-answers })
		sh.close()
		close(answers)
	})
}

// A request waits until another one has made room.
func TestBusy(t *testing.T) {
	dir := t.TempDir()
	folders, err := proxy.Open([]proxy.Folder{{Path: dir}}, 1)
	if err != nil {
		t.Fatal(err)
	}
	defer folders.Close()
	p := newPeer(share.MinWindow, 1)
	defer p.close()
	p.busy <- struct{}{} // one that takes long
	node, run := net.Pipe()
	defer node.Close()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- p.serve(ctx, run, folders) }()
	write := func(f share.Frame) {
		if _, err := node.Write(f.Append(nil)); err != nil {
			t.Error(err)
		}
	}
	write(share.Greeting{UID: 5, GID: 6}.Frame())
	if _, err := share.ReadFrame(node); err != nil {
		t.Error(err)
	}
	write(share.Frame{Kind: share.Request, Number: 3, Floor: 3, Body: makeFolder(3, "made")})
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(filepath.Join(dir, "made")); err == nil {
		t.Error("the request was carried out beside the other one")
	}
}
