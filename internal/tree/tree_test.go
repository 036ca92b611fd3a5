package tree

import "testing"

// Each place but the root is the child of its parent, once.
func TestTree(t *testing.T) {
	for size := range 40 {
		found := 0
		for place := range size {
			for _, child := range Children(place, size) {
				found++
				if parent, ok := Parent(child); !ok || parent != place || child >= size {
					t.Errorf("size %d: %d is a child of %d, its parent is %d, %v", size, child, place, parent, ok)
				}
			}
		}
		if found != max(0, size-1) {
			t.Errorf("size %d: %d children", size, found)
		}
	}
	if _, ok := Parent(0); ok {
		t.Error("the root has a parent")
	}
}
