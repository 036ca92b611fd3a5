package boot

import (
	"bytes"
	"encoding/binary"
	"net"
	"strings"
	"testing"
	"time"

	"margay/internal/check"
)

// fetchFirst is a TFTP client: it fetches a file with a block size and returns it, or the text of
// an error.
func fetchFirst(t *testing.T, server net.Addr, name string) (content []byte, refusal string) {
	t.Helper()
	conn, err := net.Dial("udp", server.String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	conn.SetDeadline(time.Now().Add(patience))
	send := func(text string) {
		if _, err := conn.Write([]byte(text)); err != nil {
			t.Fatal(err)
		}
	}
	send("\x00\x01" + name + "\x00octet\x00blksize\x001024\x00")
	buf := make([]byte, 2000)
	for next := uint16(0); ; {
		n, err := conn.Read(buf)
		if err != nil {
			t.Fatal(err)
		}
		block := binary.BigEndian.Uint16(buf[2:])
		switch {
		case buf[1] == 5:
			return nil, string(bytes.TrimRight(buf[4:n], "\x00"))
		case buf[1] == 6:
			block = 0
		case buf[1] == 3 && block == next:
			content = append(content, buf[4:n]...)
		}
		if block > next {
			t.Fatalf("block %d after %d", block, next)
		}
		send("\x00\x04" + string(binary.BigEndian.AppendUint16(nil, block)))
		if block < next {
			continue // sent again
		}
		if buf[1] == 3 && n < 4+1024 {
			return content, ""
		}
		next++
	}
}

func TestFirstFile(t *testing.T) {
	s, r := services(t, local)
	_, files, _ := serve(t, s)
	for name, want := range map[string]string{"undionly.kpxe": strings.Repeat("b", 3000), "/ipxe.efi": strings.Repeat("u", 5000)} {
		if got, refusal := fetchFirst(t, files, name); string(got) != want {
			t.Errorf("%s: %d bytes, %q", name, len(got), refusal)
		}
	}
	for _, name := range []string{"/etc/passwd", "../ipxe.efi", "kernel", "image", "boot.ipxe"} {
		if got, refusal := fetchFirst(t, files, name); got != nil || !strings.Contains(refusal, "does not exist") {
			t.Errorf("%s: %d bytes, %q", name, len(got), refusal)
		}
	}
	if !strings.Contains(r.all(), "node0: it fetches iPXE 0") {
		t.Errorf("reports:\n%s", r.all())
	}
	check.AwaitFor(t, patience, "the report of the whole file", func() bool { return strings.Contains(r.all(), "node0: it fetches iPXE 100") })
}

// A station that is not a node gets no answer, and what a client loses is sent again.
func TestFirstFileIsSentAgain(t *testing.T) {
	s, r := services(t, local)
	_, files, _ := serve(t, s)
	conn, err := net.Dial("udp", files.String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	conn.SetDeadline(time.Now().Add(patience))
	s.Remove(0)
	if _, err := conn.Write([]byte("\x00\x01ipxe.efi\x00octet\x00")); err != nil {
		t.Fatal(err)
	}
	check.AwaitFor(t, patience, "the refusal", func() bool { return strings.Contains(r.all(), "is not a node") })
	c := Config{Hosts: []Host{host(0), host(1)}}
	local(&c)
	if err := s.Add(c.Hosts[0]); err != nil {
		t.Fatal(err)
	}
	if _, err := conn.Write([]byte("\x00\x01ipxe.efi\x00octet\x00")); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		buf := make([]byte, 600)
		if n, err := conn.Read(buf); err != nil || n != 516 || string(buf[:5]) != "\x00\x03\x00\x01u" {
			t.Fatalf("%d bytes, %v", n, err)
		}
	}
}
