package tree

import "testing"

// Each place but the root is the child of its parent, once, whatever the fan-out.
func TestTree(t *testing.T) {
	for _, f := range []Fanout{1, 2, 3, 8, 64} {
		for size := range 100 {
			found := 0
			for place := range size {
				for child, end := f.Children(place, size); child < end; child++ {
					found++
					if parent, ok := f.Parent(child); !ok || parent != place || child >= size {
						t.Errorf("fan-out %d, size %d: %d is a child of %d, its parent is %d, %v", f, size, child, place, parent, ok)
					}
				}
			}
			if found != max(0, size-1) {
				t.Errorf("fan-out %d, size %d: %d children", f, size, found)
			}
		}
	}
	if _, ok := Parent(0); ok {
		t.Error("the root has a parent")
	}
}

// The trees of jobs are binary.
func TestBinary(t *testing.T) {
	for size := range 40 {
		for place := range size {
			first, end := Binary.Children(place, size)
			children := Children(place, size)
			if len(children) != end-first || len(children) > 0 && children[0] != first {
				t.Errorf("size %d: %d has the children %v, not [%d, %d)", size, place, children, first, end)
			}
			parent, ok := Parent(place)
			if want, isChild := Binary.Parent(place); parent != want || ok != isChild {
				t.Errorf("%d has the parent %d, %v", place, parent, ok)
			}
		}
	}
}
