package gdb

import (
	"archive/tar"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// A stream has the files, an answer, and bytes that neither reader touches.
func TestStream(t *testing.T) {
	dir := t.TempDir()
	var files []File
	for _, name := range []string{Server, Loader, "libc.so.6"} {
		path := filepath.Join(dir, "x"+name)
		if err := os.WriteFile(path, []byte("content of "+name), 0o600); err != nil {
			t.Fatal(err)
		}
		files = append(files, File{name, path})
	}
	var stream bytes.Buffer
	if err := WriteFiles(&stream, files); err != nil {
		t.Fatal(err)
	}
	if err := WriteAnswer(&stream, errors.New("no\nway")); err != nil {
		t.Fatal(err)
	}
	if err := WriteAnswer(&stream, nil); err != nil {
		t.Fatal(err)
	}
	stream.WriteString("$?#3f")
	var got []string
	err := ReadFiles(&stream, func(name string, content io.Reader) error {
		text, err := io.ReadAll(content)
		got = append(got, name+": "+string(text))
		return err
	})
	if want := []string{"gdbserver: content of gdbserver", "loader: content of loader", "libc.so.6: content of libc.so.6"}; err != nil || !slices.Equal(got, want) {
		t.Errorf("%q, %v", got, err)
	}
	if refusal, err := ReadAnswer(&stream); err != nil || refusal != "no; way" {
		t.Errorf("%q, %v", refusal, err)
	}
	if refusal, err := ReadAnswer(&stream); err != nil || refusal != "" {
		t.Errorf("%q, %v", refusal, err)
	}
	if stream.String() != "$?#3f" {
		t.Errorf("%q is left", stream.String())
	}
	if err := WriteFiles(&stream, []File{{Server, filepath.Join(dir, "nothing")}}); !errors.Is(err, os.ErrNotExist) {
		t.Error(err)
	}
}

func archive(t *testing.T, headers ...tar.Header) *bytes.Buffer {
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, h := range headers {
		if err := w.WriteHeader(&h); err != nil {
			t.Fatal(err)
		}
	}
	w.Flush()
	return &b
}

// Only files with plain names are taken, few of them, and not too large.
func TestBadStreams(t *testing.T) {
	many := make([]tar.Header, MaxFiles+1)
	for i := range many {
		many[i] = tar.Header{Name: fmt.Sprint("f", i)}
	}
	for name, stream := range map[string]io.Reader{
		"nothing":     strings.NewReader(""),
		"no archive":  strings.NewReader(strings.Repeat("x", 2048)),
		"a path":      archive(t, tar.Header{Name: "a/b"}),
		"outside":     archive(t, tar.Header{Name: ".."}),
		"a folder":    archive(t, tar.Header{Name: "f", Typeflag: tar.TypeDir}),
		"a link":      archive(t, tar.Header{Name: "f", Linkname: "/etc", Typeflag: tar.TypeSymlink}),
		"a large one": archive(t, tar.Header{Name: "f", Size: MaxSize + 1}),
		"many":        archive(t, many...),
	} {
		files := 0
		err := ReadFiles(stream, func(string, io.Reader) error { files++; return nil })
		if name == "nothing" {
			if err != nil || files > 0 {
				t.Errorf("%s: %v", name, err)
			}
			continue
		}
		if !errors.Is(err, ErrFormat) || files > MaxFiles+1 {
			t.Errorf("%s: %d files, %v", name, files, err)
		}
	}
	if _, err := ReadAnswer(strings.NewReader(strings.Repeat("x", 2*maxAnswer))); !errors.Is(err, ErrFormat) {
		t.Error(err)
	}
	if _, err := ReadAnswer(strings.NewReader("cut")); err == nil {
		t.Error("half an answer is taken")
	}
}

// The breakpoints that are in the program at the end of a session are removed, however the bytes of
// the session are divided.
func TestTalk(t *testing.T) {
	type step struct {
		gdb, server string
		waits       bool
	}
	for name, k := range map[string]struct {
		steps    []step
		farewell string
	}{
		"nothing said": {nil, "+"},
		"set and removed": {[]step{
			{gdb: "+$Z0,401136,1#00", waits: true}, {server: "+$OK#9a"}, {gdb: "$z0,401136,1#00"}, {server: "$OK#9a"},
		}, "+"},
		"runs": {[]step{
			{gdb: "$Z0,401136,1;X3,220027;cmds:1#00"}, {server: "$OK#9a"}, {gdb: "$Z0,7f00,1#00"}, {server: "$OK#9a"},
			{gdb: "$Z0,7f00,1#00"}, {server: "$OK#9a"}, {gdb: "$Z2,6000,8#00"}, {server: "$OK#9a"},
			{gdb: "$vCont;c:p1.-1#00", waits: true}, {server: "$O68656c6c6f0a#00%Stop:T05#00", waits: true}, {gdb: "\x03", waits: true}, {server: "$T02thread:p1.1;#00"},
		}, "+$z0,401136,1#62+$z0,7f00,1#30+$z2,6000,8#02+"},
		"a fork that gdb lets go": {[]step{
			{gdb: "$Hgp7.7#00"}, {server: "$OK#9a"}, {gdb: "$Z0,401136,1#00"}, {server: "$OK#9a"}, {gdb: "$vCont;c:p7.-1#00"},
			{server: "$T05fork:p25.25;06:0*,;thread:p7.7;core:0;#00"}, {gdb: "$Hgp25.25#00"}, {server: "$OK#9a"},
			{gdb: "$z0,401136,1#00"}, {server: "$OK#9a"}, {gdb: "$Hgp7.7#00"}, {server: "$OK#9a"}, {gdb: "$D;25#00"}, {server: "$OK#9a"},
			{gdb: "$vCont;c:p7.-1#00"}, {server: "$T02thread:p7.7;#00"},
		}, "+$z0,401136,1#62+"},
		"a fork": {[]step{
			{gdb: "$Hgp7.7#00"}, {server: "$OK#9a"}, {gdb: "$Z0,401136,1#00"}, {server: "$OK#9a"}, {gdb: "$vCont;c:p7.-1#00"},
			{server: "$T05vfork:p25.25;thread:p7.8;#00"}, {gdb: "$Hgp0.0#00"}, {server: "$OK#9a"}, {gdb: "$Hgp-1.-1#00"}, {server: "$OK#9a"},
			{gdb: "$Z0,5000,1#00"}, {server: "$OK#9a"},
		}, "+$z0,401136,1#62+$Hgp25.0#e4+$z0,401136,1#62+$Hgp7.0#b4+$z0,5000,1#f8+"},
		"data like a packet": {[]step{
			{gdb: "$X401136,2:}\x03$Z0,1,1#00"}, {server: "$OK#9a"}, {gdb: "$vFile:open:5a,0,0#00"}, {server: "$F3#00"},
		}, "+"},
	} {
		for size := range 3 {
			var talk Talk
			var passed []byte
			fromGDB := func(piece []byte) error {
				whole, err := talk.FromGDB(piece)
				passed = append(passed, whole...)
				return err
			}
			pass := func(text string, take func([]byte) error) {
				for piece := range slices.Chunk([]byte(text), size*size+1) {
					if err := take(piece); err != nil {
						t.Error(err)
					}
				}
			}
			var said string
			for i, s := range k.steps {
				pass(s.gdb, fromGDB)
				pass(s.server, talk.FromServer)
				said += s.gdb
				if waits := s.waits || s.gdb != "" && s.gdb != "\x03"; talk.Waits() != waits {
					t.Errorf("%s: after step %d gdbserver owes a reply: %v", name, i, talk.Waits())
				}
			}
			if string(passed) != said {
				t.Errorf("%s: gdbserver gets %q, and gdb has said %q", name, passed, said)
			}
			pass("$X401136,2:", fromGDB) // gdb is gone in the middle of a packet
			if string(passed) != said {
				t.Errorf("%s: gdbserver gets a part of a packet: %q", name, passed[len(said):])
			}
			if got := string(talk.Farewell()); got != k.farewell {
				t.Errorf("%s: %q, not %q", name, got, k.farewell)
			}
		}
	}
}

// A session with more than its bounds ends.
func TestTalkBounds(t *testing.T) {
	point := func(i int) []byte { return AppendPacket(nil, fmt.Appendf(nil, "Z0,%x,1;X1,27", i)) }
	var talk Talk
	for i := range maxBreakpoints {
		if _, err := talk.FromGDB(point(i)); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := talk.FromGDB(point(0)); err != nil {
		t.Errorf("a breakpoint is set again: %v", err)
	}
	if whole, err := talk.FromGDB(point(maxBreakpoints)); !errors.Is(err, ErrFormat) || len(whole) > 0 || len(talk.breakpoints) != maxBreakpoints {
		t.Errorf("%d breakpoints, and gdbserver gets %q: %v", len(talk.breakpoints), whole, err)
	}
	long := AppendPacket(nil, bytes.Repeat([]byte("0"), maxPacket))
	if _, err := new(Talk).FromGDB(long); !errors.Is(err, ErrFormat) {
		t.Errorf("a long request: %v", err)
	}
	if err := new(Talk).FromServer(long); !errors.Is(err, ErrFormat) {
		t.Errorf("a long reply: %v", err)
	}
	if _, err := new(Talk).FromGDB(AppendPacket(nil, fmt.Appendf(nil, "Z0,%0*x,1", maxPoint, 1))); !errors.Is(err, ErrFormat) {
		t.Errorf("a long breakpoint: %v", err)
	}
}

// No bytes make the state grow beyond its bounds and what gdb has asked for, each removal is a
// packet, and gdbserver gets what gdb has said.
func FuzzTalk(f *testing.F) {
	f.Add([]byte("$Z0,1,1#00"), []byte("$OK#9a"))
	f.Fuzz(func(t *testing.T, gdb, server []byte) {
		var talk, again Talk
		whole, err := talk.FromGDB(gdb)
		if !bytes.HasPrefix(gdb, whole) || err == nil && len(gdb)-len(whole) != len(talk.requests.piece) {
			t.Errorf("%q is passed on as %q: %v", gdb, whole, err)
		}
		_ = talk.FromServer(server)
		if len(talk.breakpoints) > maxBreakpoints || len(talk.requests.piece) > maxPacket || len(talk.replies.piece) > maxPacket {
			t.Errorf("%d breakpoints, and %d and %d bytes", len(talk.breakpoints), len(talk.requests.piece), len(talk.replies.piece))
		}
		if _, err := again.FromGDB(talk.Farewell()); err != nil || len(again.breakpoints) > 0 || again.asked < len(talk.breakpoints) {
			t.Errorf("%q is answered by %q: %v", gdb, talk.Farewell(), err)
		}
	})
}

// No archive gives files with other than plain names.
func FuzzReadFiles(f *testing.F) {
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, stream []byte) {
		_ = ReadFiles(bytes.NewReader(stream), func(name string, content io.Reader) error {
			if strings.Contains(name, "/") || name == ".." || name == "" {
				t.Errorf("a file %q", name)
			}
			_, err := io.Copy(io.Discard, content)
			return err
		})
	})
}
