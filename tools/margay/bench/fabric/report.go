package fabric

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"time"
)

// Report is what a program that measures reports about one case.
type Report struct {
	Repetitions int           `json:"repetitions"`
	Messages    int           `json:"messages"`         // of a repetition
	CPU         time.Duration `json:"cpu_ns"`           // processor time of all ranks in all repetitions
	Times       []uint64      `json:"times_ns"`         // of repetitions: all, or as many quantiles
	Kernels     time.Duration `json:"-"`                // processor time of node kernels, if there are any
	Absent      string        `json:"absent,omitempty"` // why the contender does not have the operation
}

// Absent is the error of a contender that does not have an operation: the reason.
type Absent string

func (a Absent) Error() string { return string(a) }

// errNoReport is the error of a program that prints no report.
var errNoReport = errors.New("the program printed no report")

// ReadReport reads the output of rank 0. If the program does not have the operation, the error is
// Absent.
func ReadReport(output []byte) (*Report, error) {
	for line := range bytes.Lines(output) {
		if !bytes.HasPrefix(line, []byte("{")) {
			continue
		}
		r := new(Report)
		if err := json.Unmarshal(line, r); err != nil {
			return nil, fmt.Errorf("report of the program: %w", err)
		}
		return r, r.check()
	}
	return nil, errNoReport
}

// check checks the numbers of a report.
func (r *Report) check() error {
	switch {
	case r.Absent != "":
		return Absent(r.Absent)
	case r.Repetitions < 1 || r.Messages < 1 || r.CPU < 0:
		return fmt.Errorf("report of the program: %d repetitions, %d messages, %v of processor time", r.Repetitions, r.Messages, r.CPU)
	case len(r.Times) == 0 || len(r.Times) > r.Repetitions:
		return fmt.Errorf("report of the program: %d times of %d repetitions", len(r.Times), r.Repetitions)
	}
	return nil
}
