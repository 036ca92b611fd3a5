// Package messagetest tests extensions in slot message: it runs one on made-up messages, or one on
// each node of a made-up job.
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
	context *memory.Memory
	data    any // for services
}

// Insert inserts the one program of an object on an engine, with maps and variables as options say.
// It is removed when the test ends.
func Insert(t testing.TB, e engine.Engine, objectFile []byte, options nimble.Options) *Extension {
	t.Helper()
	specs, err := object.ELF(objectFile)
	if err != nil || len(specs) != 1 || specs[0].Slot() != string(slot.Message) {
		t.Fatalf("the object holds %d programs, or none for slot %s: %v", len(specs), slot.Message, err)
	}
	options.Engine = e
	if options.Services, err = service.NewTable(append(service.Linux(), services()...)...); err != nil {
		t.Fatal(err)
	}
	x := &Extension{t: t}
	if x.context, err = memory.Map("context", slot.MessageSize); err != nil {
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
	b := x.context.Bytes()
	for i, v := range [...]uint32{m.Job, m.SourceNode, m.SourceRank, m.TargetRank, m.Handler, m.Length} {
		binary.LittleEndian.PutUint32(b[4*i:], v)
	}
	for i, v := range m.Args {
		binary.LittleEndian.PutUint64(b[24+8*i:], v)
	}
	copy(b[40:], m.Data[:])
	r0, err := x.Run(&nimble.Event{Context: x.context.Region(true), Data: x.data})
	if err != nil {
		x.t.Fatalf("handler %d, %d bytes: %v", m.Handler, m.Length, err)
	}
	m.TargetRank = binary.LittleEndian.Uint32(b[12:])
	return slot.Verdict(r0)
}
