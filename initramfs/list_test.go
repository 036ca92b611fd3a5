package initramfs

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"path"
	"slices"
	"strings"
	"testing"
)

// record returns one file of an archive with header fields as given, whatever they mean.
func record(name string, mode, fileSize, nameSize uint32, content string) []byte {
	fields := [newcFields]uint32{0: 1, fieldMode: mode, fieldFileSize: fileSize, fieldNameSize: nameSize}
	var b bytes.Buffer
	b.WriteString(newcMagic)
	for _, f := range fields {
		fmt.Fprintf(&b, "%08x", f)
	}
	b.WriteString(name + "\x00")
	b.Write(make([]byte, -b.Len()&(align-1)))
	b.WriteString(content)
	b.Write(make([]byte, -b.Len()&(align-1)))
	return b.Bytes()
}

func file(name, content string) []byte {
	return record(name, 0o100644, uint32(len(content)), uint32(len(name)+1), content)
}

var trailer = file("TRAILER!!!", "")

func TestListTakesWhatLinuxTakes(t *testing.T) {
	plain := bytes.Join([][]byte{file("a", "12345"), file("./b", ""), record("l", 0o120777, 3, 2, "abc"), trailer}, nil)
	packed := xzBytes(t, bytes.Join([][]byte{file("c", strings.Repeat("x", 200000)), trailer}, nil))
	archive := bytes.Join([][]byte{file("c", random(300000)), file("d", strings.Repeat("\x00", 300000)), trailer}, nil)
	zeros := make([]byte, 9)
	for name, c := range map[string]struct {
		image []byte
		want  string
	}{
		"plain":                {plain, "/a /b /l"},
		"packed":               {packed, "/c"},
		"chunks of both kinds": {xzBytes(t, archive), "/c /d"},
		"many blocks":          {xzBytes(t, archive, "--block-size=100000", "--check=sha256"), "/c /d"},
		"no check":             {xzBytes(t, archive, "--check=none", "-0"), "/c /d"},
		"two plain":            {bytes.Join([][]byte{plain, zeros, plain}, nil), "/a /b /l /a /b /l"},
		"packed then plain":    {bytes.Join([][]byte{packed, zeros, plain, zeros}, nil), "/c /a /b /l"},
		"plain then packed":    {bytes.Join([][]byte{zeros, plain, packed, packed}, nil), "/a /b /l /c /c"},
	} {
		t.Run(name, func(t *testing.T) {
			entries, err := List(bytes.NewReader(c.image))
			var names []string
			for _, e := range entries {
				names = append(names, e.Path)
				if e.Path == "/l" && (e.Target != "abc" || e.Mode != fs.ModeSymlink|0o777) || e.Path == "/a" && e.Size != 5 {
					t.Errorf("entry %+v", e)
				}
			}
			if got := strings.Join(names, " "); err != nil || got != c.want {
				t.Errorf("listed %s, %v; want %s", got, err, c.want)
			}
		})
	}
}

func TestListRefuses(t *testing.T) {
	good := bytes.Join([][]byte{file("a", "12345"), trailer}, nil)
	packed := xzBytes(t, good)
	for name, image := range map[string][]byte{
		"nothing":          nil,
		"zeros":            make([]byte, 100),
		"text":             []byte("hello, this is not an image"),
		"no trailer":       file("a", "12345"),
		"cut header":       good[:50],
		"cut content":      file("a", "12345")[:114],
		"bad magic":        bytes.Join([][]byte{file("a", ""), []byte("070702"), file("b", "")[6:], trailer}, nil),
		"bad digits":       bytes.Replace(good, []byte("000081a4"), []byte("0000-1a4"), 1),
		"no name":          bytes.Join([][]byte{record("", 0, 0, 0, ""), trailer}, nil),
		"huge name":        record("a", 0o100644, 0, 0xffffffff, ""),
		"huge file":        record("a", 0o100644, 0xffffffff, 2, ""),
		"huge link":        record("a", 0o120777, 0xffffffff, 2, ""),
		"cut stream":       packed[:len(packed)-5],
		"stream header":    packed[:5],
		"damaged stream":   damaged(packed, len(packed)/2),
		"damaged header":   damaged(packed, streamHeader+1),
		"garbage behind":   append(bytes.Clone(packed), "garbage"...),
		"two in one":       xzBytes(t, packed),
		"too many parts":   bytes.Repeat(good, maxParts+1),
		"large dictionary": xzBytes(t, good, "--lzma2=preset=0,dict=128MiB"),
	} {
		t.Run(name, func(t *testing.T) {
			if entries, err := List(bytes.NewReader(image)); !errors.Is(err, ErrImage) || entries != nil {
				t.Errorf("listed %v, %v", entries, err)
			}
		})
	}
}

