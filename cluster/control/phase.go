package control

import "strings"

// Word returns the name of a stage for people: loading, not UPDATE_LOADING.
func (s UpdateStage) Word() string {
	return strings.ToLower(strings.TrimPrefix(s.String(), "UPDATE_"))
}

// Word returns the name of a phase for people: prepare, not PHASE_PREPARE.
func (p Phase) Word() string { return strings.ToLower(strings.TrimPrefix(p.String(), "PHASE_")) }
