// Command features prints docs/features.txt, the table of features, as the page docs/features.md.
package main

import (
	"fmt"
	"os"

	"margay/tools/features/table"
)

func main() {
	text, err := os.ReadFile("docs/features.txt")
	if err == nil {
		var t table.Table
		if t, err = table.Parse(string(text)); err == nil {
			fmt.Print(t.Markdown())
			return
		}
	}
	fmt.Fprintln(os.Stderr, "features:", err)
	os.Exit(1)
}
