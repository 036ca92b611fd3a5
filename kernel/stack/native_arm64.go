package stack

// native is this machine.
var native = &arm64
