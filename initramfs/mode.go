package initramfs

import "io/fs"

// The bits of st_mode that are not permissions (inode(7)).
const (
	unixTypeMask = 0o170000
	unixSetuid   = 0o4000
	unixSetgid   = 0o2000
	unixSticky   = 0o1000
)

// modeBits pairs Go's bits with Unix's.
var modeBits = []struct {
	mode fs.FileMode
	unix uint32
}{
	{fs.ModeDir, 0o040000},
	{fs.ModeSymlink, 0o120000},
	{fs.ModeDevice | fs.ModeCharDevice, 0o020000},
	{fs.ModeDevice, 0o060000},
	{fs.ModeNamedPipe, 0o010000},
	{fs.ModeSocket, 0o140000},
	{0, 0o100000},
}

// flagBits pairs the bits beside type and permission.
var flagBits = []struct {
	mode fs.FileMode
	unix uint32
}{
	{fs.ModeSetuid, unixSetuid},
	{fs.ModeSetgid, unixSetgid},
	{fs.ModeSticky, unixSticky},
}

// unixMode converts mode to an st_mode.
func unixMode(mode fs.FileMode) uint32 {
	u := uint32(mode.Perm())
	for _, b := range modeBits {
		if mode.Type() == b.mode {
			u |= b.unix
		}
	}
	for _, b := range flagBits {
		if mode&b.mode != 0 {
			u |= b.unix
		}
	}
	return u
}

// goMode converts an st_mode to Go's form. An unknown type becomes fs.ModeIrregular.
func goMode(u uint32) fs.FileMode {
	mode := fs.ModeIrregular
	for _, b := range modeBits {
		if u&unixTypeMask == b.unix {
			mode = b.mode
		}
	}
	mode |= fs.FileMode(u & 0o777)
	for _, b := range flagBits {
		if u&b.unix != 0 {
			mode |= b.mode
		}
	}
	return mode
}
