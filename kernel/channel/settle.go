package channel

import "sync"

// Settling tracks which messages of a rank are settled: messages that passed the node kernel and
// are in a ring of their target, or finished. It is safe for concurrent use.
type Settling struct {
	publish func(position uint64)

	mu     sync.Mutex
	passed uint64 // position of the send ring before which all messages were judged
	held   int    // judged messages that wait for room or are being forwarded
}

// NewSettling makes a Settling that publishes positions of the rank's send ring. All messages
// before passed are settled.
func NewSettling(passed uint64, publish func(position uint64)) *Settling {
	publish(passed)
	return &Settling{passed: passed, publish: publish}
}

// Passed notes that all messages before a position were judged, and that those that wait were
// reported to Held.
func (s *Settling) Passed(position uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.passed = position
	s.tell()
}

// Held notes that a message waits for room, or is being forwarded.
func (s *Settling) Held() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.held++
}

// Placed notes that a message that was reported to Held is in a ring of its target.
func (s *Settling) Placed() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.held--
	s.tell()
}

// Publish the position if no message before it is held. The caller holds the lock.
func (s *Settling) tell() {
	if s.held == 0 {
		s.publish(s.passed)
	}
}
