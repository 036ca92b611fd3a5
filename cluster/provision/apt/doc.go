// Package apt fetches packages of the machine's own distribution without installing them.
//
// The archive is read by the machine's own apt in a private directory: its own configuration, state, cache and package
// status. Nothing on the host is changed or installed and no privilege is needed. Address and keyring come from the
// machine's apt sources; only the suite may be another one. apt verifies the signature of the index and the checksum of
// each package. Packages are unpacked, never installed.
//
//	host, err := apt.ReadHost("/")                       // its distribution and sources
//	archive, err := host.Open(ctx, "a-suite", config)     // reads the package index of the suite
//	packages, err := archive.Show(ctx, "a-package")       // what there is
//	tree, err := archive.Fetch(ctx, "a thing", packages)  // downloads and unpacks it
//
// What is fetched is for a Cache, one directory a thing, complete or absent. A fetch happens in a temporary directory of
// the cache, which is renamed when it is complete. The cache's file "lock" is held (flock) for the whole of a fetch, so
// that two processes fetch once; readers of the cache take no lock.
package apt

import "errors"

var (
	// ErrUnknown says that the machine's distribution is none whose archive could be used.
	ErrUnknown = errors.New("only Debian, Ubuntu and what is like them are known")
	// ErrNoArchive says that the machine's apt sources name no archive of its distribution.
	ErrNoArchive = errors.New("the apt sources of this machine name no archive of its distribution")
	// ErrNoSuite says that the archive does not have the suite that was asked for.
	ErrNoSuite = errors.New("the archive has no such suite")
)
