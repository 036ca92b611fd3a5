package keep

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"margay/kernel/link"
)

// ends returns both ends of a link, on which nothing takes longer than a while.
func ends(t testing.TB) (owner, keeper *link.Conn) {
	t.Helper()
	owner, far, err := link.Pair()
	if err != nil {
		t.Fatal(err)
	}
	if keeper, err = link.NewConn(far); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { owner.Close(); keeper.Close() })
	for _, c := range []*link.Conn{owner, keeper} {
		if err := c.SetDeadline(time.Now().Add(20 * time.Second)); err != nil {
			t.Fatal(err)
		}
	}
	return owner, keeper
}

// pipe returns the ends of a pipe; the test closes them when it ends.
func pipe(t testing.TB) (r, w *os.File) {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.Close(); w.Close() })
	return r, w
}

// handle passes the next message, which must be the store's, to the store.
func handle(t testing.TB, s *Store, c *link.Conn) error {
	t.Helper()
	m, err := c.Recv()
	if err != nil {
		t.Fatal(err)
	}
	mine, err := s.Handle(m)
	if !mine {
		t.Fatalf("%q was not taken", m.Kind)
	}
	return err
}

// replay reads what the store replays.
func replay(t testing.TB, s *Store, from, to *link.Conn) (items []*Item) {
	t.Helper()
	sent := make(chan error, 1)
	go func() { sent <- s.Replay(from) }()
	for {
		m, err := to.Recv()
		if err != nil {
			t.Fatal(err)
		}
		item, done, err := Replayed(m)
		if err != nil {
			t.Fatal(err)
		}
		if done {
			break
		}
		t.Cleanup(item.CloseFiles)
		items = append(items, item)
	}
	if err := <-sent; err != nil {
		t.Fatal(err)
	}
	return items
}

func names(items []*Item) string {
	var all []string
	for _, item := range items {
		all = append(all, fmt.Sprintf("%s %s %d", item.Name, item.Words, len(item.Files)))
	}
	return strings.Join(all, ", ")
}

// ended reports whether all ends of a pipe for writing are closed.
func ended(t testing.TB, r *os.File) bool {
	t.Helper()
	r.SetReadDeadline(time.Now().Add(20 * time.Millisecond))
	_, err := r.Read(make([]byte, 1))
	if err != io.EOF && !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Fatal(err)
	}
	return err == io.EOF
}

// A descriptor outlives the owner's end of the link and works for the next owner.
func TestFilesOutliveTheOwner(t *testing.T) {
	owner, keeper := ends(t)
	var s Store
	defer s.Close()
	r, w := pipe(t)
	if err := Keep(owner, Item{Name: "pipe", Words: json.RawMessage(`{"a":1}`), Files: []*os.File{w}}); err != nil {
		t.Fatal(err)
	}
	if _, err := w.WriteString("one "); err != nil {
		t.Errorf("the owner's file is no longer its own: %v", err)
	}
	w.Close()
	owner.Close()
	if err := handle(t, &s, keeper); err != nil {
		t.Fatal(err)
	}
	if files := s.Files("pipe"); len(files) != 1 {
		t.Fatalf("%d files are kept", len(files))
	} else if _, err := files[0].WriteString("two "); err != nil {
		t.Fatal(err)
	}
	for _, text := range []string{"three ", "four"} { // the store keeps it all
		next, keeper := ends(t)
		items := replay(t, &s, keeper, next)
		if len(items) != 1 || items[0].Name != "pipe" || string(items[0].Words) != `{"a":1}` || len(items[0].Files) != 1 {
			t.Fatalf("replayed %s", names(items))
		}
		if _, err := items[0].Files[0].WriteString(text); err != nil {
			t.Fatal(err)
		}
		items[0].CloseFiles()
	}
	s.Close()
	r.SetReadDeadline(time.Now().Add(10 * time.Second))
	if text, err := io.ReadAll(r); err != nil || string(text) != "one two three four" {
		t.Errorf("through the pipe came %q, %v", text, err)
	}
}

func TestReplayIsInOrder(t *testing.T) {
	owner, keeper := ends(t)
	var s Store
	defer s.Close()
	if items := replay(t, &s, keeper, owner); len(items) != 0 {
		t.Errorf("an empty store replayed %s", names(items))
	}
	_, w := pipe(t)
	for _, item := range []Item{
		{Name: "b", Files: []*os.File{w}}, {Name: "c/2", Words: json.RawMessage(`2`)}, {Name: "a"}, {Name: "c/1", Files: []*os.File{w, w, w}},
	} {
		if err := Keep(owner, item); err != nil {
			t.Fatal(err)
		}
		if err := handle(t, &s, keeper); err != nil {
			t.Fatal(err)
		}
	}
	if got, want := names(replay(t, &s, keeper, owner)), "a  0, b  1, c/1  3, c/2 2 0"; got != want {
		t.Errorf("replayed %s, want %s", got, want)
	}
}

