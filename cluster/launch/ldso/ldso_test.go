package ldso

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
)

// image is an ELF file for x86-64 with an interpreter and a dynamic section, which need no
// compiler.
type image struct {
	interpreter string
	dynamic     []elf.Dyn64 // the values of those with strings are set by text
	strings     string
}

// add adds an entry with a string.
func (i *image) add(tag elf.DynTag, text string) *image {
	i.dynamic = append(i.dynamic, elf.Dyn64{Tag: int64(tag), Val: uint64(len(i.strings))})
	i.strings += text + "\x00"
	return i
}

// bytes returns the file, which is loaded at address 0.
func (i *image) bytes() []byte {
	const header, segment, entry = 64, 56, 16
	interp := header + 3*segment
	dynamic := interp + len(i.interpreter) + 1
	table := dynamic + (len(i.dynamic)+2)*entry
	size := uint64(table + len(i.strings))
	h := elf.Header64{Type: uint16(elf.ET_DYN), Machine: uint16(elf.EM_X86_64), Version: 1, Phoff: header, Ehsize: header, Phentsize: segment, Phnum: 3}
	copy(h.Ident[:], elf.ELFMAG+string([]byte{byte(elf.ELFCLASS64), byte(elf.ELFDATA2LSB), 1}))
	segments := []elf.Prog64{
		{Type: uint32(elf.PT_LOAD), Filesz: size, Memsz: size},
		{Type: uint32(elf.PT_INTERP), Off: uint64(interp), Vaddr: uint64(interp), Filesz: uint64(len(i.interpreter) + 1)},
		{Type: uint32(elf.PT_DYNAMIC), Off: uint64(dynamic), Vaddr: uint64(dynamic), Filesz: uint64(table - dynamic)},
	}
	var out bytes.Buffer
	for _, part := range []any{h, segments, []byte(i.interpreter + "\x00"), i.dynamic,
		[]elf.Dyn64{{Tag: int64(elf.DT_STRTAB), Val: uint64(table)}, {}}, []byte(i.strings)} {
		if err := binary.Write(&out, binary.LittleEndian, part); err != nil {
			panic(err)
		}
	}
	return out.Bytes()
}

// save writes data below a folder.
func save(t *testing.T, data []byte, path ...string) string {
	t.Helper()
	name := filepath.Join(path...)
	if err := errors.Join(os.MkdirAll(filepath.Dir(name), 0o700), os.WriteFile(name, data, 0o700)); err != nil {
		t.Fatal(err)
	}
	return name
}

// musl's loader searches in another order: the environment first, and what any file on the way to
// the program names; it is its own C library.
func TestMusl(t *testing.T) {
	dir := t.TempDir()
	s := &Search{etc: dir, LibraryPath: filepath.Join(dir, "env")}
	loader := save(t, new(image).bytes(), dir, "ld-musl-x86_64.so.1")
	one := save(t, new(image).add(elf.DT_NEEDED, "libtwo.so").bytes(), dir, "env", "libone.so")
	save(t, new(image).bytes(), dir, "run", "libone.so")
	two := save(t, new(image).add(elf.DT_NEEDED, "libthree.so").bytes(), dir, "run", "libtwo.so")
	three := save(t, new(image).bytes(), dir, "listed", "libthree.so")
	index := save(t, []byte("/nowhere\n"+filepath.Join(dir, "listed")), dir, "ld-musl-x86_64.path")
	program := save(t, (&image{interpreter: loader}).add(elf.DT_NEEDED, "libone.so").add(elf.DT_NEEDED, "libc.musl-x86_64.so.1").
		add(elf.DT_RUNPATH, filepath.Join(dir, "run")).bytes(), dir, "program")
	needs, err := s.Needs(program, "")
	if want := []string{one, two, three}; err != nil || !slices.Equal(needs.Libraries, want) || len(needs.Missing) > 0 || needs.Index != index {
		t.Errorf("%+v, %v", needs, err)
	}
}

// A file may name any path as its loader, but only loaders for its own machine count.
func TestLoaders(t *testing.T) {
	dir := t.TempDir()
	other := new(image).bytes()
	other[18] = byte(elf.EM_AARCH64)
	good := save(t, new(image).bytes(), dir, "good")
	for name, test := range map[string]struct {
		loader, want, err string
	}{
		"good":             {loader: good, want: good},
		"none":             {},
		"missing":          {loader: dir + "/missing"},
		"a folder":         {loader: dir},
		"a device":         {loader: os.DevNull},
		"text":             {loader: save(t, []byte("#!/bin/sh\n"), dir, "text")},
		"another machine":  {loader: save(t, other, dir, "other")},
		"no absolute path": {loader: "good", err: `its dynamic loader, "good", is not an absolute path`},
	} {
		program := save(t, (&image{interpreter: test.loader}).add(elf.DT_NEEDED, "libnone.so").bytes(), dir, "program")
		needs, err := new(Search).Needs(program, "")
		if (err == nil) != (test.err == "") || err != nil && err.Error() != test.err {
			t.Errorf("%s: %v", name, err)
		}
		if needs.Loader != test.want || (len(needs.Missing) == 1) != (test.want != "") {
			t.Errorf("%s: %+v", name, needs)
		}
	}
}

