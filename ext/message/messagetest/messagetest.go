// Package messagetest tests extensions in the slots message and packet: it runs one on made-up
// messages, or one for slot message on each node of a made-up job.
package messagetest

import (
	"encoding/binary"
	"testing"

	"margay/kernel/abi/slot"
	"margay/nimble"
	"margay/nimble/engine"
	"margay/nimble/memory"
	"margay/nimble/object"
	"margay/nimble/service"
)

// Extension is an extension inserted for a test. It is not safe for concurrent use.
type Extension struct {
	*nimble.Extension
	t       testing.TB
	slot    slot.Name
	context *memory.Memory
	data    any // for services
}

// Insert inserts the one program of an object on an engine, with maps and variables as options say.
// It is removed when the test ends.
func Insert(t testing.TB, e engine.Engine, objectFile []byte, options nimble.Options) *Extension {
	t.Helper()
	specs, err := object.ELF(objectFile)
	if err != nil || len(specs) != 1 {
		t.Fatalf("the object holds %d programs: %v", len(specs), err)
	}
	options.Engine = e
	if options.Services, err = service.NewTable(append(service.Linux(), services()...)...); err != nil {
		t.Fatal(err)
	}
	x := &Extension{t: t, slot: slot.Name(specs[0].Slot())}
	if x.context, err = memory.Map("context", slot.PacketSize); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { x.context.Close() })
	if x.Extension, err = nimble.Insert(specs[0], options); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { x.Close() })
	return x
}

// Ask runs the extension on a message and returns its verdict. The target rank is then the
// extension's.
func (x *Extension) Ask(m *slot.MessageContext) slot.Verdict {
	x.t.Helper()
	return x.ask(slot.Message, slot.MessageSize, m)
}

// Inspect runs the extension in slot packet on a message and returns its verdict.
func (x *Extension) Inspect(p *slot.PacketContext) slot.Verdict {
	x.t.Helper()
	b := x.context.Bytes()[slot.MessageSize:]
	binary.LittleEndian.PutUint32(b, p.FromNode)
	binary.LittleEndian.PutUint32(b[4:], p.Hops)
	return x.ask(slot.Packet, slot.PacketSize, &p.Message)
}

// ask runs the extension in a slot.
func (x *Extension) ask(name slot.Name, size uint64, m *slot.MessageContext) slot.Verdict {
	x.t.Helper()
	if x.slot != name {
		x.t.Fatalf("the extension is for slot %s, not %s", x.slot, name)
	}
	b := x.context.Bytes()
	for i, v := range [...]uint32{m.Job, m.SourceNode, m.SourceRank, m.TargetRank, m.Handler, m.Length} {
		binary.LittleEndian.PutUint32(b[4*i:], v)
	}
	for i, v := range m.Args {
		binary.LittleEndian.PutUint64(b[24+8*i:], v)
	}
	copy(b[40:], m.Data[:])
	binary.LittleEndian.PutUint64(b[40+slot.MaxMessage:], m.Total)
	context := x.context.Region(true)
	context.Length = size
	r0, err := x.Run(&nimble.Event{Context: context, Data: x.data})
	if err != nil {
		x.t.Fatalf("handler %d, %d bytes: %v", m.Handler, m.Length, err)
	}
	m.TargetRank = binary.LittleEndian.Uint32(b[12:])
	return slot.Verdict(r0)
}
