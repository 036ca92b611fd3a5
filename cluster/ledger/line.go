package ledger

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"strconv"
)

// MaxLine bounds a line, in bytes with its end.
const MaxLine = 1 << 20

// The parts of a line around the checksum and the record.
const (
	lineBegin  = `{"crc32c":"`
	lineMiddle = `","record":`
	lineEnd    = "}\n"
	sumDigits  = 8
	recordAt   = len(lineBegin) + sumDigits + len(lineMiddle)
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// errLine reports a line that is torn or damaged.
var errLine = errors.New("history: not a line of a history")

// AppendLine appends the line of a record. A record that is too long for a line loses its places,
// nodes, reason, ends and phases.
func AppendLine(to []byte, r *Record) ([]byte, error) {
	text, err := json.Marshal(r)
	if err == nil && recordAt+len(text)+len(lineEnd) > MaxLine {
		short := *r
		short.Nodes, short.Places, short.Reason, short.Ends, short.Phases = "", "", "", nil, nil
		text, err = json.Marshal(&short)
	}
	if err == nil && recordAt+len(text)+len(lineEnd) > MaxLine {
		err = fmt.Errorf("its record has %d bytes, at most %d are kept", len(text), MaxLine)
	}
	if err != nil {
		return to, fmt.Errorf("history of job %d: %w", r.Job, err)
	}
	return seal(to, text), nil
}

// seal appends the line of an encoded record.
func seal(to, text []byte) []byte {
	to = fmt.Appendf(to, "%s%08x%s", lineBegin, crc32.Checksum(text, castagnoli), lineMiddle)
	to = append(to, text...)
	return append(to, lineEnd...)
}

// ParseLine reads a line. It returns an error unless the line is exactly as it was written.
func ParseLine(line []byte) (*Record, error) {
	if len(line) > MaxLine || len(line) < recordAt+len(lineEnd) || !bytes.HasPrefix(line, []byte(lineBegin)) || !bytes.HasSuffix(line, []byte(lineEnd)) {
		return nil, errLine
	}
	sum, err := strconv.ParseUint(string(line[len(lineBegin):len(lineBegin)+sumDigits]), 16, 32)
	if err != nil || string(line[recordAt-len(lineMiddle):recordAt]) != lineMiddle {
		return nil, errLine
	}
	text := line[recordAt : len(line)-len(lineEnd)]
	if crc32.Checksum(text, castagnoli) != uint32(sum) {
		return nil, errLine
	}
	r := new(Record)
	if err := json.Unmarshal(text, r); err != nil {
		return nil, fmt.Errorf("history: %w", err)
	}
	return r, nil
}
