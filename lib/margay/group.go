package margay

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"slices"

	"margay/kernel/abi/wire"
	"margay/lib/collective"
)

// MaxGroups is how many groups a rank can be in at a time.
const MaxGroups = wire.MaxGroups

// Errors about groups.
var (
	// ErrFreed reports a call of a group after Free.
	ErrFreed = errors.New("the group is freed")
	// ErrGroup reports that a group was not made at any rank: a rank has MaxGroups or a group
	// of the same number, or ranks gave lists that do not fit together.
	ErrGroup = errors.New("margay: the group was not made")
)

// Ranks are the ranks that make a collective call together: all of a Job, or the ranks of a Group.
type Ranks interface {
	Rank() int // of this process among them
	Size() int
	team() (*Job, *collective.Group)
}

func (j *Job) team() (*Job, *collective.Group) { return j, j.world }

// Group is some ranks of a job, with numbers of their own from 0: their places. A rank may be in
// many groups, whose calls do not wait for each other. A Group is safe for concurrent use.
type Group struct {
	job  *Job
	part *collective.Group
}

func (g *Group) team() (*Job, *collective.Group) { return g.job, g.part }

// Rank is this process's place in the group, 0 to Size-1.
func (g *Group) Rank() int { return g.part.Place() }

// Size is the number of ranks in the group.
func (g *Group) Size() int { return g.part.Size() }

// JobRank is the rank in the job of a place in the group.
func (g *Group) JobRank(place int) int {
	if place < 0 || place >= g.Size() {
		panic(fmt.Sprintf("margay: the group has no rank %d", place))
	}
	return g.part.Rank(place)
}

// Free ends this rank's use of the group, without other ranks. It fails while calls are under way.
func (g *Group) Free() error {
	j := g.job
	j.handling.Lock()
	defer j.handling.Unlock()
	if g.part.Busy() || j.desk.BusyIn(g.part.ID()) {
		return errors.New("margay: free a group: a call of it is under way")
	}
	if j.calls.groups[g.part.ID()] == g.part {
		delete(j.calls.groups, g.part.ID())
		j.desk.Forget(g.part.ID())
	}
	return nil
}

// Barrier waits until all ranks of the group have called it or StartBarrier as often as this one.
// Unlike Job.Barrier, it waits for no messages and puts.
func (g *Group) Barrier(ctx context.Context) error {
	return call(ctx, g, collective.Spec{Kind: wire.CallBarrier})
}

// StartBarrier starts a Group.Barrier of ranks, which may be all of a job.
func StartBarrier(on Ranks) (*Request, error) {
	return start(on, collective.Spec{Kind: wire.CallBarrier})
}

// Split makes a group of the ranks that give the same colour, ordered by key, and by their place
// where keys are equal. It is a collective call, and makes the groups of all colours or none. A
// rank with a negative colour gets nil.
func Split(ctx context.Context, on Ranks, colour, key int) (*Group, error) {
	if colour > math.MaxInt32 || int(int32(key)) != key {
		return nil, fmt.Errorf("margay: split: colour %d and key %d: they have 32 bits", colour, key)
	}
	return split(ctx, on, max(colour, -1), key, nil)
}

// NewGroup makes a group of some ranks of on, in that order. It is a collective call of on: ranks
// that are in no group give no ranks, or the ranks of a group, and get nil. Ranks of one group
// give the same ranks; several groups without common ranks may be made at a time.
func NewGroup(ctx context.Context, on Ranks, ranks []int) (*Group, error) {
	for i, rank := range ranks {
		if rank < 0 || rank >= on.Size() || slices.Contains(ranks[:i], rank) {
			return nil, fmt.Errorf("margay: new group: rank %d is not one of %d, or is there twice", rank, on.Size())
		}
	}
	colour, key := -1, slices.Index(ranks, on.Rank())
	if key >= 0 {
		colour = ranks[0]
	}
	return split(ctx, on, colour, key, ranks)
}

// split makes a group of ranks with a colour. If want is not nil, its places must be those.
func split(ctx context.Context, on Ranks, colour, key int, want []int) (*Group, error) {
	j, parent := on.team()
	wish := collective.Wish{Colour: int32(colour), Key: int32(key), Drawn: j.draw()}
	wishes := make([]byte, collective.WishSize*on.Size())
	if err := call(ctx, on, collective.Spec{Kind: wire.CallSplit, In: wish.Encode(), Out: wishes}); err != nil {
		return nil, err
	}
	id, places := parent.Split(wishes)
	g, made := j.join(parent, id, places)
	if want != nil && places != nil {
		made = made && slices.Equal(places, want)
	}
	// A rank may send to the group when it has seen that all others can receive.
	all := make([]byte, 8)
	if made {
		all[0] = 1
	}
	err := call(ctx, on, collective.Spec{Kind: wire.CallAllReduce, Type: wire.TypeUint64, Op: wire.OpMin, In: all, Out: all, Element: 8, Combine: least})
	if err == nil && all[0] == 0 {
		err = ErrGroup
	}
	switch {
	case g == nil:
		return nil, err
	case err != nil:
		_ = g.Free()
		return nil, err
	}
	return g, nil
}

func least(into, from []byte) {
	binary.LittleEndian.PutUint64(into, min(binary.LittleEndian.Uint64(into), binary.LittleEndian.Uint64(from)))
}

// draw draws a number for a group that has none of another group of this rank.
func (j *Job) draw() uint16 {
	j.handling.Lock()
	defer j.handling.Unlock()
	for {
		j.calls.drawn++
		id := wire.NewGroupID(j.header.Rank, j.calls.drawn)
		if _, used := j.calls.groups[id]; j.calls.drawn != 0 && !used {
			return j.calls.drawn
		}
	}
}

// join makes this rank's part in a group of ranks at places of another one. It reports false if
// there are too many, or one has the number: a rank that has freed its group may draw that number
// again while this one is still in the group. Of no places, there is no group.
func (j *Job) join(parent *collective.Group, id wire.GroupID, places []int) (g *Group, made bool) {
	if places == nil {
		return nil, true
	}
	ranks, near := make([]int, len(places)), true
	for i, place := range places {
		ranks[i] = parent.Rank(place)
		near = near && j.NodeOf(ranks[i]) == j.Node()
	}
	j.handling.Lock()
	defer j.handling.Unlock()
	if len(j.calls.groups) > MaxGroups || j.calls.groups[id] != nil {
		return nil, false
	}
	part := collective.NewGroup(id, ranks, j.Rank(), near)
	j.calls.groups[id] = part
	return &Group{job: j, part: part}, true
}
