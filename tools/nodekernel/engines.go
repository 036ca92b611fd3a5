package main

import (
	"margay/nimble/engine"
	"margay/nimble/engine/portable"
	"margay/nimble/engine/subroutine"
)

// engines returns the engine of a node: it gives a program to the first available
// engine that accepts it. The order is the same as in nimble/engine/list. A node
// does not link that package, because it has engines that no node uses.
func engines() engine.Engine {
	first, err := subroutine.New()
	offers := []engine.Offer{{Name: "subroutine", Engine: first, Err: err}}
	offers = append(offers, threaded()...)
	return engine.Choose(append(offers, engine.Offer{Name: "portable", Engine: portable.New()})...)
}