// Only forgotten or replaced items are closed.
func TestDropAndReplace(t *testing.T) {
	for name, c := range map[string]struct {
		drop string
		left string
	}{
		"one":            {"rank/1", "rank  0, rank/10  1, ranks  1"},
		"all below":      {"rank", "ranks  1"},
		"no such":        {"ran", "rank  0, rank/1  1, rank/1/app  1, rank/10  1, ranks  1"},
		"not its prefix": {"rank/1/", "rank  0, rank/1  1, rank/1/app  1, rank/10  1, ranks  1"},
	} {
		t.Run(name, func(t *testing.T) {
			owner, keeper := ends(t)
			var s Store
			defer s.Close()
			readers := make(map[string]*os.File)
			for _, item := range []string{"rank/1", "rank/1/app", "rank/10", "ranks"} {
				r, w := pipe(t)
				readers[item] = r
				if err := Keep(owner, Item{Name: item, Files: []*os.File{w}}); err != nil {
					t.Fatal(err)
				}
				w.Close()
				handle(t, &s, keeper)
			}
			if err := Keep(owner, Item{Name: "rank"}); err != nil {
				t.Fatal(err)
			}
			handle(t, &s, keeper)
			if err := Drop(owner, c.drop); err != nil {
				t.Fatal(err)
			}
			if err := handle(t, &s, keeper); err != nil {
				t.Fatal(err)
			}
			items := replay(t, &s, keeper, owner)
			if got := names(items); got != c.left {
				t.Errorf("left are %s, want %s", got, c.left)
			}
			for _, item := range items {
				item.CloseFiles()
			}
			for item, r := range readers {
				if kept := s.Files(item) != nil; ended(t, r) == kept {
					t.Errorf("%s is kept: %v, its file is not as it should be", item, kept)
				}
			}
		})
	}
}

func TestReplaceCloses(t *testing.T) {
	owner, keeper := ends(t)
	var s Store
	r1, w1 := pipe(t)
	r2, w2 := pipe(t)
	for _, w := range []*os.File{w1, w2} {
		if err := Keep(owner, Item{Name: "x", Files: []*os.File{w}}); err != nil {
			t.Fatal(err)
		}
		w.Close()
		handle(t, &s, keeper)
	}
	if !ended(t, r1) {
		t.Error("the item that was replaced is open")
	}
	if ended(t, r2) {
		t.Error("the item that replaced it is closed")
	}
	s.Close()
	if !ended(t, r2) || s.Files("x") != nil {
		t.Error("a closed store keeps something")
	}
}

// Messages that make no sense change nothing and leave no descriptor open.
func TestGarbage(t *testing.T) {
	for name, c := range map[string]struct {
		m    link.Message
		mine bool // for Handle
		bad  bool
	}{
		"keep without a body":     {link.Message{Kind: kindKeep}, true, true},
		"keep of a list":          {link.Message{Kind: kindKeep, Body: json.RawMessage(`[1]`)}, true, true},
		"drop of a number":        {link.Message{Kind: kindDrop, Body: json.RawMessage(`7`)}, true, true},
		"drop with files":         {link.New(kindDrop, Item{Name: "other"}), true, false},
		"somebody else's":         {link.New("start", nil), false, false},
		"kept, which it sends":    {link.New(kindKept, Item{Name: "x"}), false, false},
		"kept-all, which it says": {link.New(kindDone, nil), false, false},
	} {
		t.Run(name, func(t *testing.T) {
			owner, keeper := ends(t)
			var s Store
			defer s.Close()
			if err := Keep(owner, Item{Name: "x", Words: json.RawMessage(`1`)}); err != nil {
				t.Fatal(err)
			}
			handle(t, &s, keeper)
			r, w := pipe(t)
			c.m.Files = []*os.File{w}
			if err := owner.Send(c.m); err != nil {
				t.Fatal(err)
			}
			w.Close()
			m, err := keeper.Recv()
			if err != nil {
				t.Fatal(err)
			}
			mine, err := s.Handle(m)
			if mine != c.mine || (err != nil) != c.bad {
				t.Errorf("taken %v, %v", mine, err)
			}
			if !mine {
				m.CloseFiles()
			}
			if !ended(t, r) {
				t.Error("its file is open")
			}
			if got := names(replay(t, &s, keeper, owner)); got != "x 1 0" {
				t.Errorf("kept are %s", got)
			}
		})
	}
}

