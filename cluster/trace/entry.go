package trace

import (
	"encoding/json"
	"strconv"

	"margay/kernel/abi/id"
)

// entry is an event of the trace-event format. There are millions of them, so they are written by
// hand.
type entry struct {
	name, cat, phase string
	time, took       micros // took is 0 for phases that take no time
	pid              uint32
	tid              int
	flow             flowID // of phases phaseFlow and phaseFlowEnd
	args             []arg
}

// flowID identifies an arrow: a message, by its number among its job's messages between two nodes.
type flowID struct {
	job      id.Job
	from, to id.Node
	number   uint64
}

// arg is one of an event's args.
type arg struct {
	key    string
	text   string
	number float64
	isText bool
}

func text(key, value string) arg           { return arg{key: key, text: value, isText: true} }
func number(key string, value float64) arg { return arg{key: key, number: value} }
func count(key string, value uint64) arg   { return number(key, float64(value)) }

// append appends the entry as JSON.
func (e *entry) append(b []byte) []byte {
	b = appendText(append(b, `{"name":`...), e.name)
	if e.cat != "" {
		b = appendText(append(b, `,"cat":`...), e.cat)
	}
	b = appendText(append(b, `,"ph":`...), e.phase)
	b = appendMicros(append(b, `,"ts":`...), e.time)
	if e.took > 0 {
		b = appendMicros(append(b, `,"dur":`...), e.took)
	}
	b = strconv.AppendUint(append(b, `,"pid":`...), uint64(e.pid), 10)
	b = strconv.AppendInt(append(b, `,"tid":`...), int64(e.tid), 10)
	switch e.phase {
	case phaseInstant:
		b = append(b, `,"s":"t"`...)
	case phaseFlow:
		b = e.flow.append(b)
	case phaseFlowEnd:
		b = append(e.flow.append(b), `,"bp":"e"`...)
	}
	if len(e.args) > 0 {
		b = append(b, `,"args":{`...)
		for i, a := range e.args {
			if i > 0 {
				b = append(b, ',')
			}
			b = a.append(b)
		}
		b = append(b, '}')
	}
	return append(b, '}')
}

func (f flowID) append(b []byte) []byte {
	b = strconv.AppendUint(append(b, `,"id":"`...), uint64(f.job), 10)
	b = strconv.AppendUint(append(b, ':'), uint64(f.from), 10)
	b = strconv.AppendUint(append(b, '>'), uint64(f.to), 10)
	b = strconv.AppendUint(append(b, ':'), f.number, 10)
	return append(b, '"')
}

func (a arg) append(b []byte) []byte {
	b = append(appendText(b, a.key), ':')
	if a.isText {
		return appendText(b, a.text)
	}
	return strconv.AppendFloat(b, a.number, 'f', -1, 64)
}

// appendMicros appends a time in microseconds.
func appendMicros(b []byte, m micros) []byte {
	b = strconv.AppendInt(b, int64(m)/1000, 10)
	rest := int64(m) % 1000
	return append(b, '.', byte('0'+rest/100), byte('0'+rest/10%10), byte('0'+rest%10))
}

// appendText appends a string of JSON.
func appendText(b []byte, s string) []byte {
	for i := range len(s) {
		if c := s[i]; c < ' ' || c > '~' || c == '"' || c == '\\' {
			quoted, err := json.Marshal(s)
			if err != nil {
				panic(err) // a string always has a form
			}
			return append(b, quoted...)
		}
	}
	b = append(b, '"')
	b = append(b, s...)
	return append(b, '"')
}