// Libraries of the cache are found where the cache says; the files of the loader's own folders need
// no index on a node.
func TestCache(t *testing.T) {
	dir := t.TempDir()
	loader := save(t, new(image).bytes(), dir, "ld", "ld.so")
	far, near := save(t, new(image).bytes(), dir, "far", "libfar.so"), save(t, new(image).bytes(), dir, "ld", "libnear.so")
	entries := []cached{
		{"libfar.so", filepath.Join(dir, "fast", "libfar.so"), kindGNU, 1 << 62},
		{"libfar.so", far, 0x303, 0},
		{"libnear.so", near, 0x303, 0},
		{"libold.so", save(t, new(image).bytes(), dir, "far", "libold.so"), 0x302, 0},
	}
	save(t, new(image).bytes(), dir, "fast", "libfar.so")
	for name, data := range map[string][]byte{"new": cacheOf(nil, entries), "after an old one": cacheOf([]byte("entryof12byt"), entries)} {
		save(t, data, dir, "etc", "ld.so.cache")
		for library, want := range map[string]string{"libfar.so": far, "libnear.so": near, "libold.so": ""} {
			program := save(t, (&image{interpreter: loader}).add(elf.DT_NEEDED, library).bytes(), dir, "program")
			needs, err := (&Search{etc: filepath.Join(dir, "etc")}).Needs(program, "")
			if err != nil || strings.Join(needs.Libraries, " ") != want || (needs.Index != "") != (want == far) {
				t.Errorf("%s, %s: %+v, %v", name, library, needs, err)
			}
			noDefault := &image{interpreter: loader, dynamic: []elf.Dyn64{{Tag: int64(elf.DT_FLAGS_1), Val: uint64(elf.DF_1_NODEFLIB)}}}
			save(t, noDefault.add(elf.DT_NEEDED, library).bytes(), program)
			needs, err = (&Search{etc: filepath.Join(dir, "etc")}).Needs(program, "")
			if err != nil || (len(needs.Libraries) == 1) != (want == far) {
				t.Errorf("%s, %s without default folders: %+v, %v", name, library, needs, err)
			}
		}
	}
}

// cached is an entry of a cache.
type cached struct {
	name, path string
	flags      uint32
	hwcap      uint64
}

// cacheOf makes a cache; old holds the entries for older loaders.
func cacheOf(old []byte, entries []cached) []byte {
	var out, table bytes.Buffer
	text := ""
	at := func(word string) uint32 {
		text += word + "\x00"
		return uint32(len(cacheMagic) + 28 + 24*len(entries) + len(text) - len(word) - 1)
	}
	for _, e := range entries {
		binary.Write(&table, binary.LittleEndian, []uint32{e.flags, at(e.name), at(e.path), 0})
		binary.Write(&table, binary.LittleEndian, e.hwcap)
	}
	if old != nil {
		out.WriteString(oldMagic)
		binary.Write(&out, binary.LittleEndian, uint32(len(old)/oldEntry))
		out.Write(old)
		out.Write(make([]byte, -out.Len()&(cacheAlign-1)))
	}
	out.WriteString(cacheMagic)
	binary.Write(&out, binary.LittleEndian, []uint32{uint32(len(entries)), uint32(len(text)), 2, 0, 0, 0, 0})
	out.Write(table.Bytes())
	out.WriteString(text)
	return out.Bytes()
}

// A damaged cache is as none: the rest of the search goes on.
func TestDamagedCache(t *testing.T) {
	good := cacheOf(nil, []cached{{"libone.so", "/lib/libone.so", 0x303, 0}})
	if found := parseCache(good).paths("libone.so"); !slices.Equal(found, []string{"/lib/libone.so"}) {
		t.Fatalf("%v", found)
	}
	for _, name := range []string{"", "libone", "one.so", "/lib/libone.so\x00", "libone.so\x00"} {
		if found := parseCache(good).paths(name); len(found) > 0 {
			t.Errorf("%q: %v", name, found)
		}
	}
	bad := func(change func(data []byte) []byte) []byte { return change(slices.Clone(good)) }
	for name, data := range map[string][]byte{
		"empty":          nil,
		"text":           []byte("text"),
		"short header":   good[:30],
		"short entry":    good[:60],
		"no strings":     good[:72],
		"no end":         bad(func(d []byte) []byte { return d[:len(d)-1] }),
		"many entries":   bad(func(d []byte) []byte { d[23] = 0xff; return d[:len(d)-1] }),
		"name outside":   bad(func(d []byte) []byte { d[48+7] = 0xff; return d }),
		"path outside":   bad(func(d []byte) []byte { d[48+11] = 0xff; return d }),
		"relative path":  cacheOf(nil, []cached{{"libone.so", "lib/libone.so", 0x303, 0}}),
		"other order":    bad(func(d []byte) []byte { d[28] = endianBig; return d }),
		"old, and short": append([]byte(oldMagic), 0xff, 0xff, 0xff, 0xff, 1),
	} {
		if found := parseCache(data).paths("libone.so"); len(found) > 0 {
			t.Errorf("%s: %v", name, found)
		}
	}
}

