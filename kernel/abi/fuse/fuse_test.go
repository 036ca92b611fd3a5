package fuse

import (
	"bytes"
	"encoding/binary"
	"errors"
	"strings"
	"syscall"
	"testing"

	"margay/internal/check"
)

// request encodes a request with a body.
func request(opcode Opcode, body ...any) []byte {
	b := make([]byte, HeaderSize)
	binary.LittleEndian.PutUint32(b[4:], uint32(opcode))
	binary.LittleEndian.PutUint64(b[8:], 77)
	binary.LittleEndian.PutUint64(b[16:], RootNode)
	for _, v := range body {
		switch v := v.(type) {
		case string:
			b = append(b, v...)
		default:
			b, _ = binary.Append(b, binary.LittleEndian, v)
		}
	}
	binary.LittleEndian.PutUint32(b, uint32(len(b)))
	return b
}

func TestParse(t *testing.T) {
	write := request(Write, [5]uint64{3, 4096, 4, 0, 0}, "data")
	for name, test := range map[string]struct {
		in   []byte
		want func(Request) bool
		err  error
	}{
		"lookup":  {in: request(Lookup, "a\x00"), want: func(r Request) bool { return r.Name == "a" && r.Unique == 77 && r.Node == RootNode }},
		"write":   {in: write, want: func(r Request) bool { return r.Handle == 3 && r.Offset == 4096 && string(r.Data) == "data" }},
		"rename":  {in: request(Rename, uint64(9), "a\x00b\x00"), want: func(r Request) bool { return r.NewDir == 9 && r.Name == "a" && r.NewName == "b" }},
		"link":    {in: request(Symlink, "a\x00../../b\x00"), want: func(r Request) bool { return r.NewName == "../../b" }},
		"forgets": {in: request(BatchForget, uint64(2), [4]uint64{5, 1, 6, 2}), want: func(r Request) bool { return r.Forgets[1] == Forgotten{6, 2} }},
		"all forgotten": {
			in: request(BatchForget, uint64(maxForgets), make([]uint64, 2*maxForgets)),
			want: func(r Request) bool {
				return len(r.Forgets) == maxForgets && r.Len <= MaxRequest && r.Len+forgetOneSize > MaxRequest
			},
		},
		"no name":        {in: request(Lookup, "\x00"), err: ErrMalformed},
		"folder itself":  {in: request(Lookup, ".\x00"), err: ErrMalformed},
		"folder above":   {in: request(MkDir, uint64(0), "..\x00"), err: ErrMalformed},
		"path":           {in: request(Unlink, "a/b\x00"), err: ErrMalformed},
		"new path":       {in: request(Rename, uint64(9), "a\x00/b\x00"), err: ErrMalformed},
		"long name":      {in: request(Lookup, strings.Repeat("a", 256)+"\x00"), err: syscall.ENAMETOOLONG},
		"no end":         {in: request(Lookup, "a"), err: ErrMalformed},
		"two ends":       {in: request(Lookup, "a\x00b\x00"), err: ErrMalformed},
		"short":          {in: request(Read, uint64(1)), err: ErrMalformed},
		"long":           {in: request(ReadLink, uint64(1)), err: ErrMalformed},
		"lies":           {in: write[:len(write)-1], err: ErrMalformed},
		"more forgotten": {in: request(BatchForget, uint64(1<<32-1)), err: ErrMalformed},
		"unknown":        {in: request(22, uint64(1)), err: syscall.ENOSYS},
	} {
		t.Run(name, func(t *testing.T) {
			r, err := Parse(test.in)
			if !errors.Is(err, test.err) || err == nil && !test.want(r) {
				t.Errorf("%+v, %v; want %v", r, err, test.err)
			}
		})
	}
}

