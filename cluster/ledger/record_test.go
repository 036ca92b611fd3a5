package ledger

import (
	"bytes"
	"math/rand/v2"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"margay/cluster/site"
	"margay/internal/check"
)

// example is a record with a value in each field.
func example(job uint32) *Record {
	node := uint32(3)
	at := time.Date(2026, 11, 25, 13, 40, 5, 123456789, time.UTC)
	return &Record{
		Machine: "m", Run: "r", Job: job, User: "ada", UID: 1000, Command: "./app \"x\" <&>\u2028 é", Detached: true,
		Submitted: at, Started: at.Add(time.Second), Ended: at.Add(time.Minute), Ranks: 5, Cores: 2, Nodes: "0-1,3", Places: "0-1*2,3",
		State: Failure, Status: 3, Reason: "it\nfailed", Failed: 2,
		Ends:   []End{{Ranks: "0,4", Status: 3, Ended: true}, {Ranks: "2", Signal: 9, Reason: "killed", Ended: true}},
		Phases: []Phase{{Phase: "prepare", TimeNs: 7, NodeNs: 5, Node: &node}, {Phase: "run", TimeNs: 9}},
		Usage:  Usage{Ranks: 4, UserNs: 1, SystemNs: 2, MajorFaults: 3, MinorFaults: 4, Yields: 5, Preemptions: 6}, Lost: 1,
	}
}

func line(t testing.TB, r *Record) []byte {
	t.Helper()
	text, err := AppendLine(nil, r)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// A line is one line, and is read as the record that was written. Any other byte in it is noticed.
func TestLine(t *testing.T) {
	want := example(7)
	text := line(t, want)
	if n := strings.Count(string(text), "\n"); n != 1 {
		t.Errorf("it has %d ends of lines: %s", n, text)
	}
	got, err := ParseLine(text)
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("%v, %v", got, err)
	}
	for i := range text {
		damaged := slices.Clone(text)
		damaged[i] ^= 4
		if _, err := ParseLine(damaged); err == nil {
			t.Errorf("a line with a wrong byte %d is read: %s", i, damaged)
		}
		if _, err := ParseLine(text[:i]); err == nil {
			t.Errorf("a line of %d bytes is read", i)
		}
	}
}

// A record that is too long for a line keeps the most important fields.
func TestLongLine(t *testing.T) {
	r := example(7)
	r.Places = strings.Repeat("0,2,", MaxLine/4)
	got, err := ParseLine(line(t, r))
	if err != nil || got.Job != 7 || got.Places != "" || got.Failed != 2 || len(got.Ends) != 0 {
		t.Errorf("%v, %v", got, err)
	}
	r.Command = strings.Repeat("x", MaxLine)
	if _, err := AppendLine(nil, r); err == nil || !strings.Contains(err.Error(), "history of job 7: its record has") {
		t.Errorf("a record without room: %v", err)
	}
}

// A line that can be read is written as a line that reads as the same record.
func FuzzParseLine(f *testing.F) {
	f.Add(line(f, example(7)))
	f.Add(line(f, new(Record)))
	f.Add([]byte(`{"crc32c":"00000000","record":{}}` + "\n"))
	f.Add([]byte(`{"crc32c":"`))
	f.Fuzz(func(t *testing.T, text []byte) {
		r, err := ParseLine(text)
		if err != nil {
			// The checksum hides the rest from a fuzzer: read it as a record as well.
			if len(text) < recordAt+len(lineEnd) {
				return
			}
			if r, err = ParseLine(seal(nil, text[recordAt:len(text)-len(lineEnd)])); err != nil {
				return
			}
		}
		again, err := AppendLine(nil, r)
		if err != nil {
			return // escaping made it too long
		}
		if got, err := ParseLine(again); err != nil || got.Job != r.Job || !bytes.Equal(line(t, got), again) {
			t.Fatalf("%s becomes %v, %v", again, got, err)
		}
	})
}

