package stack

import (
	"encoding/binary"
	"time"
)

// The registers have DWARF's numbers: 0 to 16 on amd64, 0 to 31 on arm64. One more is the return
// address on amd64.
const maxRegisters = 32

// ruleKind says how the value that a register had in the caller is found.
type ruleKind int

const (
	ruleSame ruleKind = iota
	ruleUndefined
	ruleOffset    // at the canonical frame address and an offset
	ruleValOffset // that sum itself
	ruleRegister  // in another register
	ruleExpr      // at the address that an expression yields
	ruleValExpr   // the value of an expression
)

type rule struct {
	kind   ruleKind
	offset int64
	reg    uint64
	expr   []byte
}

// row is how the caller's registers are found at one place of a function.
type row struct {
	cfaReg    uint64 // the canonical frame address is this register and an offset
	cfaOffset int64
	cfaExpr   []byte // or the value of this expression
	rules     [maxRegisters]rule
}

// function is the call frame information of a function.
type function struct {
	codeAlign, dataAlign int64
	returns              uint64 // the register with the return address
	signal               bool   // it is what a signal handler returns to
	initial, own         []byte // instructions
	begin, size          uint64 // of its code in the process
}

// Bounds of call frame information.
const (
	maxEntry  = 64 << 10 // bytes of an entry of .eh_frame
	maxSteps  = 4096     // instructions of an entry
	maxStates = 16       // rows that are remembered
)

// lookUp finds the call frame information of the code at an address.
func (m *module) lookUp(mem reader, pc uint64) (*function, error) {
	if m.frameHdr == 0 {
		return m.scanned(mem, pc)
	}
	var head struct{ Version, Pointer, Count, Table uint8 }
	if err := readStruct(mem, m.frameHdr, &head); err != nil {
		return nil, err
	}
	// Linkers write these encodings alone: .eh_frame relative to its own place, a count of 32 bits,
	// and a table of pairs of 32 bits relative to this section.
	const dataRelS32 = 0x3b
	if head.Version != 1 || head.Pointer&encFormat != encS32 || head.Count != encU32 || head.Table != dataRelS32 {
		return nil, errFrame
	}
	var count uint32
	if err := readStruct(mem, m.frameHdr+8, &count); err != nil {
		return nil, err
	}
	table := m.frameHdr + 12
	if uint64(count) > (m.frameEnd-table)/8 {
		return nil, errFrame
	}
	low, high := uint64(0), uint64(count) // the entry is in [low, high)
	var pair [2]int32
	for low < high {
		middle := (low + high) / 2
		if err := readStruct(mem, table+middle*8, &pair); err != nil {
			return nil, err
		}
		if m.frameHdr+uint64(int64(pair[0])) <= pc {
			low = middle + 1
		} else {
			high = middle
		}
	}
	if low == 0 {
		return nil, errFrame
	}
	if err := readStruct(mem, table+(low-1)*8, &pair); err != nil {
		return nil, err
	}
	return readFunction(mem, m.frameHdr+uint64(int64(pair[1])), pc)
}

// readEntry reads an entry of .eh_frame at an address. id is 0 for a common one.
func readEntry(mem reader, addr uint64) (c *cursor, id, idAddr uint64, err error) {
	var size uint32
	if err := readStruct(mem, addr, &size); err != nil {
		return nil, 0, 0, err
	}
	if size < 4 || size > maxEntry {
		return nil, 0, 0, errFrame
	}
	data := make([]byte, size)
	if err := mem.read(addr+4, data); err != nil {
		return nil, 0, 0, err
	}
	c = &cursor{data: data, addr: addr + 4}
	return c, c.u32(), addr + 4, nil
}

// readFunction reads the entry of a function, and the common one that it refers to.
func readFunction(mem reader, addr, pc uint64) (*function, error) {
	c, id, at, err := readEntry(mem, addr)
	if err != nil {
		return nil, err
	}
	if id == 0 {
		return nil, errFrame
	}
	f := new(function)
	augmented, enc, err := f.common(mem, at-id)
	if err != nil {
		return nil, err
	}
	f.begin = c.pointer(enc)
	f.size = c.pointer(enc & encFormat)
	if augmented {
		c.take(c.uleb())
	}
	f.own = c.data
	if c.err != nil || pc-f.begin >= f.size {
		return nil, errFrame
	}
	return f, nil
}

