// Command margay is the one command for users of a Margay machine: it runs jobs on it, shows its
// state and changes it. margay help lists its commands. It becomes margayd, which is beside it, for
// commands that make machines and those that are about all commands.
package main

import "margay/tools/margay/line"

// version is the version of this build, set by the linker.
var version = "unknown"

func main() { (&line.Program{Version: version, Groups: line.Clients, Else: line.Daemons}).Main() }
