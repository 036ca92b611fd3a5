// Command slots prints the table of slots as the page ext/SLOTS.md.
package main

import (
	"fmt"

	"margay/kernel/abi/slot"
)

func main() { fmt.Print(slot.Markdown()) }