// common reads a common entry.
func (f *function) common(mem reader, addr uint64) (augmented bool, enc uint64, err error) {
	c, id, _, err := readEntry(mem, addr)
	if err != nil {
		return false, 0, err
	}
	version, augmentation := c.u8(), ""
	if augmentation = c.text(); id != 0 || version != 1 && version != 3 {
		return false, 0, errFrame
	}
	f.codeAlign, f.dataAlign = int64(c.uleb()), c.sleb()
	if version == 1 {
		f.returns = c.u8()
	} else {
		f.returns = c.uleb()
	}
	if augmentation != "" && augmentation[0] == 'z' {
		augmented, augmentation = true, augmentation[1:]
		more := &cursor{addr: c.addr}
		size := c.uleb()
		more.addr = c.addr
		more.data = c.take(size)
		for _, letter := range augmentation {
			switch letter {
			case 'R':
				enc = more.u8()
			case 'P':
				more.pointer(more.u8() &^ encIndirect)
			case 'L':
				more.u8()
			case 'S':
				f.signal = true
			case 'B': // return addresses are signed with the second key
			default:
				return false, 0, errFrame
			}
		}
		if more.err != nil {
			return false, 0, errFrame
		}
	} else if augmentation != "" {
		return false, 0, errFrame
	}
	f.initial = c.data
	if c.err != nil || f.returns >= maxRegisters {
		return false, 0, errFrame
	}
	return augmented, enc, nil
}

// at returns the row for a place of the function.
func (f *function) at(pc uint64) (*row, error) {
	e := execution{f: f, loc: f.begin}
	if err := e.run(f.initial, pc); err != nil {
		return nil, err
	}
	e.first = e.row
	if err := e.run(f.own, pc); err != nil {
		return nil, err
	}
	return &e.row, nil
}

// execution is the execution of call frame instructions.
type execution struct {
	f          *function
	loc        uint64
	row, first row // first: after the instructions of the common entry
	states     []row
	steps      int
}

// Call frame instructions (DWARF 5, section 7.24). The first three have an operand in their low six
// bits.
const (
	cfaAdvance = 0x40
	cfaOffset  = 0x80
	cfaRestore = 0xc0

	cfaNop             = 0x00
	cfaSetLoc          = 0x01
	cfaAdvance1        = 0x02
	cfaAdvance2        = 0x03
	cfaAdvance4        = 0x04
	cfaOffsetExt       = 0x05
	cfaRestoreExt      = 0x06
	cfaUndefined       = 0x07
	cfaSame            = 0x08
	cfaRegister        = 0x09
	cfaRemember        = 0x0a
	cfaRecall          = 0x0b
	cfaDef             = 0x0c
	cfaDefRegister     = 0x0d
	cfaDefOffset       = 0x0e
	cfaDefExpression   = 0x0f
	cfaExpression      = 0x10
	cfaOffsetExtSF     = 0x11
	cfaDefSF           = 0x12
	cfaDefOffsetSF     = 0x13
	cfaValOffset       = 0x14
	cfaValOffsetSF     = 0x15
	cfaValExpression   = 0x16
	cfaNegateRAState   = 0x2d // arm64: return addresses are signed from here on; strip removes that
	cfaArgsSize        = 0x2e
	cfaNegativeOffsetX = 0x2f
)

// run executes instructions up to the place pc.
func (e *execution) run(code []byte, pc uint64) error {
	c := &cursor{data: code}
	for len(c.data) > 0 && c.err == nil {
		if e.steps++; e.steps > maxSteps {
			return errFrame
		}
		op := c.u8()
		low := op & 0x3f
		advance := int64(-1)
		switch op & 0xc0 {
		case cfaAdvance:
			advance = int64(low)
		case cfaOffset:
			e.set(low, rule{kind: ruleOffset, offset: int64(c.uleb()) * e.f.dataAlign})
		case cfaRestore:
			e.restore(low)
		default:
			switch op {
			case cfaAdvance1:
				advance = int64(c.u8())
			case cfaAdvance2:
				advance = int64(c.u16())
			case cfaAdvance4:
				advance = int64(c.u32())
			default:
				if err := e.plain(op, c); err != nil {
					return err
				}
			}
		}
		if advance >= 0 {
			if e.loc += uint64(advance * e.f.codeAlign); e.loc > pc {
				return c.err
			}
		}
	}
	return c.err
}