func TestReplayedGarbage(t *testing.T) {
	for name, c := range map[string]struct {
		m    link.Message
		done bool
		bad  bool
	}{
		"no body":         {link.Message{Kind: kindKept}, false, true},
		"a number":        {link.Message{Kind: kindKept, Body: json.RawMessage(`3`)}, false, true},
		"end with files":  {link.New(kindDone, nil), true, false},
		"somebody else's": {link.New("output", nil), false, false},
		"an owner's":      {link.New(kindKeep, Item{Name: "x"}), false, false},
	} {
		t.Run(name, func(t *testing.T) {
			r, w := pipe(t)
			c.m.Files = []*os.File{w}
			item, done, err := Replayed(c.m)
			if item != nil || done != c.done || (err != nil) != c.bad {
				t.Errorf("%v, %v, %v", item, done, err)
			}
			if open := !ended(t, r); open != (!c.done && !c.bad) {
				t.Errorf("its file is open: %v", open)
			}
		})
	}
}

// An item that no message can carry is refused where it is sent, and stays the caller's.
func TestLimits(t *testing.T) {
	owner, keeper := ends(t)
	_, w := pipe(t)
	if err := Keep(owner, Item{Name: "x", Files: slices.Repeat([]*os.File{w}, 65)}); err == nil {
		t.Error("65 files were sent")
	}
	if err := Keep(owner, Item{Name: "x", Words: json.RawMessage(`"` + strings.Repeat("x", 1<<20) + `"`)}); err == nil {
		t.Error("a million words were sent")
	}
	if _, err := w.WriteString("x"); err != nil {
		t.Errorf("the caller's file was closed: %v", err)
	}
	var s Store
	defer s.Close()
	if err := Keep(owner, Item{Name: "x", Files: slices.Repeat([]*os.File{w}, 64)}); err != nil {
		t.Fatal(err)
	}
	handle(t, &s, keeper)
	if n := len(s.Files("x")); n != 64 {
		t.Errorf("%d files are kept", n)
	}
	keeper.Close()
	if err := Keep(owner, Item{Name: "x"}); !errors.Is(err, unix.EPIPE) {
		t.Errorf("Keep with nobody there: %v", err)
	}
	if err := s.Replay(keeper); err == nil {
		t.Error("a replay into nothing succeeded")
	}
	if n := len(s.Files("x")); n != 64 {
		t.Errorf("after a replay into nothing %d files are kept", n)
	}
}

// Owners come and go while others keep and drop.
func TestTogether(t *testing.T) {
	var s Store
	defer s.Close()
	owner, keeper := ends(t)
	var all sync.WaitGroup
	const each = 100
	all.Go(func() {
		for range 3 * each {
			m, err := keeper.Recv()
			if err == nil {
				_, err = s.Handle(m)
			}
			if err != nil {
				t.Error(err)
				return
			}
		}
	})
	for i := range 3 {
		all.Go(func() {
			for n := range each {
				var err error
				if n%2 == 0 {
					err = Keep(owner, Item{Name: fmt.Sprintf("%d/%d", i, n/2)})
				} else if n < each/2 {
					err = Drop(owner, fmt.Sprintf("%d/%d", i, n/2))
				} else {
					err = Drop(owner, "none")
				}
				if err != nil {
					t.Error(err)
				}
			}
		})
	}
	for range 3 {
		next, keeper := ends(t)
		replay(t, &s, keeper, next)
	}
	all.Wait()
	next, keeper := ends(t)
	if items := replay(t, &s, keeper, next); len(items) != 3*each/4 {
		t.Errorf("kept are %s", names(items))
	}
}

// Whatever comes over the link, the store keeps an item with a name or nothing.
func FuzzHandle(f *testing.F) {
	f.Add(kindKeep, []byte(`{"name":"a","words":[1]}`))
	f.Add(kindDrop, []byte(`{"name":"a"}`))
	f.Add(kindKept, []byte(`null`))
	f.Fuzz(func(t *testing.T, kind string, body []byte) {
		m := link.Message{Kind: kind, Body: body}
		var s Store
		mine, err := s.Handle(m)
		if !mine && (err != nil || len(s.items) > 0) || kind == kindDrop && len(s.items) > 0 {
			t.Fatalf("%q %q: %v, %v, %d items", kind, body, mine, err, len(s.items))
		}
		for name, item := range s.items {
			if name != item.Name || kind != kindKeep {
				t.Fatalf("%q is kept as %q", item.Name, name)
			}
			again, _, err := Replayed(link.New(kindKept, item))
			if err != nil || again.Name != strings.ToValidUTF8(name, "\ufffd") {
				t.Fatalf("%q became %+v, %v", name, again, err)
			}
		}
		if item, done, err := Replayed(m); done && (item != nil || err != nil) {
			t.Fatalf("%q %q ends a replay with %v, %v", kind, body, item, err)
		}
	})
}
