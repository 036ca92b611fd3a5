// Command margay is the one command for users of a Margay machine: it makes machines, runs jobs on
// them, shows their state and changes it. margay help lists its commands.
package main

import "margay/tools/margay/root"

// version is the version of this build, set by the linker.
var version = "unknown"

func main() { root.Main(version) }
