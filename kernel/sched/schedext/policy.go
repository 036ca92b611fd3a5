package schedext

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/btf"

	"margay/kernel/abi/id"
	"margay/kernel/abi/slot"
	"margay/kernel/sched"
	"margay/nimble"
	"margay/nimble/engine/linux"
	"margay/nimble/memory"
	"margay/nimble/state"
)

// loaded is a policy with its maps in Linux.
type loaded struct {
	*sched.Policy
	part   *linux.Part
	shared []*linux.Map             // by index of the map; nil for a per-core map
	own    map[id.Core][]*linux.Map // per-core maps, by core
	kept   map[id.Core]*keeping     // by core
	users  int                      // number of chains that contain it
	runs   uint64                   // reported so far
	time   time.Duration            // of the reported runs
}

// It reports the runs since its last call. The caller holds Enforcer.loading.
func (l *loaded) tell() {
	var runs uint64
	var took time.Duration
	for _, k := range l.kept {
		runs += k.all[0].Runs
		took += time.Duration(k.all[0].Time)
	}
	if runs != l.runs {
		l.Ran(runs-l.runs, took-l.time)
		l.runs, l.time = runs, took
	}
}

// policyState is a policy in a chain with the state of its tasks.
type policyState struct {
	*loaded
	rescues int
}

// chain is the list of policies of a core, with their program.
type chain struct {
	epoch   uint32
	list    []*policyState
	program *ebpf.Program
}

// has reports whether the chain consists of these policies, in this order.
func (c *chain) has(policies []*sched.Policy) bool {
	if c == nil {
		return len(policies) == 0
	}
	return slices.EqualFunc(c.list, policies, func(j *policyState, p *sched.Policy) bool { return j.Handle == p.Handle })
}

// policy returns the policy that an event is about, nil if the chain has been replaced.
func (c *chain) policy(epoch, who uint32) *policyState {
	if c == nil || c.epoch != epoch || int(who) >= len(c.list) {
		return nil
	}
	return c.list[who]
}

// SetPolicies implements sched.Enforcer. After an error the previous policies stay in force.
func (e *Enforcer) SetPolicies(number id.Core, policies []*sched.Policy) error {
	e.loading.Lock()
	defer e.loading.Unlock()
	c, err := e.coreFor(number)
	if err == nil {
		err = e.setPolicies(c, policies)
	}
	return err
}

// coreFor returns the core with this number, or an error if the enforcer is not usable.
func (e *Enforcer) coreFor(number id.Core) (*core, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if err := e.usable(); err != nil {
		return nil, err
	}
	return e.core(number), nil
}

// setPolicies is SetPolicies for a core. It does not load policies again that decide already, which
// would take long. The caller holds Enforcer.loading.
func (e *Enforcer) setPolicies(c *core, policies []*sched.Policy) error {
	if c.chain.has(policies) {
		return nil
	}
	next, err := e.chain(c, policies)
	if err != nil {
		return fmt.Errorf("sched_ext: core %d: %w", c.number, err)
	}
	last, err := e.replace(c, next)
	if err != nil {
		return errors.Join(fmt.Errorf("sched_ext: core %d: %w", c.number, err), e.drop(next))
	}
	return e.drop(last)
}

// replace puts a chain in force and returns the previous one.
func (e *Enforcer) replace(c *core, next *chain) (last *chain, err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if err := e.usable(); err != nil {
		return nil, err
	}
	last, c.chain = c.chain, next
	if c.cpu < 0 {
		return last, nil
	}
	var program *ebpf.Program
	if next != nil {
		program = next.program
	}
	if err := e.skeleton.setPolicy(c.cpu, program); err != nil {
		c.chain = last
		return nil, err
	}
	e.count(c)
	e.signal(c, changed)
	return last, nil
}

// chain loads policies into Linux as the chain of a core. It removes policies that Linux refuses,
// and returns nil if none is left. The caller holds Enforcer.loading.
func (e *Enforcer) chain(c *core, policies []*sched.Policy) (*chain, error) {
	e.epoch++
	next := &chain{epoch: e.epoch}
	for _, p := range policies {
		l, err := e.load(p, c.number)
		if err != nil {
			refuse(p, err)
			continue
		}
		l.users++
		j := &policyState{loaded: l}
		if c.chain != nil { // a policy of the previous chain keeps its count of rescues
			if i := slices.IndexFunc(c.chain.list, func(j *policyState) bool { return j.Handle == p.Handle }); i >= 0 {
				j.rescues = c.chain.list[i].rescues
			}
		}
		next.list = append(next.list, j)
	}
	for len(next.list) > 0 {
		err := e.build(next, c.number)
		if err == nil {
			return next, nil
		}
		// Linux has accepted the others before.
		newest := slices.MaxFunc(next.list, func(a, b *policyState) int { return cmp.Compare(a.Handle, b.Handle) })
		refuse(newest.Policy, err)
		next.list = slices.DeleteFunc(next.list, func(j *policyState) bool { return j == newest })
		if err := e.unuse(newest); err != nil {
			return nil, errors.Join(err, e.drop(next))
		}
	}
	return nil, nil
}

