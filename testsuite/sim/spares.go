package sim

import (
	"time"

	"margay/kernel/task/spare"
)

// owner is whose jobs all are.
const owner = "owner"

// epoch is the time 0 of spares.
var epoch = time.Unix(0, 0)

func (m *model) clock() time.Time { return epoch.Add(m.Now()) }

// makeSpares makes the machines that decide when nodes of one host start job inits ahead of their
// jobs.
func (m *model) makeSpares() {
	for range m.Nodes + len(m.Deaths) {
		s := spare.New(spare.Default)
		if m.Spares {
			s.Ready(m.clock(), s.Step(m.clock()).Start)
		}
		m.spares = append(m.spares, s)
	}
}

// takeSpare begins a launch on a node, and returns the work of making a job init if none is ready.
func (m *model) takeSpare(place int32) time.Duration {
	if m.spares == nil {
		if m.Spares {
			return 0
		}
		return m.Work.Spare
	}
	s := m.spares[m.members[place-1]]
	m.nodes[place].launching = true
	if s.Launch(owner) == 0 {
		return m.Work.Spare
	}
	s.Used(m.clock(), true)
	return 0
}

// launched ends the launch on a node, whose ranks have started.
func (m *model) launched(place int32) {
	if m.spares == nil {
		return
	}
	m.nodes[place].launching = false
	m.spares[m.members[place-1]].Launched(m.clock(), m.rest(place))
	m.step(m.members[place-1])
}

// forgotten ends a job on a node. Its init does not wait for the next job: none did when the times
// were measured that this model is held to.
func (m *model) forgotten(place int32) {
	if m.spares == nil {
		return
	}
	m.spares[m.members[place-1]].Ended(m.clock(), m.nodes[place].launching, m.rest(place))
	m.nodes[place].launching = false
	m.step(m.members[place-1])
}

func (m *model) rest(place int32) spare.Rest {
	return spare.RestOf(int(place-1), len(m.members), m.Processors)
}

// step does the work of a node's spare that is due.
func (m *model) step(number uint32) {
	action := m.spares[number].Step(m.clock())
	if action.Start != 0 {
		m.do(atClient, m.Work.Spare, Event{Kind: ready, Node: int32(number), Value: int32(action.Start)})
	}
	if !action.Wake.IsZero() {
		m.At(max(m.Now(), action.Wake.Sub(epoch)), Event{Kind: steps, Node: int32(number)})
	}
}

// spare is the event of a spare.
func (m *model) spare(e Event) {
	number := uint32(e.Node)
	if e.Kind == ready {
		m.spares[number].Ready(m.clock(), spare.Serial(e.Value))
	}
	m.step(number)
}
