// Package nodeset reads and writes sets of nodes as people and other systems write them: 0,2,
// node1..node4 or node[1-4,10].
//
// Condense and Parse are inverse to each other: Parse(Condense(x)) = x for nodes in ascending
// order, each once. The time of both is then proportional to the number of nodes.
package nodeset

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// Most bounds how many nodes a set may name.
const Most = 1 << 16

// ParseNode reads the number of a node, which may be written node2 or 2.
func ParseNode(text string) (uint32, error) {
	node, err := strconv.ParseUint(strings.TrimPrefix(text, "node"), 10, 31)
	if err != nil {
		return 0, fmt.Errorf("%q is not a node: nodes are called node0 or 0, node1 or 1, and so on (margay nodes)", text)
	}
	return uint32(node), nil
}

// Parse reads a set of nodes: numbers, names and ranges, as in 1..4,10 or node[1-4,10]. It returns
// them in ascending order, each once.
func Parse(text string) (nodes []uint32, err error) {
	for part, rest := "", text; rest != ""; {
		if part, rest, err = cut(rest); err != nil {
			return nil, err
		}
		if inner, ok := strings.CutPrefix(part, "node["); ok {
			part = strings.TrimSuffix(inner, "]")
		}
		for item := range strings.SplitSeq(part, ",") {
			if nodes, err = addRange(nodes, item); err != nil {
				return nil, err
			}
		}
	}
	if len(nodes) == 0 {
		return nil, errors.New("it names no node: it is a list such as 0,2, node1..node4 or node[1-4,10]")
	}
	slices.Sort(nodes)
	return slices.Compact(nodes), nil
}

// cut cuts the first part, up to a comma that is in no brackets, off a set of nodes.
func cut(text string) (part, rest string, err error) {
	depth := 0
	for i, c := range text {
		switch {
		case c == '[':
			depth++
		case c == ']':
			depth--
		case c == ',' && depth == 0:
			if i == len(text)-1 {
				return "", "", errors.New("it ends with a comma")
			}
			return text[:i], text[i+1:], nil
		}
		if depth < 0 || depth > 1 {
			break
		}
	}
	if depth != 0 {
		return "", "", errors.New("its brackets do not match: node[1-4,10]")
	}
	return text, "", nil
}

// addRange adds a node, or a range of nodes, to a set.
func addRange(nodes []uint32, text string) ([]uint32, error) {
	from, to, ok := strings.Cut(text, "..")
	if !ok {
		from, to, ok = strings.Cut(text, "-")
	}
	first, err := ParseNode(from)
	if err != nil {
		return nil, err
	}
	last := first
	if ok {
		if last, err = ParseNode(to); err != nil {
			return nil, err
		}
	}
	if last < first {
		return nil, fmt.Errorf("the range %s runs backwards", text)
	}
	if last-first >= Most || len(nodes)+int(last-first) >= Most {
		return nil, fmt.Errorf("%s: it names more than %d nodes", text, Most)
	}
	for node := first; node <= last; node++ {
		nodes = append(nodes, node)
	}
	return nodes, nil
}

// Condense writes nodes, which are in ascending order, each once, as Parse reads them: node1-4,10.
// It is empty for no nodes.
func Condense(nodes []uint32) string {
	if len(nodes) == 0 {
		return ""
	}
	return "node" + Ranges(nodes)
}

// Ranges writes numbers of nodes, ranks or jobs, which are in ascending order, as ranges: 1-4,10.
func Ranges(numbers []uint32) string {
	var text []byte
	for i := 0; i < len(numbers); {
		j := i
		for j+1 < len(numbers) && numbers[j+1] == numbers[j]+1 {
			j++
		}
		if i > 0 {
			text = append(text, ',')
		}
		text = strconv.AppendUint(text, uint64(numbers[i]), 10)
		if j > i {
			text = append(text, '-')
			text = strconv.AppendUint(text, uint64(numbers[j]), 10)
		}
		i = j + 1
	}
	return string(text)
}
