package main

import "margay/nimble/engine"

// threaded offers the engine direct, but not where there is subroutine: its
// handlers would be a tenth of this program.
func threaded() []engine.Offer { return nil }
