package pmi

import (
	"fmt"
	"slices"
	"time"

	"margay/kernel/abi/id"
)

// operation is what a rank wants of the published names.
type operation byte

const (
	publish operation = iota
	lookUp
	unpublish
)

// resultOf are the answers to the commands.
var resultOf = map[operation]string{publish: "publish", lookUp: "lookup", unpublish: "unpublish"}

// request is an operation that waits for the root. A node has one on its way at a time.
type request struct {
	rank id.Rank
	gone bool // the rank needs no answer any more
	message
}

// names are the names that ranks have published, at the root, and the requests of a node elsewhere.
type names struct {
	ports  map[string]string // the root's: by name
	served map[int]message   // the root's: the last answer to each place

	waiting []*request // the first is on its way
	number  uint64     // of the last request
	at      time.Duration
	pause   time.Duration
}

func newNames() names { return names{ports: make(map[string]string), served: make(map[int]message)} }

// name handles a command about a name.
func (j *Job) name(now time.Duration, number id.Rank, o operation, c command, a *Actions) {
	name, port := c.args["service"], c.args["port"]
	if name == "" || len(name) > maxName || len(port) >= maxValue || o == publish && port == "" {
		a.answer(number, "cmd=%s_result info=error rc=-1 msg=a_name_or_port_is_missing_or_too_long", resultOf[o])
		return
	}
	m := message{kind: kindRequest, operation: o, name: name, port: port}
	if j.config.Place == 0 {
		a.result(number, o, j.names.carryOut(m))
		return
	}
	j.names.waiting = append(j.names.waiting, &request{rank: number, message: m})
	if len(j.names.waiting) == 1 {
		j.names.ask(now, a)
	}
}

// carryOut carries out an operation at the root.
func (n *names) carryOut(m message) message {
	answer := message{kind: kindAnswer, number: m.number}
	port, known := n.ports[m.name]
	switch m.operation {
	case publish:
		if answer.ok = !known && len(n.ports) < maxNames; answer.ok {
			n.ports[m.name] = m.port
		}
	case lookUp:
		answer.ok, answer.port = known, port
	case unpublish:
		answer.ok = known
		delete(n.ports, m.name)
	}
	return answer
}

// result answers a rank.
func (a *Actions) result(to id.Rank, o operation, m message) {
	port := ""
	if o == lookUp && m.ok {
		port = " port=" + m.port
	}
	if m.ok {
		a.answer(to, "cmd=%s_result%s info=ok rc=0 msg=success", resultOf[o], port)
		return
	}
	why := "the_name_is_not_published"
	if o == publish {
		why = "the_name_is_taken_or_there_are_too_many"
	}
	a.answer(to, "cmd=%s_result info=error rc=-1 msg=%s", resultOf[o], why)
}

// ask sends the first request that waits, with a number.
func (n *names) ask(now time.Duration, a *Actions) {
	n.number++
	first := n.waiting[0]
	first.number = n.number
	n.at, n.pause = now+firstResend, firstResend
	a.Messages = append(a.Messages, Message{0, first.encode()})
}

// asked handles a request of another node at the root. One that comes again gets the same answer.
func (n *names) asked(from int, m message, a *Actions) {
	last := n.served[from]
	if m.number == 0 || m.number < last.number {
		return
	}
	if m.number > last.number {
		last = n.carryOut(m)
		n.served[from] = last
	}
	a.Messages = append(a.Messages, Message{from, last.encode()})
}

// answered handles an answer of the root.
func (j *Job) answered(now time.Duration, m message, a *Actions) {
	n := &j.names
	if len(n.waiting) == 0 || n.waiting[0].number != m.number {
		return // it comes again
	}
	first := n.waiting[0]
	n.waiting = slices.Delete(n.waiting, 0, 1)
	if !first.gone {
		if !printable(m.port) {
			m.ok, m.port = false, ""
		}
		a.result(first.rank, first.operation, m)
	}
	if len(n.waiting) > 0 {
		n.ask(now, a)
	}
}

// forget drops the requests of a rank that has ended. The one on its way may have been carried out.
func (n *names) forget(r id.Rank) {
	for i, request := range slices.Backward(n.waiting) {
		switch {
		case request.rank != r:
		case i == 0:
			request.gone = true
		default:
			n.waiting = slices.Delete(n.waiting, i, i+1)
		}
	}
}

// waits reports whether a rank has a request that was not answered.
func (n *names) waits(r id.Rank) bool {
	return slices.ContainsFunc(n.waiting, func(q *request) bool { return q.rank == r && !q.gone })
}

func (n *names) due() (time.Duration, bool) { return n.at, len(n.waiting) > 0 }

func (n *names) tick(now time.Duration, a *Actions) {
	if len(n.waiting) == 0 || now < n.at {
		return
	}
	n.pause = min(2*n.pause, lastResend)
	n.at = now + n.pause
	a.Messages = append(a.Messages, Message{0, n.waiting[0].encode()})
}

// Mapping returns the value of PMI_process_mapping for ranks on nodes, given as the place of each
// rank's node in the order of their first ranks; empty if it is too long for a value.
func Mapping(nodes []int) string {
	type block struct{ first, nodes, ranks int }
	var blocks []block
	for i := 0; i < len(nodes); {
		run := 1
		for i+run < len(nodes) && nodes[i+run] == nodes[i] {
			run++
		}
		if last := len(blocks) - 1; last >= 0 && blocks[last].ranks == run && blocks[last].first+blocks[last].nodes == nodes[i] {
			blocks[last].nodes++
		} else {
			blocks = append(blocks, block{nodes[i], 1, run})
		}
		i += run
	}
	text := "(vector"
	for _, b := range blocks {
		text += fmt.Sprintf(",(%d,%d,%d)", b.first, b.nodes, b.ranks)
	}
	if text += ")"; len(text) >= maxValue {
		return ""
	}
	return text
}