// What a file says of itself does not make the search endless.
func TestBounds(t *testing.T) {
	dir := t.TempDir()
	loader := save(t, new(image).bytes(), dir, "ld.so")
	many := &image{interpreter: loader}
	for range maxNeeded + 1 {
		many.add(elf.DT_NEEDED, "libone.so")
	}
	places := (&image{interpreter: loader}).add(elf.DT_RUNPATH, strings.Repeat(":", maxFolders-1))
	for i := range maxNeeded {
		places.add(elf.DT_NEEDED, "lib"+strings.Repeat("x", i%200)+".so")
	}
	files := &image{interpreter: loader}
	for i := range 5 {
		brings := new(image)
		for j := range maxNeeded {
			brings.add(elf.DT_NEEDED, spelling(loader, i*maxNeeded+j))
		}
		files.add(elf.DT_NEEDED, save(t, brings.bytes(), dir, "libraries", string(rune('a'+i))))
	}
	long := (&image{interpreter: loader}).add(elf.DT_NEEDED, strings.Repeat("x", maxName))
	for want, i := range map[string]*image{
		"it needs more than 4096 libraries":               files,
		"it needs more than 1024 libraries":               many,
		"its libraries may be in more than 262144 places": places,
		"it is an ELF file that is truncated or damaged":  long,
	} {
		if _, err := new(Search).Needs(save(t, i.bytes(), dir, "program"), ""); err == nil || err.Error() != want {
			t.Errorf("%v, not %s", err, want)
		}
	}
}

// spelling returns one of many ways to write a path.
func spelling(path string, number int) string {
	for ; number > 0; number /= 2 {
		path = []string{"/", "/."}[number%2] + path
	}
	return path
}

// overlapping is a library that needs as many as a file may, by long names that are parts of each
// other.
func overlapping() *image {
	library := &image{strings: strings.Repeat("x", maxName-1) + "\x00"}
	for i := range maxNeeded {
		library.dynamic = append(library.dynamic, elf.Dyn64{Tag: int64(elf.DT_NEEDED), Val: uint64(i)})
	}
	return library
}

// links makes links to a folder, and returns a list of them.
func links(t *testing.T, number int, folder string) string {
	t.Helper()
	var list []string
	for i := range number {
		link := filepath.Join(filepath.Dir(folder), "link"+strconv.Itoa(i))
		if err := os.Symlink(folder, link); err != nil {
			t.Fatal(err)
		}
		list = append(list, link)
	}
	return strings.Join(list, ":")
}

// A library for another machine costs a look at its header wherever it is met, and nothing of it is
// kept.
func TestLibraryOfAnotherMachine(t *testing.T) {
	dir := t.TempDir()
	loader := save(t, new(image).bytes(), dir, "ld.so")
	other := overlapping().bytes()
	other[18] = byte(elf.EM_AARCH64)
	library := save(t, other, dir, "real", "libone.so")
	program := save(t, (&image{interpreter: loader}).add(elf.DT_NEEDED, "libone.so").add(elf.DT_RUNPATH, links(t, 100, filepath.Dir(library))).bytes(), dir, "program")
	s := new(Search)
	needs, err := s.Needs(program, "")
	if err != nil || len(needs.Missing) != 1 || len(needs.Libraries) > 0 {
		t.Errorf("%+v, %v", needs, err)
	}
	if len(s.read) != 1 || s.read[loader] == nil {
		t.Errorf("%d files are kept", len(s.read))
	}
	read := 0
	if o, err := readObject(library, elf.EM_X86_64, &read); err != nil || o.machine != elf.EM_AARCH64 || len(o.needed) > 0 || read != binary.Size(elf.Header64{}) {
		t.Errorf("of %+v %d bytes are read, %v", o, read, err)
	}
}

