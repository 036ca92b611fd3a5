//go:build !amd64

package main

import (
	"margay/nimble/engine"
	"margay/nimble/engine/direct"
)

// threaded offers the engine direct.
func threaded() []engine.Offer {
	e, err := direct.New()
	return []engine.Offer{{Name: "direct", Engine: e, Err: err}}
}
