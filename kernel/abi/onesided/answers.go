package onesided

import "iter"

// Answers are the answers to the requests of a train, which have one source. The zero value is
// empty. It is not safe for concurrent use.
type Answers struct {
	buffer []byte
	all    [][]byte
}

// Carry is Journal.Carry of a journal, but keeps the answer.
func (a *Answers) Carry(j *Journal, q *Request, data []byte, key uint64, memory func(window uint8) []byte) (changed bool) {
	if a.buffer == nil {
		a.buffer = make([]byte, 0, Outstanding*Most)
	}
	begin := len(a.buffer)
	b, changed := j.Carry(a.buffer, q, data, key, memory)
	answer, last := b[begin:], len(a.all)-1
	switch {
	case len(answer) == 0:
	case last >= 0 && replaces(answer, a.all[last]):
		copy(a.all[last], answer)
	default:
		a.buffer, a.all = b, append(a.all, answer)
	}
	return changed
}

// Trains returns the answers as trains: datagrams of one length, but the last may be shorter. They
// are valid until the next call of Carry. Then there are none any more.
func (a *Answers) Trains() iter.Seq[[][]byte] {
	all := a.all
	a.buffer, a.all = a.buffer[:0], a.all[:0]
	return func(yield func([][]byte) bool) {
		for len(all) > 0 {
			n, size := 1, len(all[0])
			for n < len(all) && len(all[n-1]) == len(all[0]) && len(all[n]) <= len(all[0]) && size+len(all[n]) <= mostTrain {
				size += len(all[n])
				n++
			}
			if !yield(all[:n]) {
				return
			}
			all = all[n:]
		}
	}
}

// replaces reports whether an answer says all that an earlier one to the same rank says: both have
// no data, and are about windows of one rank.
func replaces(answer, earlier []byte) bool {
	return len(answer) == AnswerSize && len(earlier) == AnswerSize && string(answer[8:12]) == string(earlier[8:12])
}
