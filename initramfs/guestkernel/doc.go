// Package guestkernel finds the Linux kernel that the nodes boot and reports its missing features.
//
// A kernel comes from one of three places, tried in this order:
//
//  1. what the user names (Options.Override: a kernel image, or a directory that holds one and its modules);
//  2. the cache, one directory a kernel release, complete or absent;
//  3. the package archive of the machine's own distribution.
//
// Package apt reads the archive and keeps the fetched files. The suite may differ from the
// machine's (table distributions). A kernel is resolved by the name of a metapackage and by
// following the dependencies, because releases leave the archive within weeks.
package guestkernel
