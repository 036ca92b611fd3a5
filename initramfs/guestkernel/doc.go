// Package guestkernel finds the Linux kernel that the nodes boot and says what it lacks.
//
// A kernel comes from one of three places, tried in this order:
//
//  1. what the user names (Options.Override: a kernel image, or a directory that holds one and its modules);
//  2. the cache, one directory a kernel release, complete or absent;
//  3. the package archive of the machine's own distribution.
//
// The archive is read by the machine's own apt in a private directory: its own configuration, state, cache and package
// status. Nothing on the host is changed or installed and no privilege is needed. Address and keyring come from the
// machine's apt sources; only the suite may be another one (the table distributions). apt verifies the signature of the
// index and the checksum of each package. A kernel is resolved by the name of a metapackage and by following the
// dependencies, because releases leave the archive within weeks. Packages are unpacked, never installed.
//
// A fetch happens in a temporary directory of the cache, which is renamed when it is complete. The cache's file "lock"
// is held (flock) for the whole of a fetch, so that two builds fetch once; readers of the cache take no lock.
package guestkernel