// plain executes an instruction that does not advance.
func (e *execution) plain(op uint64, c *cursor) error {
	align := e.f.dataAlign
	switch op {
	case cfaNop, cfaNegateRAState:
	case cfaOffsetExt:
		e.set(c.uleb(), rule{kind: ruleOffset, offset: int64(c.uleb()) * align})
	case cfaOffsetExtSF:
		e.set(c.uleb(), rule{kind: ruleOffset, offset: c.sleb() * align})
	case cfaNegativeOffsetX:
		e.set(c.uleb(), rule{kind: ruleOffset, offset: -int64(c.uleb()) * align})
	case cfaValOffset:
		e.set(c.uleb(), rule{kind: ruleValOffset, offset: int64(c.uleb()) * align})
	case cfaValOffsetSF:
		e.set(c.uleb(), rule{kind: ruleValOffset, offset: c.sleb() * align})
	case cfaRestoreExt:
		e.restore(c.uleb())
	case cfaUndefined:
		e.set(c.uleb(), rule{kind: ruleUndefined})
	case cfaSame:
		e.set(c.uleb(), rule{kind: ruleSame})
	case cfaRegister:
		e.set(c.uleb(), rule{kind: ruleRegister, reg: c.uleb()})
	case cfaExpression:
		e.set(c.uleb(), rule{kind: ruleExpr, expr: c.take(c.uleb())})
	case cfaValExpression:
		e.set(c.uleb(), rule{kind: ruleValExpr, expr: c.take(c.uleb())})
	case cfaRemember:
		if len(e.states) == maxStates {
			return errFrame
		}
		e.states = append(e.states, e.row)
	case cfaRecall:
		if len(e.states) == 0 {
			return errFrame
		}
		e.row = e.states[len(e.states)-1]
		e.states = e.states[:len(e.states)-1]
	case cfaDef:
		e.row.cfaReg, e.row.cfaOffset, e.row.cfaExpr = c.uleb(), int64(c.uleb()), nil
	case cfaDefSF:
		e.row.cfaReg, e.row.cfaOffset, e.row.cfaExpr = c.uleb(), c.sleb()*align, nil
	case cfaDefRegister:
		e.row.cfaReg = c.uleb()
	case cfaDefOffset:
		e.row.cfaOffset = int64(c.uleb())
	case cfaDefOffsetSF:
		e.row.cfaOffset = c.sleb() * align
	case cfaDefExpression:
		e.row.cfaExpr = c.take(c.uleb())
	case cfaArgsSize:
		c.uleb()
	default: // cfaSetLoc is not in .eh_frame
		return errFrame
	}
	return nil
}

// set notes a rule. It leaves out rules of registers that are not followed, such as vectors.
func (e *execution) set(reg uint64, r rule) {
	if reg < maxRegisters {
		e.row.rules[reg] = r
	}
}

func (e *execution) restore(reg uint64) {
	if reg < maxRegisters {
		e.row.rules[reg] = e.first.rules[reg]
	}
}

// Operations of DWARF expressions (DWARF 5, section 7.7.1) that compilers use in .eh_frame.
const (
	opDeref      = 0x06
	opConst1U    = 0x08
	opConst1S    = 0x09
	opConst2U    = 0x0a
	opConst2S    = 0x0b
	opConst4U    = 0x0c
	opConst4S    = 0x0d
	opConst8U    = 0x0e
	opConstU     = 0x10
	opConstS     = 0x11
	opDup        = 0x12
	opDrop       = 0x13
	opSwap       = 0x16
	opAnd        = 0x1a
	opMinus      = 0x1c
	opMul        = 0x1e
	opOr         = 0x21
	opPlus       = 0x22
	opPlusUConst = 0x23
	opShl        = 0x24
	opShr        = 0x25
	opEq         = 0x29
	opGe         = 0x2a
	opGt         = 0x2b
	opLe         = 0x2c
	opLt         = 0x2d
	opNe         = 0x2e
	opLit0       = 0x30
	opBReg0      = 0x70
	opNop        = 0x96
)

const maxOperands = 32

