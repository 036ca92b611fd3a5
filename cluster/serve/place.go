package serve

import (
	"cmp"
	"errors"
	"slices"

	"margay/cluster/control"
	"margay/cluster/placement"
	"margay/kernel/abi/id"
	"margay/kernel/abi/slot"
	"margay/kernel/extension"
)

// Extensions in slot place run in serve (cluster/placement). They choose among the nodes that can
// take a part of a job, after the job is known to fit; whether it fits, and when it is its turn,
// does not depend on them. serve records them, and a new serve inserts them again under their old
// handles. One that is removed for its faults is forgotten at once.

// choose returns the places of a job: the default ones, unless an extension chooses others. It
// returns nil if there is not enough room. The caller holds Server.mu.
func (s *Server) choose(spec *control.JobSpec, offers []offer) []*control.Place {
	shape := shapeOf(spec)
	places := allocate(offers, shape)
	if places == nil || s.chooser.Empty() {
		return places
	}
	candidates := shape.candidates(offers)
	turns, spent := s.chooser.Choose(s.described(spec, candidates))
	for _, handle := range spent {
		if err := s.store.deletePlacer(uint64(handle)); err != nil {
			s.config.Log("extension %d in slot place was removed, which cannot be recorded: %v", handle, err)
		}
	}
	if chosen := shape.places(shape.inTurn(candidates, turns)); chosen != nil && s.suits(spec, offers, chosen, places) {
		return chosen
	}
	return places
}

// suits reports whether nothing refuses a job on the chosen places that would not refuse it on the
// usual ones: a lack of spares, a limit of its user, or a node that has not forgotten the last job
// on a core. The caller holds Server.mu.
func (s *Server) suits(spec *control.JobSpec, offers []offer, chosen, usual []*control.Place) bool {
	shape, n := shapeOf(spec), int(spec.Spares)
	chosenSpares, usualSpares := spares(offers, shape, chosen, n), spares(offers, shape, usual, n)
	if len(chosenSpares) < len(usualSpares) {
		return false
	}
	chosen, usual = slices.Concat(chosen, chosenSpares), slices.Concat(usual, usualSpares)
	if seats(chosen) > seats(usual) && s.withinLimits(nil, spec, chosen) != nil {
		return false
	}
	return !s.forgetting(chosen, spec.Step) || s.forgetting(usual, spec.Step)
}

// candidate is an offer that can take a part of a job.
type candidate struct {
	offer
	room int // ranks, at least 1
}

// candidates returns the offers that can take a part of a job.
func (s shape) candidates(offers []offer) (list []candidate) {
	for _, o := range offers {
		if room := s.room(o); room > 0 {
			list = append(list, candidate{o, room})
		}
	}
	return list
}

// described describes candidates for extensions. The caller holds Server.mu.
func (s *Server) described(spec *control.JobSpec, candidates []candidate) []slot.PlaceContext {
	list := make([]slot.PlaceContext, len(candidates))
	for i, c := range candidates {
		n := s.nodes[c.node]
		list[i] = slot.PlaceContext{
			Node: c.node, Index: uint32(i), Candidates: uint32(len(list)), Cores: uint32(c.total), Free: uint32(len(c.cores)),
			Room: uint32(c.room), Turn: uint32(c.room), Ranks: spec.Ranks, Each: spec.CoresEach, User: spec.Uid,
			Memory: uint64(max(0, n.info.Memory)), FreeMemory: uint64(max(0, n.free)),
		}
	}
	return list
}

// room returns how many ranks of a job a node can take when it is the first to take some, or, of a
// job with a number of ranks on each node, the last.
func (s shape) room(o offer) int {
	if !s.mayUse(o.node) {
		return 0
	}
	if s.spreads() {
		large, small := s.shares()
		ranks, _ := s.share(o, &large, &small)
		return ranks
	}
	ranks, _ := s.on(o, s.ranks)
	if rest := s.ranks % max(1, s.perNode); ranks == 0 && rest > 0 {
		ranks, _ = s.on(o, rest)
	}
	return ranks
}

// inTurn divides a job among candidates in the order of their turns. The parts are in the order of
// nodes. They are not the whole job if no extension has decided, or if the nodes that come last
// lack room for the rest.
func (s shape) inTurn(candidates []candidate, turns []placement.Turn) (parts []part) {
	if s.perNode > 0 || s.nodes > 0 { // the user has said how many ranks a node gets
		ordered := make([]offer, len(turns))
		for i, t := range turns {
			ordered[i] = candidates[t.Candidate].offer
		}
		parts = s.parts(ordered)
		slices.SortFunc(parts, func(a, b part) int { return cmp.Compare(a.node, b.node) })
		return parts
	}
	for i, ranks := range s.rounds(candidates, turns) {
		if c := candidates[i]; ranks > 0 {
			parts = append(parts, part{c.offer, ranks, s.cores(c.total, ranks)})
		}
	}
	return parts
}

