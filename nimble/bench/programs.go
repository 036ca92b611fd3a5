package bench

import (
	"embed"
	"encoding/binary"
	"fmt"
	"strings"
	"sync"

	"margay/nimble/asm"
	"margay/nimble/object"
	"margay/nimble/state"
	"margay/nimble/verify"
)

//go:embed programs/*.s
var files embed.FS

// Program is a program to be measured. Its services are those for conformance
// tests of package driver.
type Program struct {
	Name   string
	About  string
	Calls  int          // what it does a number of times in a run, see Call; 0: nothing
	Call   string       // what Calls counts
	Memory []byte       // what its memory holds
	Maps   []state.Spec // by index
	Rounds int32        // the constant in it that says how long it runs; 0: none
	Want   uint64       // r0

	text    int32 // what its text has for Rounds
	bounded int32 // Rounds of Bounded
	want    func(rounds int32) uint64
}

// Programs returns all programs, the same slice each time. They are made at the first call: what
// some of them must return takes milliseconds to compute.
var Programs = sync.OnceValue(func() []Program {
	all := unfinished()
	for i := range all {
		if p := &all[i]; p.want != nil {
			p.Want = p.want(p.Rounds)
		}
	}
	return all
})

// Names returns the names of all programs, without making them.
func Names() (names []string) {
	for _, p := range unfinished() {
		names = append(names, p.Name)
	}
	return names
}

// unfinished returns all programs. Those that compute for long lack what they must return.
func unfinished() []Program {
	return []Program{
		long("mod", "sum of i*i mod 97 for i up to 1,000,000", 1_000_000, 10_000, squares),
		long("alu", "a million rounds of arithmetic without division or memory", 1_000_000, 10_000, arithmetic),
		long("primes", "primes up to 10,000 by trial division", 10_000, 500, primes),
		{Name: "checksum", About: "16-bit ones-complement sum of 1500 bytes", Memory: packet(), Want: checksum(packet())},
		{Name: "checksum-map", About: "the same with bounds that can be proved", Want: checksum(packet()),
			Maps: []state.Spec{{Name: "packet", ValueSize: 1500, Entries: 1, Contents: packet()}}},
		{Name: "pick", About: "the largest of four numbers", Calls: 1, Call: "call from Go", Want: 2,
			Memory: []byte{3, 0, 0, 0, 9, 0, 0, 0, 12, 0, 0, 0, 5, 0, 0, 0}},
		{Name: "service", About: "100,000 calls of a service", Calls: 100_000, Call: "service call", Want: 100_000 * 100_001 / 2},
		{Name: "hash", About: "256 keys looked up in a hash table", Calls: 256, Call: "lookup", Want: 7 * 256 * 257 / 2,
			Maps: []state.Spec{{Name: "table", ValueSize: slotSize, Entries: slots, Contents: table(256)}}},
		{Name: "message", About: "a handler of 64-byte messages", Calls: 1, Call: "message", Memory: message(), Want: 111111,
			Maps: []state.Spec{{Name: "handlers", ValueSize: 24, Entries: 8}}},
		{Name: "histogram", About: "1024 numbers counted in 256 counters, at places that nothing proves", Want: sum(numbersOfHistogram()), Memory: numbersOfHistogram(),
			Maps: []state.Spec{{Name: "bins", ValueSize: 4, Entries: 256}}},
		{Name: "chase", About: "a list of 1024 elements, at places that nothing proves", Want: elements * (elements + 1) / 2,
			Maps: []state.Spec{{Name: "list", ValueSize: elementSize, Entries: elements, Contents: chain()}}},
		{Name: Straight, About: "instructions in a row, for the time of insertion", Memory: []byte{3, 0, 0, 0}, Want: 3},
	}
}

// Straight is the program that the time of insertion is measured with, and
// StraightLength the number of its instructions.
const (
	Straight       = "straight"
	StraightLength = 1001
)

// long describes a program that has a loop of so many rounds, or of fewer where
// that is too long. Its Want is not computed.
func long(name, about string, rounds, bounded int32, want func(int32) uint64) Program {
	return Program{Name: name, About: about, Rounds: rounds, text: rounds, bounded: bounded, want: want}
}

// Find returns the program of a name.
func Find(name string) (*Program, error) {
	all := Programs()
	for i := range all {
		if all[i].Name == name {
			return &all[i], nil
		}
	}
	return nil, fmt.Errorf("there is no program %q", name)
}

// Bounded returns the program with fewer rounds, for verifiers that must prove the end of a loop. A
// program without rounds is returned as it is.
func (p *Program) Bounded() *Program {
	if p.Rounds == 0 {
		return p
	}
	bounded := *p
	bounded.Rounds, bounded.Want = p.bounded, p.want(p.bounded)
	return &bounded
}

