// Package cache finds the folder of this user's cache. Guest kernels, node images, emulators,
// layers of images and digests of programs are below it.
package cache

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"margay/cluster/way"
)

// Dir returns the folder that keeps kernels, images and emulators for later machines:
// MARGAY_CACHE if set, else a folder in the user's cache. It creates the folder if necessary. A
// folder that a user other than root can change or replace is an error, because its contents are
// run. Links that no other user can change are followed.
func Dir() (string, error) {
	dir, err := cachePath()
	if err != nil {
		return "", fmt.Errorf("cache folder: %w; set %s", err, cacheVariable)
	}
	_, err = way.Folder{What: "cache folder", Path: dir, Variable: cacheVariable}.Follow(way.Made(0o755))
	if failed := new(fs.PathError); errors.As(err, &failed) {
		err = fmt.Errorf("cache folder: %w; set %s to another folder", err, cacheVariable)
	}
	if err != nil {
		return "", err
	}
	return dir, nil
}

// cacheVariable is the variable of the environment that names the cache folder.
const cacheVariable = "MARGAY_CACHE"

func cachePath() (string, error) {
	if dir := os.Getenv(cacheVariable); dir != "" {
		return filepath.Abs(dir)
	}
	dir, err := os.UserCacheDir()
	if err != nil {
		return "", err
	}
	return filepath.Abs(filepath.Join(dir, "margay"))
}
