package isa_test

import (
	"fmt"
	"log"

	"margay/nimble/isa"
)

// An instruction as text, as bytes, and as the row of the table that declares it.
func Example() {
	i, err := isa.Parse("add r1, 42")
	if err != nil {
		log.Fatal(err)
	}
	op, err := i.Check()
	if err != nil {
		log.Fatal(err)
	}
	fmt.Printf("%v: % x, RFC 9669 section %s\n", i, isa.Encode([]isa.Instruction{i}), op.Row().Section)

	i.Dst = isa.FramePointer
	_, err = i.Check()
	fmt.Println(err)
	// Output:
	// add r1, 42: 07 01 00 00 2a 00 00 00, RFC 9669 section 4.1
	// add: field dst is 10, must be 0 to 9
}
