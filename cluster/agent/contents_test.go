package agent

import (
	"crypto/sha256"
	"errors"
	"slices"
	"testing"

	"margay/cluster/control"
	"margay/kernel"
	"margay/kernel/abi/archive"
)

// A node says which contents of a job it lacks, and refuses digests that are none.
func TestPrepareContents(t *testing.T) {
	s := newServe(t)
	s.run(new(playedKernel))
	conn := s.next()
	digest := func(text string) []byte { d := sha256.Sum256([]byte(text)); return d[:] }
	ask := func(contents ...[]byte) (*control.Prepared, error) {
		m, err := s.ask(conn, &control.Prepare{Job: 6, Spec: new(control.JobSpec), Exec: &control.Exec{Contents: contents}})
		answer, _ := m.(*control.Prepared)
		return answer, err
	}
	if answer, err := ask(digest("a"), digest("b"), digest("c")); err != nil || !slices.Equal(answer.GetLacking(), []uint32{1, 2}) {
		t.Errorf("%v, %v", answer, err)
	}
	for name, contents := range map[string][][]byte{
		"a short digest": {digest("a"), digest("b")[1:]}, "many": slices.Repeat([][]byte{digest("a")}, archive.MaxContents+1),
	} {
		if answer, err := ask(contents...); !errors.Is(err, &control.Failure{Code: control.Code_CODE_BAD_REQUEST}) {
			t.Errorf("%s: %v, %v", name, answer, err)
		}
	}
}

// A node notes the contents of files for jobs whose client reads files when the ranks have ended.
func TestPrepareCollects(t *testing.T) {
	s := newServe(t)
	var prepared []bool
	s.run(&playedKernel{prepare: func(spec kernel.JobSpec) error {
		prepared = append(prepared, spec.Collects)
		return nil
	}})
	conn := s.next()
	for _, out := range [][][]byte{nil, {[]byte("/w/res")}} {
		if _, err := s.ask(conn, &control.Prepare{Job: 6, Spec: &control.JobSpec{Out: out}}); err != nil {
			t.Fatal(err)
		}
	}
	if !slices.Equal(prepared, []bool{false, true}) {
		t.Errorf("without --out, and with it: %v", prepared)
	}
}
