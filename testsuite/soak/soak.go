// Package soak has the random and long tests: tests that depend on time in an emulated guest, and
// tests that kill and stall programs at random moments.
//
// Its tests have the build tag soak and are part of no other target. One run of a test is one round
// with one seed, which takes about a minute at most and logs the seed. `make soak` repeats the
// rounds of all tests until the time in MARGAY_SOAK is over (default 5 minutes), in a random order
// each time, and stops at the first failure. MARGAY_SEED repeats one seed, and SOAK_RUN=PATTERN
// selects tests as go test -run does. The tests of testsuite/e2e that have this tag are called
// TestSoak and repeated with them, and so are random tests of other packages, with more programs
// and histories than in `make test`.
package soak