func TestPlaces(t *testing.T) {
	for want, nodes := range map[string][]uint32{
		"": nil, "3": {3}, "0-3": {0, 1, 2, 3}, "0-3*2,10": {0, 0, 1, 1, 2, 2, 3, 3, 10},
		"4,3,2": {4, 3, 2}, "1*3,2": {1, 1, 1, 2}, "4294967295,0": {4294967295, 0},
	} {
		if got := Places(nodes); got != want {
			t.Errorf("%v: %s", nodes, got)
		}
	}
	for text, want := range map[string]string{
		",": "are not", "1,": "are not", "x": "are not", "1-": "are not", "2-1": "are not", "1*0": "are not", "1*": "are not", "-1": "are not", "1*2*3": "are not",
		"4294967296": "are not", "0-1048576": "more than", "0*1048577": "more than", "0-1023*1025": "more than", "0*1048576,1": "more than", "0-4294967295*4294967295": "more than",
	} {
		if nodes, err := ParsePlaces(text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %d ranks, %v", text, len(nodes), err)
		}
	}
}

// layout is where the ranks of a job on a machine of n nodes may be, by a dense or sparse choice of
// nodes, in order or not.
func layout(rng *rand.Rand, n int) (nodes []uint32) {
	share, most := rng.Float64(), 1+rng.IntN(3)
	for node := range n {
		if rng.Float64() < share {
			for range 1 + rng.IntN(most) {
				nodes = append(nodes, uint32(node))
			}
		}
	}
	if rng.IntN(4) == 0 {
		rng.Shuffle(len(nodes), func(i, j int) { nodes[i], nodes[j] = nodes[j], nodes[i] })
	}
	return nodes
}

// Condensed places are read as the same places, on machines with 10,000 nodes as well.
func TestParseCondensedPlaces(t *testing.T) {
	seed := check.Seed(t)
	rng := rand.New(rand.NewPCG(seed, 0))
	for _, n := range []int{1, 2, 3, 10, 100, 10_000, 10_000} {
		nodes := layout(rng, n)
		if got, err := ParsePlaces(Places(nodes)); err != nil || !slices.Equal(got, nodes) {
			t.Errorf("seed %d: %d ranks on %d nodes become %d, %v", seed, len(nodes), n, len(got), err)
		}
	}
}

// Places that are read are condensed to places that are read as the same.
func FuzzParsePlaces(f *testing.F) {
	for _, text := range []string{"", "0-3*2,10", "4,3,2", "1*3,2", "0-9999", "4294967295,0", "1,1,1,2*3"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		nodes, err := ParsePlaces(text)
		if err != nil {
			return
		}
		if len(nodes) > MaxRanks {
			t.Fatalf("%q has %d ranks", text, len(nodes))
		}
		condensed := Places(nodes)
		if again, err := ParsePlaces(condensed); err != nil || !slices.Equal(again, nodes) || Places(again) != condensed {
			t.Fatalf("%q is condensed to %q, which is read as %d ranks of %d, %v", text, condensed, len(again), len(nodes), err)
		}
	})
}

func TestBase(t *testing.T) {
	t.Setenv("HOME", "/h")
	t.Setenv("XDG_STATE_HOME", "")
	t.Setenv(site.StateVariable, "")
	for _, k := range []struct{ state, xdg, want string }{
		{"", "", "/h/.local/state/margay/history"}, {"", "relative", "/h/.local/state/margay/history"}, {"", "/x", "/x/margay/history"}, {"/s", "/x", "/s/history"},
	} {
		os.Setenv(site.StateVariable, k.state)
		os.Setenv("XDG_STATE_HOME", k.xdg)
		if got, err := Base(); err != nil || got != k.want {
			t.Errorf("%+v: %s, %v", k, got, err)
		}
	}
	os.Setenv(site.StateVariable, "")
	os.Setenv("XDG_STATE_HOME", "")
	os.Setenv("HOME", "")
	if got, err := Base(); err == nil || !strings.Contains(err.Error(), "set "+site.StateVariable) {
		t.Errorf("without a home: %s, %v", got, err)
	}
}

// Folders are the histories of machines if machines can have their names.
func TestMachines(t *testing.T) {
	base := filepath.Join(t.TempDir(), "history")
	if names, err := Machines(base); err != nil || len(names) != 0 {
		t.Errorf("without a folder: %v, %v", names, err)
	}
	for _, name := range []string{"b", "a.1", ".hidden"} {
		if err := os.MkdirAll(filepath.Join(base, name), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(base, "file"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if names, err := Machines(base); err != nil || !slices.Equal(names, []string{"a.1", "b"}) {
		t.Errorf("%v, %v", names, err)
	}
}