// evaluate computes a DWARF expression.
func evaluate(mem reader, regs *registers, code []byte, operands ...uint64) (uint64, error) {
	c := &cursor{data: code}
	pop := func() uint64 {
		if len(operands) == 0 {
			c.err = errFrame
			return 0
		}
		top := operands[len(operands)-1]
		operands = operands[:len(operands)-1]
		return top
	}
	push := func(v uint64) { operands = append(operands, v) }
	for steps := 0; len(c.data) > 0 && c.err == nil; steps++ {
		if steps > maxSteps || len(operands) > maxOperands {
			return 0, errFrame
		}
		switch op := c.u8(); {
		case op >= opLit0 && op < opLit0+32:
			push(op - opLit0)
		case op >= opBReg0 && op < opBReg0+maxRegisters:
			value, ok := regs.get(op - opBReg0)
			if !ok {
				return 0, errFrame
			}
			push(value + uint64(c.sleb()))
		case op == opConst1U:
			push(c.u8())
		case op == opConst1S:
			push(uint64(int64(int8(c.u8()))))
		case op == opConst2U:
			push(c.u16())
		case op == opConst2S:
			push(uint64(int64(int16(c.u16()))))
		case op == opConst4U:
			push(c.u32())
		case op == opConst4S:
			push(uint64(int64(int32(c.u32()))))
		case op == opConst8U:
			push(c.u64())
		case op == opConstU:
			push(c.uleb())
		case op == opConstS:
			push(uint64(c.sleb()))
		case op == opDup:
			v := pop()
			push(v)
			push(v)
		case op == opDrop:
			pop()
		case op == opSwap:
			a, b := pop(), pop()
			push(a)
			push(b)
		case op == opPlusUConst:
			push(pop() + c.uleb())
		case op == opDeref:
			var word [8]byte
			if err := mem.read(pop(), word[:]); err != nil {
				return 0, err
			}
			push(binary.LittleEndian.Uint64(word[:]))
		case op == opNop:
		default:
			b, a := pop(), pop()
			v, ok := binaryOp(op, a, b)
			if !ok {
				return 0, errFrame
			}
			push(v)
		}
	}
	value := pop()
	return value, c.err
}

// binaryOp computes an operation of two operands.
func binaryOp(op, a, b uint64) (value uint64, ok bool) {
	truth := func(is bool) (uint64, bool) {
		if is {
			return 1, true
		}
		return 0, true
	}
	switch op {
	case opAnd:
		return a & b, true
	case opOr:
		return a | b, true
	case opPlus:
		return a + b, true
	case opMinus:
		return a - b, true
	case opMul:
		return a * b, true
	case opShl:
		return a << min(b, 64), true
	case opShr:
		return a >> min(b, 64), true
	case opEq:
		return truth(a == b)
	case opNe:
		return truth(a != b)
	case opGe:
		return truth(int64(a) >= int64(b))
	case opGt:
		return truth(int64(a) > int64(b))
	case opLe:
		return truth(int64(a) <= int64(b))
	case opLt:
		return truth(int64(a) < int64(b))
	}
	return 0, false
}

// snapshot is a copy of part of a process's memory, before the memory itself.
type snapshot struct {
	addr uint64
	data []byte
	rest reader
}

func (s *snapshot) read(addr uint64, p []byte) error {
	if at := addr - s.addr; addr >= s.addr && at < uint64(len(s.data)) && uint64(len(p)) <= uint64(len(s.data))-at {
		copy(p, s.data[at:])
		return nil
	}
	return s.rest.read(addr, p)
}

// cachePage and maxPages bound what pages keeps.
const (
	cachePage = 4 << 10
	maxPages  = 1024
)

// pages keeps pages of memory that does not change: the same few are read for each frame. After a
// while there are none, so that a reader of much memory ends.
type pages struct {
	from  reader
	kept  map[uint64][]byte // by address; nil: it cannot be read
	until time.Time
}

func newPages(from reader, until time.Time) *pages {
	return &pages{from, make(map[uint64][]byte), until}
}

func (c *pages) read(addr uint64, p []byte) error {
	if time.Now().After(c.until) {
		return errMemory
	}
	for len(p) > 0 {
		base := addr &^ (cachePage - 1)
		page, ok := c.kept[base]
		if !ok {
			page = make([]byte, cachePage)
			if c.from.read(base, page) != nil {
				page = nil
			}
			if len(c.kept) == maxPages {
				clear(c.kept)
			}
			c.kept[base] = page
		}
		if page == nil {
			return errMemory
		}
		n := copy(p, page[addr-base:])
		p, addr = p[n:], addr+uint64(n)
	}
	return nil
}
