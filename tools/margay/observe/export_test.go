package observe

import (
	"net/http"

	"margay/cluster/control"
	"margay/tools/margay/command"
)

// Signs returns the signs on a map, by the state of a node.
func Signs() map[string]rune {
	signs := make(map[string]rune)
	for _, s := range stateSigns {
		signs[s.state] = s.sign
	}
	return signs
}

// States returns all states of a node but up.
func States() (all []string) {
	all = append(all, "ill", "waiting")
	for health, name := range healthNames {
		if health != control.NodeHealth_NODE_UP {
			all = append(all, name)
		}
	}
	for _, name := range drainNames {
		all = append(all, name)
	}
	return all
}

// MetricsHandler is the server of margay metrics for a machine.
func MetricsHandler(machine string) http.Handler {
	return commands{&command.App{Machine: machine}}.metricsHandler()
}