// damaged returns data with another byte at an offset.
func damaged(data []byte, at int) []byte {
	data = bytes.Clone(data)
	data[at] ^= 0x55
	return data
}

// random returns text that cannot be compressed, the same each time.
func random(size int) string {
	data := make([]byte, size)
	rand.NewChaCha8([32]byte{}).Read(data)
	return string(data)
}

// TestStreamLength cuts and damages a stream at each offset.
func TestStreamLength(t *testing.T) {
	stream := xzBytes(t, []byte(random(70000)+strings.Repeat("a", 100000)), "--block-size=50000")
	for at := range stream {
		if at > 200 && at < len(stream)-200 && at%501 != 0 {
			continue
		}
		if n, err := streamLength(stream[:at]); err == nil {
			t.Errorf("%d of %d bytes: length %d", at, len(stream), n)
		}
		if n, err := streamLength(damaged(stream, at)); err == nil && n > len(stream) {
			t.Errorf("byte %d damaged: length %d", at, n)
		}
	}
	for _, more := range []string{"", "more", string(stream)} {
		if n, err := streamLength(append(bytes.Clone(stream), more...)); n != len(stream) || err != nil {
			t.Errorf("length %d, %v, want %d", n, err, len(stream))
		}
	}
}

func FuzzStreamLength(f *testing.F) {
	f.Add(xzBytes(f, []byte(random(1000)+strings.Repeat("a", 1000))))
	f.Add(xzBytes(f, []byte(random(1000)), "--block-size=400", "--check=sha256"))
	f.Fuzz(func(t *testing.T, image []byte) {
		if n, err := streamLength(image); err == nil && (n < streamHeader+streamFooter || n > len(image)) {
			t.Fatalf("%d of %d bytes", n, len(image))
		}
	})
}

func FuzzList(f *testing.F) {
	plain := bytes.Join([][]byte{file("a", "12345"), record("l", 0o120777, 3, 2, "abc"), trailer}, nil)
	f.Add(plain)
	f.Add(append([]byte{0, 0, 0, 0}, record("a", 0o100644, 0xffffffff, 2, "")...))
	f.Fuzz(func(t *testing.T, image []byte) {
		entries, err := List(bytes.NewReader(image))
		if err != nil && (!errors.Is(err, ErrImage) || entries != nil) {
			t.Fatalf("%d entries, %v", len(entries), err)
		}
		for _, e := range entries {
			if !path.IsAbs(e.Path) || path.Clean(e.Path) != e.Path || e.Size < 0 {
				t.Fatalf("entry %+v", e)
			}
		}
	})
}

// FuzzListPacked fuzzes the content of a stream. A stream holds one archive, so data after the
// first trailer is listed only without a stream.
func FuzzListPacked(f *testing.F) {
	f.Add(bytes.Join([][]byte{file("a", "12345"), trailer}, nil))
	f.Fuzz(func(t *testing.T, archive []byte) {
		plain, plainErr := List(bytes.NewReader(archive))
		packed, packedErr := List(bytes.NewReader(xzBytes(t, archive)))
		if plainErr == nil && packedErr == nil && !slices.Equal(packed, plain[:min(len(packed), len(plain))]) {
			t.Fatalf("packed %v, plain %v", packed, plain)
		}
	})
}
