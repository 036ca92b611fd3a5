package machine

import (
	"errors"
	"os"

	"margay/cluster/folder"
)

// writeFile writes a whole file of a machine.
func writeFile(path string, text []byte) error {
	f, err := folder.Open(path, os.O_WRONLY|os.O_CREATE)
	if err != nil {
		return err
	}
	if err = f.Truncate(0); err == nil {
		_, err = f.Write(text)
	}
	return errors.Join(err, f.Close())
}

// syncFile waits until a file of a machine is on the disk.
func syncFile(path string) error {
	f, err := folder.Open(path, os.O_RDONLY)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}

// removeFiles removes files and empty folders, if they exist.
func removeFiles(paths ...string) error {
	var errs []error
	for _, path := range paths {
		if err := os.Remove(path); !errors.Is(err, os.ErrNotExist) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}
