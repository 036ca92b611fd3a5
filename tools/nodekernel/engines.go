package main

import (
	"margay/nimble/engine"
	"margay/nimble/engine/portable"
	"margay/nimble/engine/subroutine"
)

// engines returns the engine of a node: it gives a program to the first one that
// is here and takes it. The order is that of nimble/engine/list, which a node
// does not link, because that has engines which no node uses.
func engines() engine.Engine {
	first, err := subroutine.New()
	offers := []engine.Offer{{Name: "subroutine", Engine: first, Err: err}}
	offers = append(offers, threaded()...)
	return engine.Choose(append(offers, engine.Offer{Name: "portable", Engine: portable.New()})...)
}
