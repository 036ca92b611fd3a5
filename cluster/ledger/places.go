package ledger

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
)

// MaxRanks bounds the ranks of places that are expanded.
const MaxRanks = 1 << 20

// Places condenses the nodes of ranks 0, 1, 2 and so on: 0-3*2,10 for two ranks on each of nodes 0
// to 3, in this order, and then one on node 10. The nodes may be in any order. ParsePlaces is the
// inverse; the time of both is proportional to the number of ranks.
func Places(nodes []uint32) string {
	var text []byte
	for i := 0; i < len(nodes); {
		each := same(nodes[i:])
		last, next := nodes[i], i+each
		for next < len(nodes) && nodes[next] == last+1 && last+1 != 0 && same(nodes[next:]) == each {
			last, next = last+1, next+each
		}
		if i > 0 {
			text = append(text, ',')
		}
		text = strconv.AppendUint(text, uint64(nodes[i]), 10)
		if last != nodes[i] {
			text = strconv.AppendUint(append(text, '-'), uint64(last), 10)
		}
		if each > 1 {
			text = strconv.AppendInt(append(text, '*'), int64(each), 10)
		}
		i = next
	}
	return string(text)
}

// same returns how many nodes at the beginning are the first one.
func same(nodes []uint32) int {
	n := 1
	for n < len(nodes) && nodes[n] == nodes[0] {
		n++
	}
	return n
}

// ParsePlaces returns the nodes of the ranks of condensed places.
func ParsePlaces(text string) (nodes []uint32, err error) {
	if text == "" {
		return nil, nil
	}
	for part := range strings.SplitSeq(text, ",") {
		if nodes, err = addPlaces(nodes, part); err != nil {
			return nil, fmt.Errorf("places %q: %w", part, err)
		}
	}
	return nodes, nil
}

var errPlaces = errors.New("they are not NODE, NODE-NODE or NODE-NODE*RANKS")

func addPlaces(nodes []uint32, part string) ([]uint32, error) {
	span, ranks, several := strings.Cut(part, "*")
	first, last, isRange := strings.Cut(span, "-")
	from, err := strconv.ParseUint(first, 10, 32)
	to, each := from, uint64(1)
	if err == nil && isRange {
		to, err = strconv.ParseUint(last, 10, 32)
	}
	if err == nil && several {
		each, err = strconv.ParseUint(ranks, 10, 32)
	}
	if err != nil || to < from || each == 0 {
		return nil, errPlaces
	}
	if to-from >= MaxRanks || each > MaxRanks || (to-from+1)*each > uint64(MaxRanks-len(nodes)) {
		return nil, fmt.Errorf("they are of more than %d ranks", MaxRanks)
	}
	for node := from; node <= to; node++ {
		for range each {
			nodes = append(nodes, uint32(node))
		}
	}
	return nodes, nil
}
