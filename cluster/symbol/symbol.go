// Package symbol gives addresses in executables and libraries their names: function, file and line.
//
// It reads the files of this host, which are those that a job has copied or the same ones, and
// compares build ids where both have one. Names come from DWARF, from Go's own tables, or from the
// table of symbols; debug information that a distribution keeps apart (/usr/lib/debug/.build-id) is
// used. A file can be damaged or made to do harm: sizes are bounded, and a panic of a parser counts
// as a missing name.
package symbol

import (
	"bytes"
	"debug/dwarf"
	"debug/elf"
	"debug/gosym"
	"encoding/hex"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"sort"
	"strings"

	"golang.org/x/sys/unix"

	"margay/kernel/stack"
)

// Bounds of a reading.
const (
	maxFiles   = 256
	maxDebug   = 1 << 30 // bytes of debug information of all files, uncompressed
	maxSymbols = 512 << 20
	maxPlaces  = 1 << 16 // addresses whose places are remembered
	maxInlined = 32
	maxNotes   = 64 << 10
)

// Place is what an address belongs to.
type Place struct {
	Function string // empty: not known
	File     string // of the source; empty: not known
	Line     int    // 0: not known
	Inlined  bool   // the next place's function contains the function's code
}

// Table has the names of files. It is not safe for concurrent use.
type Table struct {
	files  map[string]*file
	places map[address][]Place
	room
}

// room is how many more bytes may be read.
type room struct{ debug, symbols uint64 }

// address is an address in a file.
type address struct {
	file *file
	addr uint64
}

// NewTable makes a table that reads files when it needs them.
func NewTable() *Table {
	return &Table{files: make(map[string]*file), places: make(map[address][]Place), room: room{maxDebug, maxSymbols}}
}

// Places returns what an address of a file belongs to: one place, or several if functions were
// inlined there, the innermost first. The address is in the numbers of the file. It returns none if
// nothing is known.
func (t *Table) Places(path string, build []byte, addr uint64) []Place {
	f := t.file(path, build)
	if f == nil {
		return nil
	}
	key := address{f, addr}
	places, known := t.places[key]
	if !known {
		if len(t.places) >= maxPlaces {
			clear(t.places)
		}
		places = f.places(addr)
		t.places[key] = places
	}
	return places
}

// file opens a file, and returns nil if it cannot be read or has another build id.
func (t *Table) file(path string, build []byte) *file {
	key := path + "\x00" + string(build)
	f, known := t.files[key]
	if !known && filepath.IsAbs(path) && len(t.files) < maxFiles {
		f, _ = open(path, build, &t.room)
		t.files[key] = f
	}
	return f
}

// Close closes the files.
func (t *Table) Close() {
	for _, f := range t.files {
		if f != nil {
			f.close()
		}
	}
	clear(t.files)
	clear(t.places)
}

// file is an executable or a library.
type file struct {
	opened  []*os.File  // the file, and the one with its debug information
	elfs    []*elf.File // the same
	debug   *dwarf.Data // nil: none
	lines   *gosym.Table
	symbols []elf.Symbol // functions by address
}

func open(path string, build []byte, left *room) (f *file, err error) {
	f = new(file)
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("%s: %v", path, r)
		}
		if err != nil {
			f.close()
			f = nil
		}
	}()
	if err := f.add(path); err != nil {
		return f, err
	}
	have := buildID(f.elfs[0])
	if len(build) > 0 && !bytes.Equal(have, build) {
		return f, fmt.Errorf("%s: it is not the file that the job has", path)
	}
	if apart := apartPath(have); apart != "" {
		_ = f.add(apart) // most have none
	}
	for _, e := range f.elfs {
		f.load(e, left)
	}
	slices.SortStableFunc(f.symbols, func(a, b elf.Symbol) int {
		switch {
		case a.Value < b.Value:
			return -1
		case a.Value > b.Value:
			return 1
		}
		return 0
	})
	return f, nil
}

// apartPath is where Debian and others put debug information.
func apartPath(build []byte) string {
	name := hex.EncodeToString(build)
	if len(name) < 3 {
		return ""
	}
	return filepath.Join("/usr/lib/debug/.build-id", name[:2], name[2:]+".debug")
}

var errIrregular = errors.New("it is not a regular file")

