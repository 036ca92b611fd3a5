// Command plain counts the words of a text sequentially in one process, without a machine. The
// histogram examples must print the same.
//
//	plain FILE
package main

import (
	"fmt"
	"log"
	"os"

	"margay/examples/histogram/words"
)

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: plain FILE")
		os.Exit(2)
	}
	text, err := os.ReadFile(os.Args[1])
	if err != nil {
		log.Fatal(err)
	}
	counts := make(map[string]uint64)
	words.Each(text, 0, len(text), func(word []byte) { counts[string(word)]++ })
	var h words.Histogram
	for word, count := range counts {
		h.Add([]byte(word), count)
	}
	if err := h.Print(os.Stdout); err != nil {
		log.Fatal(err)
	}
}
