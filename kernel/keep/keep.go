// Package keep lets a process store file descriptors in a longer-lived one, so that its successor
// can continue: the node kernel stores its listening socket and its jobs' links in PID 1, and a
// job's shared memory in the job's init. An item has a name and optional words.
package keep

import (
	"encoding/json"
	"fmt"
	"os"
	"sort"
	"strings"
	"sync"

	"margay/kernel/link"
)

// Kinds of the messages of this package on a link.
const (
	kindKeep = "keep" // here is something to keep: Item and its files
	kindDrop = "drop" // forget everything under a name or below "name/"
	kindKept = "kept" // replay: one item
	kindDone = "kept-all"
)

// Item is something kept.
type Item struct {
	Name  string          `json:"name"`
	Words json.RawMessage `json:"words,omitempty"` // whatever the owner wants to read again
	Files []*os.File      `json:"-"`
}

// Keeper stores items that must outlive the node kernel.
type Keeper interface {
	Keep(Item) error
	Drop(name string) error
}

// Sender sends a message: a link.Conn, or what stands before one. The message's files are the
// caller's again when Send returns.
type Sender interface{ Send(link.Message) error }

// Keep leaves an item with the process at the other end of c, replacing one of the same name. The
// caller's files stay its own.
func Keep(c Sender, item Item) error {
	m := link.New(kindKeep, item)
	m.Files = item.Files
	return c.Send(m)
}

// Drop makes the other end forget the item called name and all items whose names start with name
// and a slash.
func Drop(c Sender, name string) error {
	return c.Send(link.New(kindDrop, Item{Name: name}))
}

// Replayed reads one message of a replay. It returns the item, or done when m ends the replay, or
// neither when m belongs to something else. The item's files are the caller's.
func Replayed(m link.Message) (item *Item, done bool, err error) {
	switch m.Kind {
	case kindDone:
		m.CloseFiles()
		return nil, true, nil
	case kindKept:
		item = new(Item)
		if err := m.Decode(item); err != nil {
			m.CloseFiles()
			return nil, false, err
		}
		item.Files = m.Files
		return item, false, nil
	}
	return nil, false, nil
}

// Store is the keeping side. The zero value is ready; it is safe for concurrent use.
type Store struct {
	mu    sync.Mutex
	items map[string]*Item
}

// Handle takes m if it is one of this package's messages and reports whether it was. The files of a
// message that it has taken are the store's, also after an error.
func (s *Store) Handle(m link.Message) (bool, error) {
	if m.Kind != kindKeep && m.Kind != kindDrop {
		return false, nil
	}
	var item Item
	if err := m.Decode(&item); err != nil {
		m.CloseFiles()
		return true, err
	}
	if m.Kind == kindDrop {
		m.CloseFiles()
		s.drop(item.Name)
		return true, nil
	}
	item.Files = m.Files
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.items == nil {
		s.items = make(map[string]*Item)
	}
	if old := s.items[item.Name]; old != nil {
		old.CloseFiles()
	}
	s.items[item.Name] = &item
	return true, nil
}

// Replay sends everything kept over c, in the order of the names, and an end mark. The store keeps
// it all.
func (s *Store) Replay(c *link.Conn) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	names := make([]string, 0, len(s.items))
	for name := range s.items {
		names = append(names, name)
	}
	sort.Strings(names)
	for _, name := range names {
		m := link.New(kindKept, s.items[name])
		m.Files = s.items[name].Files
		if err := c.Send(m); err != nil {
			return fmt.Errorf("keep: replay %s: %w", name, err)
		}
	}
	return c.Send(link.New(kindDone, nil))
}

// Files returns the files kept under name, nil when there are none. They stay the store's.
func (s *Store) Files(name string) []*os.File {
	s.mu.Lock()
	defer s.mu.Unlock()
	if item := s.items[name]; item != nil {
		return item.Files
	}
	return nil
}

// Close closes everything kept.
func (s *Store) Close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for name, item := range s.items {
		item.CloseFiles()
		delete(s.items, name)
	}
}

func (s *Store) drop(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for n, item := range s.items {
		if n == name || strings.HasPrefix(n, name+"/") {
			item.CloseFiles()
			delete(s.items, n)
		}
	}
}

// CloseFiles closes the item's files.
func (i *Item) CloseFiles() {
	for _, f := range i.Files {
		f.Close()
	}
}
