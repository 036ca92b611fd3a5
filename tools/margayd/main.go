// Command margayd has all commands of margay, and is the daemons of a machine: its holder and its
// serve. Users call margay, which executes margayd where it lacks a command itself.
//
// It is apart from margay because each job starts that, and a program starts faster with fewer
// packages.
package main

import "margay/tools/margay/root"

// version is the version of this build, set by the linker.
var version = "unknown"

func main() { root.Program(version).Main() }