// refuse removes a policy that Linux does not accept.
func refuse(p *sched.Policy, err error) { p.Remove(fmt.Sprintf("sched_ext does not take it: %v", err)) }

// drop closes a chain, and policies that are then in no chain. The caller holds Enforcer.loading.
func (e *Enforcer) drop(c *chain) error {
	if c == nil {
		return nil
	}
	var errs []error
	if c.program != nil {
		errs = append(errs, c.program.Close())
	}
	for _, j := range c.list {
		errs = append(errs, e.unuse(j))
	}
	return errors.Join(errs...)
}

// unuse closes a policy after its removal from a chain, if that was the last one. The caller holds
// Enforcer.loading.
func (e *Enforcer) unuse(j *policyState) error {
	if j.users--; j.users > 0 {
		return nil
	}
	delete(e.loaded, j.Handle)
	return j.close()
}

// load makes the maps of a policy for a core in Linux.
func (e *Enforcer) load(p *sched.Policy, core id.Core) (*loaded, error) {
	l := e.loaded[p.Handle]
	if l == nil {
		program, err := nimble.Verify(p.Spec, p.Insert)
		if err != nil {
			return nil, err
		}
		if size := program.Context().Size; size != slot.SchedSize {
			return nil, fmt.Errorf("it was verified for a context of %d bytes, not %d", size, slot.SchedSize)
		}
		part, err := linux.NewPart(program)
		if err != nil {
			return nil, err
		}
		l = &loaded{Policy: p, part: part, own: make(map[id.Core][]*linux.Map), kept: make(map[id.Core]*keeping)}
		l.shared = make([]*linux.Map, len(part.Program().Maps()))
	}
	if l.kept[core] == nil {
		if err := l.enter(core); err != nil {
			if l.users == 0 {
				err = errors.Join(err, l.close())
			}
			return nil, err
		}
	}
	e.loaded[p.Handle] = l
	return l, nil
}

// enter makes the maps of a policy for one more core.
func (l *loaded) enter(core id.Core) error {
	own := l.own[core] // not nil if enter has failed before
	if own == nil {
		own = make([]*linux.Map, len(l.shared))
		l.own[core] = own
	}
	for i, spec := range l.part.Program().Maps() {
		at := &l.shared[i]
		if spec.Kind == state.PerCore {
			at = &own[i]
		}
		if *at != nil {
			continue
		}
		contents, _ := l.contents(spec, core)
		m, err := l.part.NewMap(i, contents)
		if err != nil {
			return err
		}
		*at = m
	}
	k, err := newKeeping()
	if err != nil {
		return err
	}
	l.kept[core] = k
	return nil
}

// contents returns the initial contents of a map on a core. given says whether they are memory of
// the extension, to which close can copy the map back.
func (l *loaded) contents(spec state.Spec, core id.Core) (b []byte, given bool) {
	if m := l.Insert.Maps[spec.Name].Memory; m != nil {
		if m, err := state.New(spec, state.Options{Cores: max(l.Insert.Cores, 1), Memory: m}); err == nil {
			if first, ok := m.Element(int(core), 0); ok {
				return memory.View(first, spec.Length()), true
			}
		}
	}
	return spec.Contents, false
}

// maps returns the maps that a policy has on a core.
func (l *loaded) maps(core id.Core) []*linux.Map {
	all := slices.Clone(l.shared)
	for i, m := range l.own[core] {
		if m != nil {
			all[i] = m
		}
	}
	return all
}

// close copies the maps of a trusted policy back to their memory, and closes all maps. Maps of
// other policies may hold kernel addresses, and ranks can see that memory.
func (l *loaded) close() error {
	l.tell()
	var errs []error
	give := func(i int, core id.Core, m *linux.Map) {
		if m == nil {
			return
		}
		if b, memory := l.contents(l.part.Program().Maps()[i], core); memory && l.part.Program().Trusted() {
			errs = append(errs, m.Read(b))
		}
		errs = append(errs, m.Close())
	}
	for i, m := range l.shared {
		give(i, 0, m)
	}
	for core, own := range l.own {
		for i, m := range own {
			give(i, core, m)
		}
	}
	for _, k := range l.kept {
		errs = append(errs, k.Close())
	}
	return errors.Join(errs...)
}

