package file

import (
	"fmt"
	"time"

	"margay/cluster/power"
	"margay/internal/nodeset"
)

// mostGap bounds a gap.
const mostGap = 10 * time.Minute

// pace says how many nodes are switched on together, and how long no others are after that.
type pace struct {
	Nodes *int   `yaml:"nodes"`
	Gap   string `yaml:"gap"`
}

// parse returns the pace; the default one if the file says nothing.
func (p *pace) parse() (power.Pace, error) {
	result := power.DefaultPace
	if p == nil {
		return result, nil
	}
	if p.Nodes != nil {
		result.Nodes = *p.Nodes
	}
	if result.Nodes < 1 || result.Nodes > nodeset.Most {
		return result, fmt.Errorf("nodes is %d, not a number from 1 to %d", result.Nodes, nodeset.Most)
	}
	if p.Gap == "" {
		return result, nil
	}
	gap, err := time.ParseDuration(p.Gap)
	if err != nil || gap < 0 || gap > mostGap {
		return result, fmt.Errorf("gap is %q, not a time such as 500ms, at most %v", p.Gap, mostGap)
	}
	result.Gap = gap
	return result, nil
}

// Pace returns how many nodes are switched on together.
func (m *Machine) Pace() power.Pace { return m.pace }
