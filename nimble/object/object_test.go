package object

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"margay/internal/check"
	"margay/nimble/isa"
	"margay/nimble/state"
)

//go:generate make -C testdata

func readObject(t testing.TB, name string) []byte {
	t.Helper()
	data, err := os.ReadFile(filepath.Join("testdata", name))
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// objects returns the names of all objects.
func objects(t testing.TB) []string {
	t.Helper()
	files, err := filepath.Glob("testdata/*.o")
	if err != nil || len(files) == 0 {
		t.Fatalf("%d objects, %v", len(files), err)
	}
	for i := range files {
		files[i] = filepath.Base(files[i])
	}
	return files
}

func load(t *testing.T, name string) map[string]*Spec {
	t.Helper()
	specs, err := ELF(readObject(t, name))
	if err != nil {
		t.Fatal(err)
	}
	byName := make(map[string]*Spec)
	for _, s := range specs {
		byName[s.Name] = s
	}
	return byName
}

func TestELF(t *testing.T) {
	specs := load(t, "counter.o")
	if len(specs) != 2 {
		t.Fatalf("%d programs, want 2", len(specs))
	}
	s := specs["accumulate"]
	if s.Section != "message" || s.Slot() != "message" || s.License != "Dual BSD/GPL" {
		t.Errorf("section %q, slot %q, license %q", s.Section, s.Slot(), s.License)
	}
	if slot := specs["tick"].Slot(); slot != "timer" {
		t.Errorf("slot of section timer/every is %q", slot)
	}
	wantMaps := []state.Spec{
		{Name: ".rodata", ValueSize: 4, Entries: 1, ReadOnly: true, Contents: []byte{100}},
		{Name: ".bss", ValueSize: 4, Entries: 1, Contents: []byte{}},
		{Name: ".data", ValueSize: 8, Entries: 1, Contents: []byte{5}},
		{Name: "counts", ValueSize: 8, Entries: 16},
	}
	if !reflect.DeepEqual(s.Maps, wantMaps) {
		t.Errorf("maps %+v\nwant %+v", s.Maps, wantMaps)
	}
	if m := specs["tick"].Maps; len(m) != 1 || m[0].Kind != state.PerCore || m[0].ValueSize != 12 {
		t.Errorf("maps of tick: %+v", m)
	}
	wantVariables := []Variable{{"limit", ".rodata", 0, 4}, {"refused", ".bss", 0, 4}, {"total", ".data", 0, 8}}
	if !reflect.DeepEqual(s.Variables, wantVariables) {
		t.Errorf("variables %+v", s.Variables)
	}
	if !reflect.DeepEqual(s.Externs, []string{"notify"}) {
		t.Errorf("externs %q", s.Externs)
	}
}

// TestRelocations finds what relocations became in the instructions.
func TestRelocations(t *testing.T) {
	s := load(t, "counter.o")["accumulate"]
	var text []string
	for _, i := range s.Instructions {
		switch op := i.Op(); op {
		case isa.LdMap, isa.LdValue, isa.CallNamed, isa.CallLocal, isa.Call:
			text = append(text, i.String())
		}
	}
	want := []string{
		"lddw_value r3, 0, 0", // limit
		"lddw_value r1, 1, 0", // refused
		"call_named 0",        // notify
		"lddw_value r3, 2, 0", // total
		"call_local +1",       // bump, linked behind
		"lddw_map r1, 3",      // counts
		"call 1",              // map_lookup_elem
	}
	if !reflect.DeepEqual(text, want) {
		t.Errorf("got  %q\nwant %q", text, want)
	}
}

// TestFunctions links functions that begin with a relocated instruction, and
// that only other functions call.
func TestFunctions(t *testing.T) {
	specs := load(t, "calls.o")
	for name, want := range map[string][]string{
		"first":  {"call_local +1", "call_local +6", "call_local +8", "lddw_value r2, 0, 0", "call_named 0", "call_local -11"},
		"second": {"call_local +1", "lddw_value r2, 0, 0"},
		"third":  {"call_named 0"},
	} {
		var text []string
		for _, i := range specs[name].Instructions {
			switch i.Op() {
			case isa.CallLocal, isa.LdValue, isa.CallNamed:
				text = append(text, i.String())
			}
		}
		if !slices.Equal(text, want) {
			t.Errorf("%s: got %q\nwant %q", name, text, want)
		}
	}
}

func TestLines(t *testing.T) {
	s := load(t, "counter.o")["accumulate"]
	for _, c := range []struct {
		slot int
		text string
	}{
		{0, "if (m->amount > limit) {"},
		{6, "refused++;"}, // the second half of a wide instruction
		{33, "return __sync_fetch_and_add(value, amount) + amount;"},
		{34, "return __sync_fetch_and_add(value, amount) + amount;"},
	} {
		if got := s.Lines.At(c.slot); got.Text != c.text || !strings.HasSuffix(got.File, "counter.c") || got.Number == 0 {
			t.Errorf("line of instruction %d: %+v", c.slot, got)
		}
	}
	if got := Lines(nil).At(3); got != (Line{}) || got.String() != "" {
		t.Errorf("line without information: %+v", got)
	}
}

// TestUnsupported checks that errors about objects use the names in their source.
func TestUnsupported(t *testing.T) {
	for _, c := range []struct {
		name    string
		program string
		slot    int
		line    string
		reason  string
	}{
		{"hash.o", "message program", 4, "./hash.c:15", `map "table" is a Hash; there are Array and PerCPUArray`},
		{"static.o", "message lookup", 4, "./static.c:16", "a map is static"},
		{"section.o", "message section", 2, "./section.c:18", `"count" is in section .bss.mine`},
		{"hash.o", "message program", 4, "./hash.c:15", `map "table" is a Hash; there are Array and PerCPUArray, and a hash table is compiled into the extension: include margay_hash.h`},
		{"functions.o", "", -1, "", `section .data: "table" holds the address of function "`},
		{"oldmaps.o", "message lookup", -1, "./oldmaps.c:", `"counts" is a map as libbpf before 1.0 declared it; maps are declared by their types`},
	} {
		_, err := ELF(readObject(t, c.name))
		e, ok := errors.AsType[*Error](err)
		if !ok || e.Program != c.program || c.slot >= 0 && e.Slot != c.slot || !strings.HasPrefix(e.Line.String(), c.line) || !strings.HasPrefix(e.Reason, c.reason) {
			t.Errorf("%s: got %+v", c.name, err)
		}
	}
}

// TestFileErrors: errors of files as a whole.
func TestFileErrors(t *testing.T) {
	withoutTypes := bytes.ReplaceAll(readObject(t, "counter.o"), []byte(".BTF"), []byte(".XTF"))
	bigEndian := readObject(t, "counter.o")
	bigEndian[elf.EI_DATA] = byte(elf.ELFDATA2MSB)
	for name, c := range map[string]struct {
		file []byte
		want string
	}{
		"without -g": {withoutTypes, "compile with -g"},
		"big-endian": {bigEndian, "a big-endian object (bpfeb)"},
		"large":      {withSize(t, readObject(t, "counter.o"), ".bss", 72<<20), `section ".bss" has 75497472 bytes of data, and all sections may have 16777216`},
	} {
		if _, err := ELF(c.file); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// withSize changes the size of a section in its header.
func withSize(t *testing.T, file []byte, section string, size uint64) []byte {
	t.Helper()
	f, err := elf.NewFile(bytes.NewReader(file))
	if err != nil {
		t.Fatal(err)
	}
	index := slices.IndexFunc(f.Sections, func(s *elf.Section) bool { return s.Name == section })
	if index < 0 {
		t.Fatalf("no section %s", section)
	}
	const offSize = 32 // in an Elf64_Shdr
	headers := binary.LittleEndian.Uint64(file[40:])
	binary.LittleEndian.PutUint64(file[headers+uint64(index)*64+offSize:], size)
	return file
}

// TestPointers reads addresses in global data: what holds them, what they are of,
// and maps that only they name.
func TestPointers(t *testing.T) {
	want := []Pointer{
		{".data", 0, ".rodata", 0},                                                                                // first
		{".data", 8, ".rodata.str1.1", 0}, {".data", 16, ".rodata.str1.1", 4}, {".data", 24, ".rodata.str1.1", 8}, // names
		{".rodata", 0, ".rodata.str1.1", 14}, {".rodata", 8, ".rodata", 24}, {".rodata", 16, ".data", 32}, // table[0]
		{".rodata", 24, ".rodata.str1.1", 20}, {".rodata", 32, ".rodata", 48}, {".rodata", 40, ".data", 40}, // table[1]
		{".rodata", 48, ".rodata.str1.1", 25}, {".rodata", 64, ".bss", 24}, // last
	}
	for name, s := range load(t, "names.o") {
		if !slices.Equal(s.Pointers, want) {
			t.Errorf("%s: %+v", name, s.Pointers)
		}
		for _, each := range []string{".data", ".rodata", ".rodata.str1.1", ".bss"} {
			if s.Map(each) == nil {
				t.Errorf("%s has no map %s", name, each)
			}
		}
		if err := s.SetVariable("names", []uint64{1, 2, 3}); err != nil {
			t.Fatal(err)
		}
		if got := slices.Concat(want[:1], want[4:]); !slices.Equal(s.Pointers, got) {
			t.Errorf("%s, with names set: %+v", name, s.Pointers)
		}
	}
	if s := load(t, "counter.o")["accumulate"]; s.Pointers != nil {
		t.Errorf("an object without addresses has %+v", s.Pointers)
	}
}

func TestSetVariable(t *testing.T) {
	s := load(t, "counter.o")["accumulate"]
	for name, value := range map[string]any{"limit": uint32(0x01020304), "refused": int32(-1), "total": []byte{1, 2, 3, 4, 5, 6, 7, 8}} {
		if err := s.SetVariable(name, value); err != nil {
			t.Error(err)
		}
	}
	for name, want := range map[string][]byte{".rodata": {4, 3, 2, 1}, ".bss": {255, 255, 255, 255}, ".data": {1, 2, 3, 4, 5, 6, 7, 8}} {
		if got := s.Map(name).Contents; !reflect.DeepEqual(got, want) {
			t.Errorf("%s is %v, want %v", name, got, want)
		}
	}
	for name, value := range map[string]any{"limit": uint64(1), "total": "text", "nobody": uint32(1)} {
		if err := s.SetVariable(name, value); err == nil {
			t.Errorf("%s = %v was accepted", name, value)
		}
	}
}

func TestHex(t *testing.T) {
	s, err := Hex("b7 00 0000\n 05000000\t9500000000000000")
	if err != nil {
		t.Fatal(err)
	}
	if len(s.Instructions) != 2 || s.Instructions[0].String() != "mov r0, 5" {
		t.Errorf("got %v", s.Instructions)
	}
	for text, slot := range map[string]int{
		"9500000000000000 95":               1,
		"9500000000000000 9":                1,
		"9500000000000000 zz00000000000000": 1,
		"1800000000000000":                  0,
		"1800000000000000 0100000000000000": 1,
	} {
		var e *isa.DecodeError
		if _, err := Hex(text); !errors.As(err, &e) || e.Slot != slot {
			t.Errorf("%q: %v, want an error at %d", text, err, slot)
		}
	}
}

func TestTooLong(t *testing.T) {
	var e *isa.DecodeError
	if _, err := Raw(make([]byte, (MaxInstructions+1)*isa.SlotSize)); !errors.As(err, &e) || e.Slot != MaxInstructions {
		t.Errorf("got %v", err)
	}
}

// TestDamagedObjects changes a good object in many ways: every error is an
// *Error, and nothing panics.
func TestDamagedObjects(t *testing.T) {
	good := readObject(t, "counter.o")
	try := func(what string, data []byte) {
		var e *Error
		if _, err := ELF(data); err != nil && !errors.As(err, &e) {
			t.Errorf("%s: error %T", what, err)
		}
	}
	for n := 0; n < len(good); n += 7 {
		try("truncated", good[:n])
	}
	r := rand.New(rand.NewPCG(check.Seed(t), 0))
	for range 3000 {
		bad := append([]byte(nil), good...)
		for range 1 + r.IntN(4) {
			bad[r.IntN(len(bad))] = byte(r.Uint32())
		}
		try("changed", bad)
	}
}

func FuzzELF(f *testing.F) {
	for _, name := range objects(f) {
		f.Add(readObject(f, name))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		specs, err := ELF(data)
		if err == nil && len(specs) == 0 {
			t.Error("neither a program nor an error")
		}
	})
}

func FuzzHex(f *testing.F) {
	f.Add("b700000005000000 9500000000000000")
	f.Add("1801000001000000 0000000002000000 95000000 00000000")
	f.Fuzz(func(t *testing.T, text string) {
		s, err := Hex(text)
		if err != nil {
			return
		}
		want := strings.ToLower(strings.Join(strings.Fields(text), ""))
		if got := hex.EncodeToString(isa.Encode(s.Instructions)); got != want {
			t.Errorf("%q is encoded as %q", want, got)
		}
	})
}

// TestObjectsAreReproducible compiles the sources elsewhere and compares.
func TestObjectsAreReproducible(t *testing.T) {
	for _, tool := range []string{"clang-19", "make"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skipf("needs %s: %v", tool, err)
		}
	}
	dir := t.TempDir()
	if err := os.CopyFS(dir, os.DirFS("testdata")); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command("make", "--always-make", "-C", dir).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	here, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range objects(t) {
		fresh, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(fresh, readObject(t, name)) {
			t.Errorf("%s is not what its source compiles to", name)
		}
		if bytes.Contains(fresh, []byte(here)) || bytes.Contains(fresh, []byte(dir)) {
			t.Errorf("%s names the folder it was compiled in", name)
		}
	}
}

// TestHostileObjects changes what the limits of ELF objects are about, one
// thing at a time.
func TestHostileObjects(t *testing.T) {
	for name, c := range map[string]struct {
		change func(h *elf.Header64, s *sections)
		want   string
	}{
		"another machine":      {func(h *elf.Header64, s *sections) { h.Machine = uint16(elf.EM_X86_64) }, "is not a little-endian BPF object"},
		"big-endian":           {func(h *elf.Header64, s *sections) { h.Ident[elf.EI_DATA] = byte(elf.ELFDATA2MSB) }, "is not a little-endian BPF object"},
		"an executable":        {func(h *elf.Header64, s *sections) { h.Type = uint16(elf.ET_EXEC) }, "is not a little-endian BPF object"},
		"no magic":             {func(h *elf.Header64, s *sections) { h.Ident[0] = 0 }, "not an ELF file"},
		"too many sections":    {func(h *elf.Header64, s *sections) { h.Shnum = 0xff00 }, "65280 sections"},
		"headers outside":      {func(h *elf.Header64, s *sections) { h.Shoff = 1 << 60 }, "outside the file"},
		"no section names":     {func(h *elf.Header64, s *sections) { h.Shstrndx = 0 }, "no names of sections"},
		"huge zeroed data":     {func(h *elf.Header64, s *sections) { s.named(".bss").Size = 1 << 40 }, "bytes of data"},
		"much zeroed data":     {func(h *elf.Header64, s *sections) { s.named(".bss").Size = maxData + 1 }, "bytes of data"},
		"compressed":           {func(h *elf.Header64, s *sections) { s.named(".rodata").Flags |= uint64(elf.SHF_COMPRESSED) }, "is compressed"},
		"outside the file":     {func(h *elf.Header64, s *sections) { s.named("message").Off = 1 << 60 }, "not inside the file"},
		"past the end":         {func(h *elf.Header64, s *sections) { s.named("message").Size = 1 << 20 }, "not inside the file"},
		"symbols without name": {func(h *elf.Header64, s *sections) { s.named(".symtab").Link = 1 << 31 }, "no names of symbols"},
		"names in data": {func(h *elf.Header64, s *sections) {
			s.named(".symtab").Link = uint32(s.index(".data"))
		}, "no names of symbols"},
		"relocations twice": {func(h *elf.Header64, s *sections) {
			for _, name := range []string{".relmessage", ".rel.BTF"} {
				s.named(name).Off, s.named(name).Size = 0, h.Shoff
			}
		}, "relocations overlap"},
		"symbols past the end": {func(h *elf.Header64, s *sections) { s.named(".data").Size = 4 }, "not inside its section"},
	} {
		var e *Error
		_, err := ELF(changed(t, readObject(t, "counter.o"), c.change))
		if !errors.As(err, &e) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want an error with %q", name, err, c.want)
		}
	}
	var e *Error
	if _, err := ELF(make([]byte, maxFile+1)); !errors.As(err, &e) || !strings.Contains(err.Error(), "at most") {
		t.Errorf("too large: %v", err)
	}
	if shortNames(bytes.Repeat([]byte{1}, maxName+1)) || !shortNames(append(bytes.Repeat([]byte{1}, maxName), 0, 1)) {
		t.Error("long names are not found")
	}
}

// sections are the headers of an object's sections with their names.
type sections struct {
	headers []elf.Section64
	names   []string
}

func (s *sections) index(name string) int { return slices.Index(s.names, name) }

func (s *sections) named(name string) *elf.Section64 { return &s.headers[s.index(name)] }

// changed returns an object with changed headers.
func changed(t *testing.T, file []byte, change func(*elf.Header64, *sections)) []byte {
	t.Helper()
	f, err := elf.NewFile(bytes.NewReader(file))
	if err != nil {
		t.Fatal(err)
	}
	var h elf.Header64
	s := &sections{headers: make([]elf.Section64, len(f.Sections))}
	for _, each := range f.Sections {
		s.names = append(s.names, each.Name)
	}
	if err := errors.Join(read(file, 0, &h), read(file, h.Shoff, s.headers)); err != nil {
		t.Fatal(err)
	}
	at := h.Shoff
	change(&h, s)
	for offset, value := range map[uint64]any{0: &h, at: s.headers} {
		if _, err := binary.Encode(file[offset:], binary.LittleEndian, value); err != nil {
			t.Fatal(err)
		}
	}
	return file
}
