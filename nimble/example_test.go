package nimble_test

import (
	"encoding/binary"
	"errors"
	"fmt"
	"log"

	"margay/nimble"
	"margay/nimble/engine"
	"margay/nimble/engine/portable"
	"margay/nimble/memory"
	"margay/nimble/object"
	"margay/nimble/service"
)

// A program that returns the first word of its context, and faults if that is
// not there.
func Example() {
	services, err := service.NewTable(service.Linux()...)
	if err != nil {
		log.Fatal(err)
	}
	spec, err := object.Hex("79 10 00 00 00 00 00 00  95 00 00 00 00 00 00 00") // ldxdw r0, [r1]; exit
	if err != nil {
		log.Fatal(err)
	}
	x, err := nimble.Insert(spec, nimble.Options{Engine: portable.New(), Services: services})
	if err != nil {
		log.Fatal(err)
	}
	defer x.Close()

	context, err := memory.Map("context", 64)
	if err != nil {
		log.Fatal(err)
	}
	defer context.Close()
	binary.LittleEndian.PutUint64(context.Bytes(), 42)

	r0, err := x.Run(&nimble.Event{Context: context.Region(true)})
	fmt.Println(r0, err)

	_, err = x.Run(&nimble.Event{})
	var fault *engine.Fault
	if errors.As(err, &fault) {
		fmt.Printf("pc=%d kind=%s addr=%#x\n", fault.PC, fault.Kind, fault.Addr)
	}
	s := x.Stats()
	fmt.Println(s.Runs, "runs,", s.Instructions, "instructions,", s.Faults, "fault")
	// Output:
	// 42 <nil>
	// pc=0 kind=memory addr=0x0
	// 2 runs, 4 instructions, 1 fault
}
