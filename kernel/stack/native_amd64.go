package stack

// native is this machine.
var native = &amd64