// rounds returns how many ranks each candidate takes when the turns go round until every rank has a
// node, or no candidate has room.
func (s shape) rounds(candidates []candidate, turns []placement.Turn) []int {
	taken, left := make([]int, len(candidates)), s.ranks
	turns = slices.Clone(turns)
	for left > 0 && len(turns) > 0 {
		turns = slices.DeleteFunc(turns, func(t placement.Turn) bool {
			room := candidates[t.Candidate].room - taken[t.Candidate]
			ranks := min(int(t.Ranks), room, left)
			taken[t.Candidate] += ranks
			left -= ranks
			return ranks == room
		})
	}
	return taken
}

// isPlacer reports whether a request to insert an extension is for slot place. It is not if nodes
// must refuse its object. An object for a job comes from any user, so only nodes parse it.
func isPlacer(m *control.InsertExtension) bool {
	if m.Job != 0 {
		return false
	}
	name, err := extension.SlotOf(requestOf(m))
	return err == nil && name == slot.PlaceSlot
}

// requestOf is a request as the chooser takes it. The handle of an extension is its number.
func requestOf(m *control.InsertExtension) extension.Request {
	r := extension.Request{Name: m.Name, Slot: slot.Name(m.Slot), Object: m.Object, Number: m.Number, Handle: id.Handle(m.Number)}
	for _, s := range m.Settings {
		r.Settings = append(r.Settings, extension.Setting{Name: s.Name, Value: s.Value})
	}
	return r
}

// insertPlacer inserts an extension into slot place. It is recorded first: once it has run, its
// last fault may remove it again.
func (s *Server) insertPlacer(m *control.InsertExtension) (*control.Extensions, error) {
	if m.Node != control.None {
		return nil, control.Failf(control.Code_CODE_BAD_REQUEST, "slot place is the allocator's, not a node's: leave out --node")
	}
	s.replacing.Lock()
	defer s.replacing.Unlock()
	var err error
	if m.Number, err = s.store.nextExtension(); err != nil {
		return nil, s.onDisk(err)
	}
	if err := s.store.savePlacer(m); err != nil {
		return nil, s.onDisk(err)
	}
	if err := s.chooser.Insert(requestOf(m)); err != nil {
		return nil, errors.Join(refusal(err), s.store.deletePlacer(m.Number))
	}
	list := new(control.Extensions)
	for _, x := range s.placers() {
		if x.Number == m.Number {
			list.Extensions = append(list.Extensions, x)
		}
	}
	return list, nil
}

// refusal is why an extension was not inserted, for clients.
func refusal(err error) error {
	if errors.Is(err, extension.ErrNoRoom) {
		return control.Failf(control.Code_CODE_NO_ROOM, "%v", err)
	}
	return control.Failf(control.Code_CODE_REFUSED, "%v", err)
}

// removePlacer removes an extension from slot place, and its record, which outlives the extension
// if it could not be deleted.
func (s *Server) removePlacer(handle uint32) error {
	s.replacing.Lock()
	defer s.replacing.Unlock()
	absent := s.chooser.Remove(id.Handle(handle), "an operator has removed it") != nil
	if err := s.store.deletePlacer(uint64(handle)); err != nil {
		return s.onDisk(err)
	}
	if absent {
		return control.Failf(control.Code_CODE_NOT_FOUND, "there is no extension %d in the allocator (margay ext list)", handle)
	}
	return nil
}

// restorePlacers inserts the extensions of an earlier serve again.
func (s *Server) restorePlacers() error {
	placers, err := s.store.placers()
	for _, m := range placers {
		if err := s.chooser.Insert(requestOf(m)); err != nil {
			s.config.Log("extension %s in slot place is not inserted again: %v", m.Name, err)
			if !errors.Is(err, extension.ErrRefused) {
				continue // a later serve may have the memory for it
			}
			if err := s.store.deletePlacer(m.Number); err != nil {
				return err
			}
		}
	}
	return err
}

// placers describes the extensions in slot place.
func (s *Server) placers() (list []*control.ExtensionState) {
	for _, x := range s.chooser.List() {
		state := &control.ExtensionState{
			Node: control.Allocator, Handle: uint32(x.Handle), Slot: string(x.Slot), Name: x.Name, State: active, Engine: x.Engine, Runs: x.Stats.Runs,
			Instructions: x.Stats.Instructions, Faults: x.Stats.Faults, TimeNs: int64(x.Stats.Time), Passed: x.Passed, Number: x.Number,
		}
		if x.Removed != "" {
			state.State = "removed: " + x.Removed
		}
		if x.Stats.LastFault != nil {
			state.LastFault = x.Stats.LastFault.Error()
		}
		list = append(list, state)
	}
	return list
}

// placerNotes returns the notes about extensions in slot place that come after those that a reader
// knows.
func (s *Server) placerNotes(after uint64) (notes []*control.ExtensionNote) {
	for _, n := range s.chooser.Notes(after) {
		notes = append(notes, &control.ExtensionNote{
			Node: control.Allocator, Seq: n.Seq, TimeNs: n.Time.UnixNano(), Handle: uint32(n.Handle), Name: n.Name, Text: n.Text,
		})
	}
	return notes
}
