package rights

import (
	"io"
	"net"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"margay/internal/check"
)

// pair returns both ends of a socket.
func pair(t *testing.T) (a, b *net.UnixConn) {
	t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	ends := make([]*net.UnixConn, 2)
	for i, fd := range fds {
		f := os.NewFile(uintptr(fd), "end")
		c, err := net.FileConn(f)
		f.Close()
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		ends[i] = c.(*net.UnixConn)
	}
	return ends[0], ends[1]
}

// Descriptors arrive in order and close on exec; unsolicited credentials are skipped.
func TestPassed(t *testing.T) {
	check.Leaks(t)
	a, b := pair(t)
	raw, err := b.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	if err := raw.Control(func(fd uintptr) { err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_PASSCRED, 1) }); err != nil {
		t.Fatal(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := a.WriteMsgUnix([]byte("x"), Encode(r, w), nil); err != nil {
		t.Fatal(err)
	}
	Close([]*os.File{r, w})
	data, control := make([]byte, 8), make([]byte, Space(Most)+unix.CmsgSpace(unix.SizeofUcred))
	_, n, _, _, err := b.ReadMsgUnix(data, control)
	if err != nil {
		t.Fatal(err)
	}
	files, err := Decode(control[:n], "passed")
	if err != nil || len(files) != 2 {
		t.Fatalf("%v, %v", files, err)
	}
	defer Close(files)
	for _, f := range files {
		if flags, err := unix.FcntlInt(f.Fd(), unix.F_GETFD, 0); err != nil || flags&unix.FD_CLOEXEC == 0 {
			t.Errorf("descriptor flags %#x, %v", flags, err)
		}
	}
	if _, err := files[1].WriteString("through"); err != nil {
		t.Fatal(err)
	}
	files[0].SetReadDeadline(time.Now().Add(check.Patience))
	text := make([]byte, len("through"))
	if _, err := io.ReadFull(files[0], text); err != nil || string(text) != "through" {
		t.Errorf("%q, %v", text, err)
	}
}

func TestNothing(t *testing.T) {
	if data := Encode(); data != nil {
		t.Errorf("no file has the control data %v", data)
	}
	if files, err := Decode(nil, ""); err != nil || files != nil {
		t.Errorf("%v, %v", files, err)
	}
	if files, err := Decode(make([]byte, 32), ""); err == nil {
		t.Errorf("control data that is none became %v", files)
	}
}
