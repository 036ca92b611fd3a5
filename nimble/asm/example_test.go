package asm_test

import (
	"fmt"
	"log"
	"os"

	"margay/nimble/asm"
	"margay/nimble/isa"
	"margay/nimble/object"
)

// The sum of r2 bytes at r1, read and printed.
func Example() {
	program, err := asm.Parse(`
		next: jeq r2, 0, done
		      ldxb r3, [r1]
		      add r0, r3
		      add r1, 1
		      sub r2, 1
		      ja next
		done: exit`)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Printf("%x\n", isa.Encode(program[:1]))
	if err := asm.Print(os.Stdout, &object.Spec{Instructions: program}, asm.Notes{}); err != nil {
		log.Fatal(err)
	}
	// Output:
	// 1502050000000000
	// L0:
	//     jeq r2, 0, L6
	//     ldxb r3, [r1+0]
	//     add r0, r3
	//     add r1, 1
	//     sub r2, 1
	//     ja L0
	// L6:
	//     exit
}
