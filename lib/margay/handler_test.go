package margay

import (
	"strings"
	"testing"
)

// A wrong number of a handler is an error.
func TestWrongHandler(t *testing.T) {
	for _, number := range []int{-1, 256, -1 << 63} {
		if err := new(Job).Handle(number, nil); err == nil || !strings.Contains(err.Error(), "but handlers 0 to 255") {
			t.Errorf("%d: %v", number, err)
		}
	}
	if err := new(Job).Handle(255, nil); err != nil {
		t.Error(err)
	}
}
