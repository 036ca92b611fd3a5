// Package tree numbers the places of a complete tree: 0 is the root, and each level is filled from
// the left. Broadcasts to nodes and reductions from them use binary ones.
package tree

// Fanout is how many children a place of a tree has at most. It is at least 1.
type Fanout int

// Binary is the fan-out of the trees of jobs.
const Binary Fanout = 2

// Parent returns the parent of a place, and false for the root.
func (f Fanout) Parent(place int) (int, bool) {
	if place <= 0 {
		return 0, false
	}
	return (place - 1) / int(f), true
}

// Children returns the children of a place in a tree of size places: [first, end).
func (f Fanout) Children(place, size int) (first, end int) {
	first = int(f)*place + 1
	return min(first, size), min(first+int(f), size)
}

// Parent returns the parent of a place in a binary tree, and false for the root.
func Parent(place int) (int, bool) { return Binary.Parent(place) }

// Children returns the children of a place in a binary tree of size places, in order.
func Children(place, size int) []int {
	var children []int
	for child, end := Binary.Children(place, size); child < end; child++ {
		children = append(children, child)
	}
	return children
}
