package border

import (
	"bytes"
	_ "embed"
	"errors"
	"fmt"
	"slices"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/btf"

	"margay/nimble/engine/linux"
)

// skeletonObject is the compiled skeleton.c.
//
//go:embed skeleton.o
var skeletonObject []byte

// Names in skeleton.c.
const (
	programName  = "border"
	symbolChain  = "chain"
	symbolBegin  = "begin"
	symbolJudge  = "judge"
	mapPeers     = "peers"
	mapStates    = "states"
	mapContexts  = "contexts"
	mapTallies   = "tallies"
	chainMessage = 6 // registers of the chain: its arguments
	chainPacket  = 7
)

// readSpec reads the object.
func readSpec() (*ebpf.CollectionSpec, error) {
	return ebpf.LoadCollectionSpecFromReader(bytes.NewReader(skeletonObject))
}

// part is an extension in a chain.
type part struct {
	code   asm.Instructions
	starts []int // indices in code at which its functions begin
	tally  int   // descriptor of the map with its struct tally
}

// build loads the skeleton's program with these extensions in the place of its chain. untrusted:
// Linux also proves that none turns an address into a number.
func build(maps map[string]*ebpf.Map, parts []part, untrusted bool) (p *ebpf.Program, err error) {
	all, err := readSpec()
	if err != nil {
		return nil, err
	}
	spec := all.Programs[programName]
	if spec.Instructions, err = splice(spec.Instructions, parts); err != nil {
		return nil, err
	}
	for name, m := range maps {
		if err := spec.Instructions.AssociateMap(name, m); err != nil && !errors.Is(err, asm.ErrUnreferencedSymbol) {
			return nil, err
		}
	}
	load := func() (err error) {
		p, err = ebpf.NewProgram(spec)
		return err
	}
	if untrusted {
		err = linux.WithoutLeaks(load)
	} else {
		err = load()
	}
	if err != nil {
		return nil, fmt.Errorf("refused by Linux: %w", linux.Refusal(err))
	}
	return p, nil
}

// splice replaces the function chain of a program by one that asks these extensions, and appends
// the extensions' functions.
func splice(program asm.Instructions, parts []part) (asm.Instructions, error) {
	start := slices.IndexFunc(program, func(i asm.Instruction) bool { return i.Symbol() == symbolChain })
	if start < 0 {
		return nil, fmt.Errorf("the skeleton has no function %s", symbolChain)
	}
	end := start + 1
	for end < len(program) && program[end].Symbol() == "" {
		end++
	}
	first := program[start]
	function, code := btf.FuncMetadata(&first), chainCode(parts)
	code[0] = btf.WithFuncMetadata(code[0].WithSymbol(symbolChain), function).WithSource(first.Source())
	out := slices.Concat(program[:start], code, program[end:])
	for n, p := range parts {
		for i, at := range p.starts {
			described := &btf.Func{Name: fmt.Sprintf("extension_%d_%d", n, i), Type: function.Type, Linkage: btf.StaticFunc}
			p.code[at] = btf.WithFuncMetadata(p.code[at].WithSymbol(described.Name), described).WithSource(first.Source())
		}
		out = append(out, p.code...)
	}
	return out, nil
}

// chainCode returns the function that asks the extensions: u64 chain(struct walk *w, struct
// margay_packet *p).
func chainCode(parts []part) asm.Instructions {
	call := func(name string) asm.Instruction {
		op := asm.OpCode(asm.JumpClass).SetJumpOp(asm.Call)
		return asm.Instruction{OpCode: op, Src: asm.PseudoCall, Constant: -1}.WithReference(name)
	}
	code := asm.Instructions{asm.Mov.Reg(chainMessage, asm.R1), asm.Mov.Reg(chainPacket, asm.R2)}
	for n, p := range parts {
		next := fmt.Sprintf("next_%d", n)
		code = append(code,
			asm.Mov.Reg(asm.R1, chainMessage), asm.Mov.Reg(asm.R2, chainPacket), asm.LoadMapValue(asm.R3, p.tally, 0),
			call(symbolBegin),
			asm.JEq.Imm(asm.R0, 0, next),
			asm.Mov.Reg(asm.R1, chainPacket),
			call(fmt.Sprintf("extension_%d_0", n)),
			asm.Mov.Reg(asm.R1, chainMessage), asm.Mov.Reg(asm.R2, chainPacket), asm.LoadMapValue(asm.R3, p.tally, 0), asm.Mov.Reg(asm.R4, asm.R0),
			call(symbolJudge),
			asm.JNE.Imm(asm.R0, 0, "stopped"),
			asm.Mov.Imm(asm.R0, 0).WithSymbol(next),
		)
	}
	code = append(code, asm.Mov.Imm(asm.R0, 0))
	return append(code, asm.Return().WithSymbol("stopped"))
}
