package jobinit

import (
	"os"
	"testing"
	"time"

	"margay/internal/check"
)

// A look at unread input that is due at once is not missed.
func TestLooks(t *testing.T) {
	check.Leaks(t)
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	i := newInput(w, false)
	defer w.Close()
	i.written, i.unread = 1, 1
	done := make(chan struct{})
	go func() {
		defer close(done)
		for range 20000 {
			i.next(time.Nanosecond)
		}
	}()
	select {
	case <-done:
	case <-time.After(time.Minute):
		i.close() // it ends
		<-done
		t.Error("a look never came")
	}
}
