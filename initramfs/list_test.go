package initramfs

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
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
	packed := zstdBytes(t, bytes.Join([][]byte{file("c", strings.Repeat("x", 200000)), trailer}, nil))
	repeated := zstdBytes(t, bytes.Join([][]byte{file("c", strings.Repeat("\x00", 2000000)), trailer}, nil))
	zeros := make([]byte, 9)
	for name, c := range map[string]struct {
		image []byte
		want  string
	}{
		"plain":             {plain, "/a /b /l"},
		"packed":            {packed, "/c"},
		"run-length blocks": {repeated, "/c"},
		"two plain":         {bytes.Join([][]byte{plain, zeros, plain}, nil), "/a /b /l /a /b /l"},
		"packed then plain": {bytes.Join([][]byte{packed, zeros, plain, zeros}, nil), "/c /a /b /l"},
		"plain then packed": {bytes.Join([][]byte{zeros, plain, packed, packed}, nil), "/a /b /l /c /c"},
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
	packed := zstdBytes(t, good)
	for name, image := range map[string][]byte{
		"nothing":         nil,
		"zeros":           make([]byte, 100),
		"text":            []byte("hello, this is not an image"),
		"no trailer":      file("a", "12345"),
		"cut header":      good[:50],
		"cut content":     file("a", "12345")[:114],
		"bad magic":       bytes.Join([][]byte{file("a", ""), []byte("070702"), file("b", "")[6:], trailer}, nil),
		"bad digits":      bytes.Replace(good, []byte("000081a4"), []byte("0000-1a4"), 1),
		"no name":         bytes.Join([][]byte{record("", 0, 0, 0, ""), trailer}, nil),
		"huge name":       record("a", 0o100644, 0, 0xffffffff, ""),
		"huge file":       record("a", 0o100644, 0xffffffff, 2, ""),
		"huge link":       record("a", 0o120777, 0xffffffff, 2, ""),
		"cut frame":       packed[:len(packed)-5],
		"frame header":    packed[:5],
		"damaged frame":   append(bytes.Clone(packed[:20]), make([]byte, 40)...),
		"garbage behind":  append(bytes.Clone(packed), "garbage"...),
		"skippable frame": {0x50, 0x2a, 0x4d, 0x18, 4, 0, 0, 0, 1, 2, 3, 4},
	} {
		t.Run(name, func(t *testing.T) {
			if entries, err := List(bytes.NewReader(image)); !errors.Is(err, ErrImage) || entries != nil {
				t.Errorf("listed %v, %v", entries, err)
			}
		})
	}
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

// FuzzListPacked fuzzes the content of a frame. A frame holds one archive, so data after the first
// trailer is listed only without a frame.
func FuzzListPacked(f *testing.F) {
	f.Add(bytes.Join([][]byte{file("a", "12345"), trailer}, nil))
	f.Fuzz(func(t *testing.T, archive []byte) {
		plain, plainErr := List(bytes.NewReader(archive))
		packed, packedErr := List(bytes.NewReader(zstdBytes(t, archive)))
		if plainErr == nil && packedErr == nil && !slices.Equal(packed, plain[:min(len(packed), len(plain))]) {
			t.Fatalf("packed %v, plain %v", packed, plain)
		}
	})
}
