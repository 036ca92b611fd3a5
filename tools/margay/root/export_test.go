package root

// For tests of the whole tree of commands.
var (
	NewRoot = newRoot
	Walk    = walk
	Roff    = roff
)
