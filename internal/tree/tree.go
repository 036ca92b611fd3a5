// Package tree numbers the places of a complete binary tree: 0 is the root, and each level is
// filled from the left. Broadcasts to nodes and reductions from them use it.
package tree

// Parent returns the parent of a place, and false for the root.
func Parent(place int) (int, bool) {
	if place <= 0 {
		return 0, false
	}
	return (place - 1) / 2, true
}

// Children returns the children of a place in a tree of size places, in order.
func Children(place, size int) []int {
	var children []int
	for child := 2*place + 1; child <= 2*place+2 && child < size; child++ {
		children = append(children, child)
	}
	return children
}
