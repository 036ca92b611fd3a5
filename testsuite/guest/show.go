package guest

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"
)

// Test is the result of one test inside a guest.
type Test struct {
	Name    string
	Verdict string        // "pass", "fail" or "skip"; empty when there was none
	Took    time.Duration // by the guest's clock, of a test with a verdict
	Output  string
}

// Err returns the reason why the test did not pass, nil if it passed.
func (t Test) Err() error {
	switch t.Verdict {
	case "pass":
		return nil
	case "skip":
		return errors.New("it was skipped, and nothing may be skipped in a guest")
	case "":
		return errors.New("it gave no verdict")
	}
	return errors.New("it failed")
}

// test2json returns the path of Go's program, which the go command takes longer to find than it
// runs.
var test2json = sync.OnceValues(func() (string, error) {
	path, err := exec.Command("go", "tool", "-n", "test2json").Output()
	if err != nil {
		return "", fmt.Errorf("go tool -n test2json: %w", err)
	}
	return strings.TrimSpace(string(path)), nil
})

// Tests returns the tests that were started, in that order and with subtests. rest is the output
// outside of tests.
func (r Result) Tests(ctx context.Context) (tests []Test, rest string, err error) {
	program, err := test2json()
	if err != nil {
		return nil, "", err
	}
	cmd := exec.CommandContext(ctx, program, "-t", "-p", r.Package) // without -t it gives no times
	// The mark identifies lines of the test binary itself. This one is for a verdict that a panic
	// follows.
	input := strings.TrimSuffix(string(r.Output), "\n") + "\n"
	if r.Exit != "" || !r.Ended {
		input += "\x16FAIL\n"
	}
	cmd.Stdin = strings.NewReader(input)
	text, err := cmd.Output()
	if err != nil {
		return nil, "", fmt.Errorf("test2json: %w", err)
	}
	index := make(map[string]int)
	var outside strings.Builder
	for d := json.NewDecoder(bytes.NewReader(text)); ; {
		var e struct {
			Action, Test, Output string
			Elapsed              float64 // seconds
		}
		if err := d.Decode(&e); err == io.EOF {
			return tests, outside.String(), nil
		} else if err != nil {
			return nil, "", fmt.Errorf("test2json: %w", err)
		}
		if e.Test == "" {
			outside.WriteString(e.Output)
			continue
		}
		i, ok := index[e.Test]
		if !ok {
			i = len(tests)
			index[e.Test] = i
			tests = append(tests, Test{Name: e.Test})
		}
		tests[i].Output += e.Output
		switch e.Action {
		case "pass", "fail", "skip":
			tests[i].Verdict, tests[i].Took = e.Action, time.Duration(e.Elapsed*float64(time.Second))
		}
	}
}

// Err returns the error of the run of the package as a whole, given its tests.
func (r Result) Err(tests []Test) error {
	switch {
	case !r.Ended:
		return errors.New("the tests did not end")
	case r.Exit != "":
		return errors.New(r.Exit)
	case len(tests) == 0:
		return errors.New("not one test was run")
	}
	return nil
}

// Show makes each package a subtest of t, and each of its tests a subtest of that. A failed one
// shows its output.
func Show(t *testing.T, results []Result) {
	for _, r := range results {
		t.Run(r.Package, func(t *testing.T) {
			tests, rest, err := r.Tests(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			for _, test := range tests {
				t.Run(test.Name, func(t *testing.T) {
					t.Logf("took %.2f s in the guest", test.Took.Seconds()) // make test adds that
					if err := test.Err(); err != nil {
						t.Errorf("%v\n%s", err, test.Output)
					} else {
						t.Log("\n" + test.Output)
					}
				})
			}
			if err := r.Err(tests); err != nil {
				t.Errorf("%v\n%s", err, rest)
			} else {
				t.Log("\n" + rest)
			}
		})
	}
}
