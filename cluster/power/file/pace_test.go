package file

import (
	"strings"
	"testing"
	"time"

	"margay/cluster/power"
)

func TestPace(t *testing.T) {
	const nodes = "nodes: [{number: 1, mac: '52:54:00:00:00:01'}]\n"
	for text, want := range map[string]power.Pace{
		"":                          power.DefaultPace,
		"pace: {}":                  power.DefaultPace,
		"pace: {nodes: 2}":          {Nodes: 2, Gap: power.DefaultPace.Gap},
		"pace: {gap: 500ms}":        {Nodes: power.DefaultPace.Nodes, Gap: 500 * time.Millisecond},
		"pace: {nodes: 1, gap: 0s}": {Nodes: 1},
	} {
		if m, err := Parse([]byte(nodes + text)); err != nil || m.Pace() != want {
			t.Errorf("%s: %v, want %v, %v", text, m.Pace(), want, err)
		}
	}
	for text, want := range map[string]string{
		"pace: {nodes: 0}":  "pace: nodes is 0, not a number from 1 to ",
		"pace: {nodes: -1}": "pace: nodes is -1, not a number",
		"pace: {gap: 1}":    `pace: gap is "1", not a time such as 500ms, at most 10m0s`,
		"pace: {gap: -1s}":  `pace: gap is "-1s"`,
		"pace: {gap: 11m}":  `pace: gap is "11m"`,
		"pace: 8":           "the value is of the wrong kind",
		"pace: {node: 8}":   "there is no field node",
	} {
		if _, err := Parse([]byte(nodes + text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", text, err)
		}
	}
}