// add opens a file. Ranks may put a pipe there at any moment, if the folder is shared with them.
func (f *file) add(path string) error {
	if info, err := os.Stat(path); err != nil || !info.Mode().IsRegular() { // opening a device may have effects
		return errors.Join(errIrregular, err)
	}
	opened, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return err
	}
	f.opened = append(f.opened, opened)
	if info, err := opened.Stat(); err != nil || !info.Mode().IsRegular() {
		return errors.Join(errIrregular, err)
	}
	read, err := elf.NewFile(opened)
	if err == nil {
		f.elfs = append(f.elfs, read)
	}
	return err
}

func buildID(f *elf.File) []byte {
	for _, p := range f.Progs {
		if p.Type != elf.PT_NOTE {
			continue
		}
		data := make([]byte, min(p.Filesz, maxNotes))
		n, _ := p.ReadAt(data, 0)
		if id := stack.BuildID(data[:n]); len(id) > 0 {
			return id
		}
	}
	return nil
}

// load takes what a file has, as far as there is room.
func (f *file) load(e *elf.File, left *room) {
	var debug, symbols, code sizes
	for _, s := range e.Sections {
		switch {
		case s.Type == elf.SHT_SYMTAB, s.Type == elf.SHT_DYNSYM, s.Type == elf.SHT_STRTAB:
			symbols.add(s.Size)
		case strings.HasPrefix(s.Name, ".debug"):
			debug.add(s.Size)
		case strings.HasPrefix(s.Name, ".zdebug"): // how much that is, stands in the data
			debug.add(math.MaxUint64)
		case s.Name == ".gopclntab":
			code.add(s.Size)
		}
	}
	if debug > 0 && debug.fit(&left.debug) {
		if d, err := e.DWARF(); err == nil {
			f.debug = d
		}
	}
	if lines, text := e.Section(".gopclntab"), e.Section(".text"); lines != nil && text != nil && code.fit(&left.debug) {
		if data, err := lines.Data(); err == nil {
			f.lines, _ = gosym.NewTable(nil, gosym.NewLineTable(data, text.Addr))
		}
	}
	if !symbols.fit(&left.symbols) {
		return
	}
	for _, read := range []func() ([]elf.Symbol, error){e.Symbols, e.DynamicSymbols} {
		list, err := read()
		if err != nil {
			continue
		}
		for _, s := range list {
			if kind := elf.ST_TYPE(s.Info); (kind == elf.STT_FUNC || kind == elf.STT_GNU_IFUNC) && s.Section != elf.SHN_UNDEF {
				f.symbols = append(f.symbols, s)
			}
		}
	}
}

// sizes is a sum of sizes of sections, which a file may make up.
type sizes uint64

func (s *sizes) add(size uint64) {
	if *s += sizes(size); uint64(*s) < size {
		*s = math.MaxUint64
	}
}

// fit takes the sum from the remaining bytes, and reports whether they were enough.
func (s sizes) fit(left *uint64) bool {
	if uint64(s) > *left {
		return false
	}
	*left -= uint64(s)
	return true
}

func (f *file) close() {
	for _, opened := range f.opened {
		opened.Close()
	}
}

func (f *file) places(addr uint64) (places []Place) {
	defer func() {
		if r := recover(); r != nil {
			places = nil
		}
	}()
	if places, err := f.fromDWARF(addr); err == nil && len(places) > 0 {
		if outer := &places[len(places)-1]; outer.Function == "" {
			outer.Function = f.symbol(addr)
		}
		return places
	}
	if f.lines != nil {
		if file, line, fn := f.lines.PCToLine(addr); fn != nil {
			return []Place{{Function: fn.Name, File: file, Line: line}}
		}
	}
	if name := f.symbol(addr); name != "" {
		return []Place{{Function: name}}
	}
	return nil
}

// symbol returns the name of the function with an address, empty if there is none.
func (f *file) symbol(addr uint64) string {
	i := sort.Search(len(f.symbols), func(i int) bool { return f.symbols[i].Value > addr })
	// A function without a size, as of assembly, reaches to the next one.
	for i--; i >= 0; i-- {
		s := f.symbols[i]
		if s.Size == 0 || addr-s.Value < s.Size {
			return s.Name
		}
		if i > 0 && f.symbols[i-1].Value != s.Value {
			break
		}
	}
	return ""
}

var errNone = errors.New("it has no debug information for the address")

