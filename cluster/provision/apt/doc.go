// Package apt fetches packages of the machine's own distribution without installing them.
//
// The machine's own apt reads the archive in a private directory with its own configuration, state,
// cache and package status. It changes and installs nothing on the host and needs no privilege.
// Address and keyring come from the machine's apt sources; only the suite may differ. apt verifies
// the signature of the index and the checksum of each package. Packages are unpacked, never
// installed.
//
//	host, err := apt.ReadHost("/")                       // its distribution and sources
//	archive, err := host.Open(ctx, "a-suite", config)     // reads the package index of the suite
//	packages, err := archive.Show(ctx, "a-package")       // the packages that exist
//	tree, err := archive.Fetch(ctx, "a thing", packages)  // downloads and unpacks it
//
// A Cache has one directory per item, complete or absent. A fetch happens in a temporary directory
// of the cache, which is renamed when it is complete. A fetch holds the cache's file "lock"
// (flock), so that two processes fetch once; readers of the cache take no lock.
package apt

import "errors"

var (
	// ErrUnknown reports a distribution whose archive cannot be used.
	ErrUnknown = errors.New("only Debian, Ubuntu and their derivatives are supported")
	// ErrNoArchive reports apt sources without an archive of the machine's distribution.
	ErrNoArchive = errors.New("the apt sources of this machine name no archive of its distribution")
	// ErrNoSuite reports an archive without the requested suite.
	ErrNoSuite = errors.New("the archive has no such suite")
)
