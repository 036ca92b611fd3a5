package content

import (
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"margay/kernel/abi/archive"
)

// OpenLent opens the files with the given digests in a folder with contents that a user of the
// node's host lends to its own jobs (node.Lender) for reading. A file that is not there is nil. The
// caller closes the others. Nothing is checked: only that user can write to the folder, and could
// as well give a job other files.
func OpenLent(folder string, digests []archive.Digest) []*os.File {
	files := make([]*os.File, len(digests))
	for i, digest := range digests {
		name := filepath.Join(folder, digest.String())
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
