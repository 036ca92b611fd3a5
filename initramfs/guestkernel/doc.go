// Package guestkernel finds the Linux kernel that the nodes boot and says what it lacks.
//
// A kernel comes from one of three places, tried in this order:
//
//  1. what the user names (Options.Override: a kernel image, or a directory that holds one and its modules);
//  2. the cache, one directory a kernel release, complete or absent;
//  3. the package archive of the machine's own distribution.
//
// The archive is read, and what is fetched kept, by package apt. The suite may be another one than the machine's (the table
// distributions). A kernel is resolved by the name of a metapackage and by following the dependencies, because releases
// leave the archive within weeks.
package guestkernel