// Context returns the guarantees about its context.
func (p *Program) Context() verify.Context {
	any := len(p.Memory) > 0
	return verify.Context{Size: uint64(len(p.Memory)), Readable: any, Writable: any}
}

// Spec returns the program as it is inserted.
func (p *Program) Spec() (*object.Spec, error) {
	text, err := p.source()
	if err != nil {
		return nil, err
	}
	program, err := asm.Parse(text)
	if err != nil {
		return nil, fmt.Errorf("program %s: %w", p.Name, err)
	}
	if p.Rounds != p.text {
		for slot := range program {
			if i := &program[slot]; i.Imm == p.text {
				i.Imm = p.Rounds
			}
		}
	}
	return &object.Spec{Name: p.Name, Instructions: program, Maps: p.Maps}, nil
}

// source returns the text of the program.
func (p *Program) source() (string, error) {
	if p.Name == Straight {
		return strings.Repeat("ldxw r0, [r1]\njle r0, r2, +1\nadd r0, r2\nstxdw [r10-8], r0\n", StraightLength/4) + "exit", nil
	}
	text, err := files.ReadFile("programs/" + p.Name + ".s")
	return string(text), err
}

// squares is what mod computes.
func squares(rounds int32) (sum uint64) {
	for n := uint64(rounds); n > 0; n-- {
		sum += n * n % 97
	}
	return sum
}

// arithmetic is what alu computes.
func arithmetic(rounds int32) (x uint64) {
	for n := uint64(rounds); n > 0; n-- {
		x = (x+3^n)<<1 + n
	}
	return x
}

// primes is what primes computes.
func primes(limit int32) (count uint64) {
	for n := int32(2); n <= limit; n++ {
		divisor := int32(2)
		for divisor*divisor <= n && n%divisor != 0 {
			divisor++
		}
		if divisor*divisor > n {
			count++
		}
	}
	return count
}

// packet returns the 1500 bytes that checksum adds up.
func packet() []byte {
	b := make([]byte, 1500)
	for i := range b {
		b[i] = byte(i * 7)
	}
	return b
}

// checksum is what checksum computes.
func checksum(b []byte) (sum uint64) {
	for i := 0; i < len(b); i += 2 {
		sum += uint64(b[i]) | uint64(b[i+1])<<8
	}
	for sum > 0xffff {
		sum = sum&0xffff + sum>>16
	}
	return sum
}

// The hash table of kernel/abi/slot/margay_hash.h with keys of 8 bytes: slots, and
// the size of one.
const (
	slots    = 1024
	slotSize = 24
)

// table returns a hash table of the keys 1 to n, each with seven times itself
// as its value.
func table(n uint64) []byte {
	t := make([]byte, slots*slotSize)
	for key := uint64(1); key <= n; key++ {
		h := key * 0x9e3779b97f4a7c15
		h ^= h >> 29
		at := h ^ h>>32
		for binary.LittleEndian.Uint32(t[at%slots*slotSize:]) != 0 {
			at++
		}
		slot := t[at%slots*slotSize:]
		binary.LittleEndian.PutUint32(slot, 8)
		binary.LittleEndian.PutUint64(slot[8:], 7*key)
		binary.LittleEndian.PutUint64(slot[16:], key)
	}
	return t
}

// numbersOfHistogram returns the 16-bit numbers that histogram counts, each less
// than 256.
func numbersOfHistogram() []byte {
	b := make([]byte, 2048)
	for i := range len(b) / 2 {
		b[2*i] = byte(i * i * 37 >> 3)
	}
	return b
}

// sum adds 16-bit numbers up.
func sum(b []byte) (total uint64) {
	for i := 0; i < len(b); i += 2 {
		total += uint64(b[i]) | uint64(b[i+1])<<8
	}
	return total
}

// The list of chase: how many elements it has, and the size of one.
const (
	elements    = 1024
	elementSize = 16
)

// chain returns a list of all elements, which are in steps of 389 and have the
// values 1, 2 and so on.
func chain() []byte {
	b := make([]byte, elements*elementSize)
	at := uint64(0)
	for n := uint64(1); n <= elements; n++ {
		next := (at + 389) % elements
		binary.LittleEndian.PutUint64(b[at*elementSize:], next*elementSize)
		binary.LittleEndian.PutUint64(b[at*elementSize+8:], n)
		at = next
	}
	return b
}

// message returns a message for handler 3: words 1, 10 and so on to 100,000.
func message() []byte {
	b := binary.LittleEndian.AppendUint32(nil, 3)
	b = binary.LittleEndian.AppendUint32(b, 48)
	b = binary.LittleEndian.AppendUint64(b, 5)
	for word := uint64(1); word <= 100_000; word *= 10 {
		b = binary.LittleEndian.AppendUint64(b, word)
	}
	return b
}
