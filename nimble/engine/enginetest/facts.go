package enginetest

import (
	"embed"
	"encoding/hex"
	"fmt"
	"path"
	"strconv"
	"strings"
	"testing"

	"margay/nimble/isa"
	"margay/nimble/object"
	"margay/nimble/state"
)

//go:embed testdata/*.txt
var files embed.FS

// Fact is a program with its runs.
type Fact struct {
	File    string // and line of its first line
	Name    string
	Spec    *object.Spec
	Trusted bool
	Runs    []Run
}

// Run is one run of a fact's program, with its inputs and expected outcome.
type Run struct {
	Line    string            // as written, for messages
	Args    map[string]string // r1 to r5, values
	Memory  []byte            // the context; nil: none
	ROM     bool              // the context is read-only
	Fuel    uint64
	Depth   int
	Core    int
	Want    string            // a value, or "fault", or "refused"
	Details map[string]string // of the outcome, by word
	Text    string            // of a refusal
}

// Defaults of a run.
const (
	defaultFuel  = 10_000
	defaultDepth = 8
)

// Facts returns the facts of all files, in order.
func Facts() ([]Fact, error) {
	entries, err := files.ReadDir("testdata")
	if err != nil {
		return nil, err
	}
	var facts []Fact
	for _, e := range entries {
		text, err := files.ReadFile(path.Join("testdata", e.Name()))
		if err != nil {
			return nil, err
		}
		some, err := Parse(e.Name(), string(text))
		if err != nil {
			return nil, err
		}
		facts = append(facts, some...)
	}
	return facts, nil
}

// OfEachForm returns a random one of the facts whose programs differ only in registers and
// immediates, for each form of a program.
func OfEachForm(t *testing.T, facts []Fact) (some []Fact) {
	t.Helper()
	all := make(map[string][]Fact)
	var forms []string // in order
	for _, f := range facts {
		form := fmt.Sprint(f.Trusted, len(f.Spec.Maps))
		for _, i := range f.Spec.Instructions {
			form += fmt.Sprint(" ", i.Op(), i.Off)
		}
		if all[form] == nil {
			forms = append(forms, form)
		}
		all[form] = append(all[form], f)
	}
	r := Seeded(t)
	for _, form := range forms {
		some = append(some, all[form][r.IntN(len(all[form]))])
	}
	return some
}

// parser reads one file.
type parser struct {
	facts []Fact
	code  []byte // of the last fact so far
}

// Parse reads the facts of a file.
func Parse(name, text string) ([]Fact, error) {
	p := &parser{}
	number := 0
	for line := range strings.Lines(text) {
		number++
		line, _, _ = strings.Cut(strings.TrimSpace(line), "#")
		if line == "" {
			continue
		}
		if err := p.line(fmt.Sprintf("%s:%d", name, number), strings.TrimSpace(line)); err != nil {
			return nil, fmt.Errorf("%s:%d: %w", name, number, err)
		}
	}
	return p.facts, nil
}

func (p *parser) line(at, line string) error {
	word, rest, _ := strings.Cut(line, " ")
	rest = strings.TrimSpace(rest)
	if word == "fact" {
		p.facts = append(p.facts, Fact{File: at, Name: rest, Spec: &object.Spec{Name: rest}})
		p.code = nil
		return nil
	}
	if len(p.facts) == 0 {
		return fmt.Errorf("%q before the first fact", word)
	}
	fact := &p.facts[len(p.facts)-1]
	switch word {
	case "map":
		return fact.addMap(rest)
	case "extern":
		fact.Spec.Externs = append(fact.Spec.Externs, rest)
		return nil
	case "trusted":
		fact.Trusted = true
		return nil
	case "run":
		return p.run(fact, line, rest)
	case "hex":
		code, err := hex.DecodeString(strings.ReplaceAll(rest, " ", ""))
		p.code = append(p.code, code...)
		return err
	default:
		i, err := isa.Parse(line)
		p.code = append(p.code, isa.Encode(isa.Append(nil, i))...)
		return err
	}
}

// addMap reads: NAME array|percore VALUESIZE ENTRIES [readonly] [HEX].
func (f *Fact) addMap(text string) error {
	words := strings.Fields(text)
	if len(words) < 4 {
		return fmt.Errorf("map %q: want NAME KIND VALUESIZE ENTRIES", text)
	}
	m := state.Spec{Name: words[0]}
	switch words[1] {
	case "array":
	case "percore":
		m.Kind = state.PerCore
	default:
		return fmt.Errorf("map kind %q", words[1])
	}
	size, err1 := strconv.ParseUint(words[2], 0, 32)
	entries, err2 := strconv.ParseUint(words[3], 0, 32)
	if err1 != nil || err2 != nil {
		return fmt.Errorf("map %q: sizes", text)
	}
	m.ValueSize, m.Entries = uint32(size), uint32(entries)
	for _, word := range words[4:] {
		if word == "readonly" {
			m.ReadOnly = true
			continue
		}
		var err error
		if m.Contents, err = hex.DecodeString(word); err != nil {
			return err
		}
	}
	f.Spec.Maps = append(f.Spec.Maps, m)
	return nil
}

// run reads: WORD=VALUE... => OUTCOME.
func (p *parser) run(f *Fact, line, text string) (err error) {
	if f.Spec.Instructions, err = isa.Decode(p.code); err != nil {
		return err
	}
	given, outcome, ok := strings.Cut(text, "=>")
	if !ok {
		return fmt.Errorf("run without =>")
	}
	r := Run{Line: line, Args: make(map[string]string), Details: make(map[string]string), Fuel: defaultFuel, Depth: defaultDepth}
	for _, word := range strings.Fields(given) {
		name, value, _ := strings.Cut(word, "=")
		if err := r.give(name, value); err != nil {
			return err
		}
	}
	words := strings.Fields(outcome)
	if len(words) == 0 {
		return fmt.Errorf("run without an outcome")
	}
	r.Want = words[0]
	for n, word := range words[1:] {
		name, value, ok := strings.Cut(word, "=")
		if !ok && r.Want == "fault" {
			name, value = "kind", word
		} else if !ok {
			r.Text = strings.Join(words[n+1:], " ")
			break
		}
		if _, twice := r.Details[name]; twice {
			return fmt.Errorf("%q twice", name)
		}
		r.Details[name] = value
	}
	f.Runs = append(f.Runs, r)
	return nil
}

// give reads one WORD=VALUE before the arrow.
func (r *Run) give(name, value string) (err error) {
	switch name {
	case "mem", "rom":
		r.ROM = name == "rom"
		r.Memory, err = hex.DecodeString(value)
	case "fuel":
		r.Fuel, err = strconv.ParseUint(value, 0, 64)
	case "depth":
		r.Depth, err = strconv.Atoi(value)
	case "core":
		r.Core, err = strconv.Atoi(value)
	case "r1", "r2", "r3", "r4", "r5":
		r.Args[name] = value
	default:
		return fmt.Errorf("%q is given to no run", name)
	}
	return err
}
