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

	"margay/kernel/abi/id"
	"margay/kernel/extension"
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
	symbolHandle = "handled"
	symbolIsOf   = "is_of"
	symbolJudge  = "judge"
	mapPeers     = "peers"
	mapStates    = "states"
	mapContexts  = "contexts"
	mapTallies   = "tallies"
	mapWalks     = "walks"
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

	job     id.Job // whose messages it sees; extension.Machine: all
	handles bool   // it is in slot message
}

// build loads the skeleton's program with these extensions in the place of its chain. untrusted:
// Linux also proves that none turns an address into a number.
func build(maps map[string]*ebpf.Map, parts []part, untrusted bool) (p *ebpf.Program, err error) {
	all, err := readSpec()
	if err != nil {
		return nil, err
	}
	spec := all.Programs[programName]
	if spec.Instructions, err = splice(spec.Instructions, parts, all.Maps[mapContexts].Value); err != nil {
		return nil, err
	}
	for name, m := range maps {
		if err := spec.Instructions.AssociateMap(name, m); err != nil && !errors.Is(err, asm.ErrUnreferencedSymbol) {
			return nil, err
		}
	}
	load := func() (err error) {
		// Without the verifier's steps, which are long: it verifies the extensions last.
		p, err = ebpf.NewProgramWithOptions(spec, ebpf.ProgramOptions{LogLevel: ebpf.LogLevelStats})
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
// the extensions' functions. The first one of each is global: Linux verifies it once, for any
// context, and not on each way to its call.
func splice(program asm.Instructions, parts []part, context btf.Type) (asm.Instructions, error) {
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
	out := reached(slices.Concat(program[:start], code, program[end:]))
	proto := function.Type.(*btf.FuncProto)
	entry := &btf.FuncProto{Return: proto.Return, Params: []btf.FuncParam{{Name: "context", Type: &btf.Pointer{Target: context}}}}
	for n, p := range parts {
		// Linux does not know that no caller passes a null pointer.
		code := append(asm.Instructions{asm.JNE.Imm(asm.R1, 0, ""), asm.Mov.Imm(asm.R0, 0), asm.Return()}, p.code...)
		code[0].Offset = 2
		for i, at := range p.starts {
			described := &btf.Func{Name: fmt.Sprintf("extension_%d_%d", n, i), Type: proto, Linkage: btf.StaticFunc}
			if at += 3; i == 0 {
				at, described.Type, described.Linkage = 0, entry, btf.GlobalFunc
			}
			code[at] = btf.WithFuncMetadata(code[at].WithSymbol(described.Name), described).WithSource(first.Source())
		}
		out = append(out, code...)
	}
	return out, nil
}

// reached returns the functions of the skeleton that its first one can reach: Linux refuses others,
// which such a chain does not need.
func reached(program asm.Instructions) (out asm.Instructions) {
	functions := make(map[string]asm.Instructions)
	var order []string
	for at := 0; at < len(program); {
		end := at + 1
		for end < len(program) && btf.FuncMetadata(&program[end]) == nil {
			end++
		}
		name := program[at].Symbol()
		functions[name], order = program[at:end], append(order, name)
		at = end
	}
	known := map[string]bool{order[0]: true}
	for queue := []string{order[0]}; len(queue) > 0; queue = queue[1:] {
		for _, i := range functions[queue[0]] {
			if to := i.Reference(); functions[to] != nil && !known[to] {
				known[to] = true
				queue = append(queue, to)
			}
		}
	}
	for _, name := range order {
		if known[name] {
			out = append(out, functions[name]...)
		}
	}
	return out
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
		if p.handles && (n == 0 || !parts[n-1].handles) {
			code = append(code,
				asm.Mov.Reg(asm.R1, chainMessage), asm.Mov.Reg(asm.R2, chainPacket),
				call(symbolHandle),
				asm.JEq.Imm(asm.R0, 0, "passed"),
			)
		}
		if p.job != extension.Machine {
			code = append(code,
				asm.Mov.Reg(asm.R1, chainMessage), asm.Mov.Imm(asm.R2, int32(p.job)),
				call(symbolIsOf),
				asm.JEq.Imm(asm.R0, 0, next),
			)
		}
		code = append(code,
			asm.LoadMapValue(asm.R1, p.tally, 0),
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
	code = append(code, asm.Mov.Imm(asm.R0, 0).WithSymbol("passed"))
	return append(code, asm.Return().WithSymbol("stopped"))
}