// TestHeader compares sizes with the header of Linux.
func TestHeader(t *testing.T) {
	const header = "#include <stddef.h>\n#include <linux/fuse.h>\n"
	values := check.CValues(t, header, map[string]string{
		"in": "sizeof(struct fuse_in_header)", "out": "sizeof(struct fuse_out_header)", "attr": "sizeof(struct fuse_attr_out)",
		"entry": "sizeof(struct fuse_entry_out)", "init": "sizeof(struct fuse_init_out)", "statfs": "sizeof(struct fuse_statfs_out)",
		"open": "sizeof(struct fuse_open_out)", "write": "sizeof(struct fuse_write_out)", "dirent": "FUSE_NAME_OFFSET",
		"setattr": "sizeof(struct fuse_setattr_in)", "read": "sizeof(struct fuse_read_in)",
		"write in": "sizeof(struct fuse_write_in)", "write flags": "offsetof(struct fuse_write_in, write_flags)",
		"open flags": "offsetof(struct fuse_write_in, flags)", "cached": "FUSE_WRITE_CACHE",
	})
	init, err := AnswerInit(request(Init, [4]uint32{Major, 44, 1 << 20, 1<<32 - 1}))
	if err != nil {
		t.Fatal(err)
	}
	for name, size := range map[string]int{
		"in": HeaderSize, "out": AnswerSize, "attr": len(AppendAttr(nil, Attr{}, 0)), "entry": len(AppendEntry(nil, Entry{})),
		"init": len(init) - AnswerSize, "statfs": len(AppendSpace(nil, Space{})), "open": len(AppendOpen(nil, 0, 0)),
		"write": len(AppendWritten(nil, 0)), "dirent": len(AppendDirent(nil, 0, 0, 0, "")), "setattr": 88, "read": 40,
		"write in": writeSize - HeaderSize, "write flags": writeFlagsAt - HeaderSize, "open flags": openFlagsAt - HeaderSize, "cached": writeCached,
	} {
		if values[name] != size {
			t.Errorf("%s: %d bytes, in Linux %d", name, size, values[name])
		}
	}
	if _, err := Parse(request(SetAttr, make([]byte, values["setattr"]))); err != nil {
		t.Error(err)
	}
	if _, err := AnswerInit(request(Init, [4]uint32{Major, Minor - 1, 0, 0})); err == nil {
		t.Error("an older version is accepted")
	}
}

func FuzzParse(f *testing.F) {
	for opcode := range Opcode(50) {
		f.Add(request(opcode, [11]uint64{}))
		f.Add(request(opcode, uint64(1), "name\x00name\x00"))
	}
	f.Add(request(Write, [5]uint64{3, 4096, 4, 0, 0}, "data"))
	f.Fuzz(func(t *testing.T, b []byte) {
		if Cost(b) < len(b) {
			t.Error("a request costs less than it takes")
		}
		_, _ = AnswerInit(b)
		_, _ = Released(b)
		if h, err := ReadHeader(b); err == nil {
			deferred(t, h, b)
		}
		r, err := Parse(b)
		if err != nil {
			return
		}
		names := []string{r.Name}
		if r.Opcode == Rename || r.Opcode == Rename2 {
			names = append(names, r.NewName)
		}
		for _, name := range names {
			if name == "." || name == ".." || strings.ContainsAny(name, "/\x00") {
				t.Errorf("%q is taken for the name of a file", name)
			}
		}
		if !bytes.Contains(b, r.Data) {
			t.Error("data from nowhere")
		}
	})
}

// deferred looks at a request as one that may be written behind.
func deferred(t *testing.T, h Header, b []byte) {
	e, ok := Deferrable(h, b)
	if !ok {
		return
	}
	if e.Offset >= e.End || !e.Overlaps(e) {
		t.Errorf("it writes %+v", e)
	}
	b = bytes.Clone(b)
	if Joins(b, b) {
		b = Join(b, bytes.Clone(b))
	}
	Defer(b)
	if r, err := Parse(b); err != nil || !r.Behind || uint64(len(r.Data)) != r.Size || r.Offset != e.Offset {
		t.Errorf("the deferred write is %+v, %v", r, err)
	}
}

// Writes that must be carried out before they return are not deferred.
func TestDeferrable(t *testing.T) {
	for name, test := range map[string]struct {
		body [5]uint64 // handle, offset, size and flags of the write, owner, flags of the open file
		want bool
	}{
		"plain":        {[5]uint64{3, 4096, 4, 0, syscall.O_RDWR}, true},
		"append":       {[5]uint64{3, 4096, 4, 0, syscall.O_APPEND}, false},
		"sync":         {[5]uint64{3, 4096, 4, 0, syscall.O_DSYNC}, false},
		"direct":       {[5]uint64{3, 4096, 4, 0, syscall.O_DIRECT}, false},
		"of a page":    {[5]uint64{3, 4096, 4 | writeCached<<32, 0, 0}, false},
		"of relay":     {[5]uint64{3, 4096, 4 | writeBehind<<32, 0, 0}, false},
		"another size": {[5]uint64{3, 4096, 5, 0, 0}, false},
		"too far":      {[5]uint64{3, 1<<63 - 4, 4, 0, 0}, false},
		"over the end": {[5]uint64{3, 1<<64 - 2, 4, 0, 0}, false},
	} {
		b := request(Write, test.body, "data")
		h, err := ReadHeader(b)
		if e, ok := Deferrable(h, b); err != nil || ok != test.want || ok && e != (Extent{3, 4096, 4100}) {
			t.Errorf("%s: %+v, %v", name, e, ok)
		}
	}
}