// build makes the program of a chain: a copy of the skeleton's, with the policies spliced in.
func (e *Enforcer) build(c *chain, core id.Core) error {
	spec := e.skeleton.policy.Copy()
	var parts []part
	for _, j := range c.list {
		code, starts, err := j.part.Functions(j.maps(core), uint32(core))
		if err != nil {
			return err
		}
		parts = append(parts, part{code: code, starts: starts, kept: j.kept[core].FD()})
	}
	var err error
	if spec.Instructions, err = splice(spec.Instructions, c.epoch, parts); err != nil {
		return err
	}
	for name, m := range e.skeleton.collection.Maps {
		if err := spec.Instructions.AssociateMap(name, m); err != nil && !errors.Is(err, asm.ErrUnreferencedSymbol) {
			return err
		}
	}
	collection, err := enter(&ebpf.CollectionSpec{Programs: map[string]*ebpf.ProgramSpec{spec.Name: spec}})
	if err != nil {
		return fmt.Errorf("refused by Linux, as a chain: %w", linux.Refusal(err))
	}
	defer collection.Close()
	c.program = collection.DetachProgram(spec.Name)
	return nil
}

// part is a policy in a chain.
type part struct {
	code   asm.Instructions
	starts []int // indices in code at which its functions begin
	kept   int   // descriptor of its struct keep
}

// Names in skeleton.c.
const (
	symbolChain = "chain"
	symbolAsk   = "ask"
	symbolJudge = "judge"
)

// splice replaces the function chain of a program by one that asks these policies, and appends the
// policies' functions.
func splice(program asm.Instructions, epoch uint32, parts []part) (asm.Instructions, error) {
	start := slices.IndexFunc(program, func(i asm.Instruction) bool { return i.Symbol() == symbolChain })
	if start < 0 {
		return nil, fmt.Errorf("the skeleton has no function %s", symbolChain)
	}
	end := start + 1
	for end < len(program) && program[end].Symbol() == "" {
		end++
	}
	first := program[start]
	function, code := btf.FuncMetadata(&first), chainCode(epoch, parts)
	code[0] = btf.WithFuncMetadata(code[0].WithSymbol(symbolChain), function).WithSource(first.Source())
	out := slices.Concat(program[:start], code, program[end:])
	for n, p := range parts {
		for i, at := range p.starts {
			described := &btf.Func{Name: fmt.Sprintf("policy_%d_%d", n, i), Type: function.Type, Linkage: btf.StaticFunc}
			p.code[at] = btf.WithFuncMetadata(p.code[at].WithSymbol(described.Name), described).WithSource(first.Source())
		}
		out = append(out, p.code...)
	}
	return out, nil
}

// chainCode returns the function that asks the policies: u64 chain(struct margay_sched *s, u64
// cpu).
func chainCode(epoch uint32, parts []part) asm.Instructions {
	call := func(name string) asm.Instruction {
		op := asm.OpCode(asm.JumpClass).SetJumpOp(asm.Call)
		return asm.Instruction{OpCode: op, Src: asm.PseudoCall, Constant: -1}.WithReference(name)
	}
	code := asm.Instructions{asm.Mov.Reg(asm.R6, asm.R1), asm.Mov.Reg(asm.R7, asm.R2)}
	for n, p := range parts {
		code = append(code,
			asm.Mov.Reg(asm.R1, asm.R6), asm.Mov.Reg(asm.R2, asm.R7), asm.LoadMapValue(asm.R3, p.kept, 0),
			call(symbolAsk),
			asm.Mov.Reg(asm.R1, asm.R6),
			call(fmt.Sprintf("policy_%d_0", n)),
			asm.Mov.Reg(asm.R1, asm.R6), asm.Mov.Reg(asm.R2, asm.R7), asm.LoadMapValue(asm.R3, p.kept, 0),
			asm.Mov.Reg(asm.R4, asm.R0), asm.LoadImm(asm.R5, int64(epoch)<<32|int64(n), asm.DWord),
			call(symbolJudge),
			asm.JNE.Imm(asm.R0, none, "decided"),
		)
	}
	return append(code, asm.Return().WithSymbol("decided"))
}