// The names of one file have a bound together, and what a search reads of all files has one, also
// of those that it passes over.
func TestBoundedWork(t *testing.T) {
	dir := t.TempDir()
	loader := save(t, new(image).bytes(), dir, "ld.so")
	library := save(t, overlapping().bytes(), dir, "real", "libone.so")
	if _, err := readObject(library, elf.EM_X86_64, new(int)); err == nil || err.Error() != "the names of what it needs have more than 1048576 bytes" {
		t.Error(err)
	}
	program := save(t, (&image{interpreter: loader}).add(elf.DT_NEEDED, "libone.so").add(elf.DT_RUNPATH, links(t, 200, filepath.Dir(library))).bytes(), dir, "program")
	if _, err := new(Search).Needs(program, ""); err == nil || err.Error() != "to find its libraries takes more than 64 MiB of files and paths" {
		t.Error(err)
	}
}

// The files kept for the next search are bounded; others are read again.
func TestBoundedKept(t *testing.T) {
	s := new(Search)
	for i := range 3 {
		s.keep(strconv.Itoa(i), &object{soname: strings.Repeat("x", maxKept/2)})
		if s.read[strconv.Itoa(i)] == nil || len(s.read) > 1 {
			t.Errorf("%d files are kept after %d", len(s.read), i+1)
		}
	}
}

// A token does not make a path longer than paths can be.
func TestLongTokens(t *testing.T) {
	w := &walk{needs: Needs{Machine: elf.EM_X86_64}}
	by := &loaded{path: "/" + strings.Repeat("x", 1000) + "/program"}
	for path, want := range map[string]int{"$ORIGIN": 1, "${ORIGIN}/a": 1, "/$LIB": 3, strings.Repeat("$ORIGIN", 5): 0, strings.Repeat("$ORIGIN/", 1000): 0} {
		found := 0
		for text := range w.expand(path, by) {
			if found++; len(text) >= maxName+len(path) {
				t.Errorf("%.20q becomes a path of %d bytes", path, len(text))
			}
		}
		if found != want {
			t.Errorf("%.20q becomes %d paths, not %d", path, found, want)
		}
	}
}

// A search that has done too much does not look at the cache again, even for a long list of
// libraries to preload.
func TestWorkInCache(t *testing.T) {
	s := &Search{cache: parseCache(cacheOf(nil, []cached{{"libone.so", "/lib/libone.so", 0x303, 0}}))}
	for work, want := range map[int]int{maxWork - 1: 1, maxWork: 0} {
		g := gnu{&walk{Search: s, work: work}}
		if found := slices.Collect(g.indexed("libone.so", &loaded{object: new(object)})); len(found) != want || g.work != work+1 {
			t.Errorf("after %d: %v, then %d", work, found, g.work)
		}
	}
}

// A FIFO is not a library, even under its path, and nothing waits for it.
func TestFIFO(t *testing.T) {
	dir := t.TempDir()
	loader := save(t, new(image).bytes(), dir, "ld.so")
	fifo := filepath.Join(dir, "libfifo.so")
	if err := syscall.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	program := save(t, (&image{interpreter: loader}).add(elf.DT_NEEDED, fifo).bytes(), dir, "program")
	needs, err := new(Search).Needs(program, "")
	if err != nil || len(needs.Missing) != 1 || needs.Missing[0].Library != fifo {
		t.Errorf("%+v, %v", needs, err)
	}
}

// FuzzObject: a file is read or refused, and a name that it holds has a bound.
func FuzzObject(f *testing.F) {
	f.Add((&image{interpreter: "/lib/ld.so"}).add(elf.DT_NEEDED, "libone.so").add(elf.DT_RUNPATH, "$ORIGIN").bytes())
	f.Add([]byte(elf.ELFMAG))
	f.Fuzz(func(t *testing.T, data []byte) {
		o, err := parseObject(bytes.NewReader(data), elf.EM_NONE)
		if err != nil {
			return
		}
		if len(o.needed) > maxNeeded || len(o.interpreter) >= maxName || len(o.rpath)+len(o.runpath) >= 2*maxFolders {
			t.Errorf("%d libraries, %+v", len(o.needed), o)
		}
	})
}

// FuzzCache: paths of a cache are absolute, whatever it holds.
func FuzzCache(f *testing.F) {
	f.Add(cacheOf(nil, []cached{{"libone.so", "/lib/libone.so", 0x303, 0}}), "libone.so")
	f.Add(cacheOf([]byte("entryof12byt"), []cached{{"libone.so", "/lib/libone.so", 0x303, 0}}), "libone.so")
	f.Fuzz(func(t *testing.T, data []byte, name string) {
		for _, path := range parseCache(data).paths(name) {
			if name == "" || !filepath.IsAbs(path) || len(path) >= maxName {
				t.Errorf("%q: %q", name, path)
			}
		}
	})
}
