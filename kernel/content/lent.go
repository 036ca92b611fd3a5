package content

import (
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"margay/kernel/abi/archive"
)

// Lent is a folder with contents that a user of the node's host lends to the own jobs
// (node.Lender). Nothing is checked: only that user can write to it, and could as well give a job
// other files.
type Lent struct {
	User   uint32
	Folder string
}

// Open opens the files of a user with the given digests for reading. A file that is not there is
// nil. The caller closes the others.
func (l Lent) Open(user uint32, digests []archive.Digest) []*os.File {
	files := make([]*os.File, len(digests))
	if l.Folder == "" || user != l.User {
		return files
	}
	for i, digest := range digests {
		name := filepath.Join(l.Folder, digest.String())
		fd, err := unix.Open(name, unix.O_RDONLY|unix.O_CLOEXEC|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
		if err != nil {
			continue // the job brings it
		}
		var st unix.Stat_t
		if err := unix.Fstat(fd, &st); err != nil || st.Mode&unix.S_IFMT != unix.S_IFREG {
			unix.Close(fd)
			continue
		}
		files[i] = os.NewFile(uintptr(fd), name)
	}
	return files
}