// fromDWARF returns the places of an address from DWARF.
func (f *file) fromDWARF(addr uint64) ([]Place, error) {
	if f.debug == nil {
		return nil, errNone
	}
	r := f.debug.Reader()
	unit, err := r.SeekPC(addr)
	if err != nil {
		return nil, err
	}
	lines, err := f.debug.LineReader(unit)
	if err != nil {
		return nil, err
	}
	var files []*dwarf.LineFile
	place := Place{}
	if lines != nil {
		files = lines.Files()
		place.File, place.Line = lineOf(lines, addr)
	}
	chain, err := f.functions(r, addr)
	if err != nil {
		return nil, err
	}
	var places []Place
	for i := len(chain) - 1; i >= 0; i-- { // innermost first
		place.Function, place.Inlined = f.name(chain[i]), i > 0
		places = append(places, place)
		place = Place{Line: number(chain[i], dwarf.AttrCallLine)}
		if n := number(chain[i], dwarf.AttrCallFile); n > 0 && n < len(files) && files[n] != nil {
			place.File = files[n].Name
		}
	}
	if len(places) == 0 && place.Line > 0 {
		places = []Place{place}
	}
	return places, nil
}

// lineOf finds the line of an address. LineReader.SeekPC does not find those in front of the first
// sequence of its table.
func lineOf(lines *dwarf.LineReader, addr uint64) (file string, line int) {
	var before, e dwarf.LineEntry
	before.EndSequence = true
	for lines.Next(&e) == nil {
		if !before.EndSequence && before.Address <= addr && addr < e.Address && before.File != nil {
			return before.File.Name, before.Line
		}
		before = e
	}
	return "", 0
}

// functions finds the function with an address, and those that were inlined there, the outermost
// first. r is at the first child of the unit.
func (f *file) functions(r *dwarf.Reader, addr uint64) (chain []*dwarf.Entry, err error) {
	depth := 0 // of blocks that have no code of their own, such as namespaces and classes
	for len(chain) < maxInlined {
		e, err := r.Next()
		if err != nil {
			return nil, err
		}
		switch {
		case e == nil:
			return chain, nil
		case e.Tag == 0:
			if depth--; depth < 0 {
				return chain, nil
			}
		case e.Tag == dwarf.TagCompileUnit:
			if len(chain) > 0 {
				return chain, nil
			}
			return nil, errNone
		case e.Tag == dwarf.TagSubprogram && len(chain) == 0, e.Tag == dwarf.TagInlinedSubroutine && len(chain) > 0:
			if f.covers(e, addr) {
				chain, depth = append(chain, e), 0
				if !e.Children {
					return chain, nil
				}
			} else {
				r.SkipChildren()
			}
		case e.Tag == dwarf.TagLexDwarfBlock && len(chain) > 0:
			if !f.covers(e, addr) {
				r.SkipChildren()
			} else if e.Children {
				depth++
			}
		case e.Tag == dwarf.TagNamespace && len(chain) == 0, e.Tag == dwarf.TagModule && len(chain) == 0:
			if e.Children {
				depth++
			}
		default:
			r.SkipChildren()
		}
	}
	return chain, nil
}

func (f *file) covers(e *dwarf.Entry, addr uint64) bool {
	ranges, err := f.debug.Ranges(e)
	if err != nil {
		return false
	}
	for _, r := range ranges {
		if r[0] <= addr && addr < r[1] {
			return true
		}
	}
	return false
}

// maxOrigins bounds the chain from a function to the declaration with its name.
const maxOrigins = 4

// name returns the name of a function, empty if it has none.
func (f *file) name(e *dwarf.Entry) string {
	for range maxOrigins {
		if name, ok := e.Val(dwarf.AttrName).(string); ok {
			return name
		}
		origin, ok := e.Val(dwarf.AttrAbstractOrigin).(dwarf.Offset)
		if !ok {
			if origin, ok = e.Val(dwarf.AttrSpecification).(dwarf.Offset); !ok {
				return ""
			}
		}
		r := f.debug.Reader()
		r.Seek(origin)
		next, err := r.Next()
		if err != nil || next == nil {
			return ""
		}
		e = next
	}
	return ""
}

func number(e *dwarf.Entry, attr dwarf.Attr) int {
	n, _ := e.Val(attr).(int64)
	return int(n)
}
