package serve

import (
	"context"
	"sync"

	"margay/internal/cond"
)

// Bounds of the frames that the connections of one user bring. A frame may take 16 times its
// length when it is decoded (control.Conn.Within).
const (
	smallFrame = 4 << 10 // bytes; these only wait for their own connection
	mostFrames = 8 << 20 // bytes of the others, from when they arrive until they are carried out
)

// frames is the room for the large frames of one user, over all connections. It is safe for
// concurrent use.
type frames struct {
	listing sync.Mutex // held while jobs are listed for the user

	mu      sync.Mutex
	changed sync.Cond
	held    int // bytes
}

func newFrames() *frames {
	f := new(frames)
	f.changed.L = &f.mu
	return f
}

// inlet is the room for the frames of one connection, which come one after the other. It is a
// control.Room.
type inlet struct {
	frames  *frames
	context context.Context // of serve
	large   bool            // the frame that is being handled is
}

// Enter implements control.Room.
func (i *inlet) Enter(bytes int) error {
	if i.large = bytes > smallFrame; !i.large {
		return nil
	}
	f := i.frames
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := cond.Wait(i.context, &f.changed, func() bool { return f.held == 0 || f.held+bytes <= mostFrames }); err != nil {
		return err
	}
	f.held += bytes
	return nil
}

// Leave implements control.Room.
func (i *inlet) Leave(bytes int) {
	if !i.large {
		return
	}
	i.large = false
	f := i.frames
	f.mu.Lock()
	defer f.mu.Unlock()
	f.held -= bytes
	f.changed.Broadcast()
}

// framesOf returns the room for the large frames of a user.
func (s *Server) framesOf(uid uint32) *frames {
	s.mu.Lock()
	defer s.mu.Unlock()
	f := s.frames[uid]
	if f == nil {
		f = newFrames()
		s.frames[uid] = f
	}
	return f
}
