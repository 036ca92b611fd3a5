package tree_test

import (
	"fmt"

	"margay/internal/tree"
)

// The way of a message from the root to every place of a tree of six.
func Example() {
	const size = 6
	for place := range size {
		fmt.Println(place, "to", tree.Children(place, size))
	}
	// Output:
	// 0 to [1 2]
	// 1 to [3 4]
	// 2 to [5]
	// 3 to []
	// 4 to []
	// 5 to []
}
