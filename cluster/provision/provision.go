// Package provision finds or makes what virtual nodes run on: the guest kernel, QEMU and firmware,
// which it fetches from the archive of the host's distribution if need be, and the node image. All
// of it is cached.
package provision

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"margay/cluster/provision/emulator"
	"margay/cluster/provision/firmware"
	"margay/cluster/provision/linux"
	"margay/cluster/way"
	"margay/initramfs"
	"margay/initramfs/guestkernel"
	"margay/internal/progress"
	"margay/qemu"
)

// Image is a node image and the kernel that boots it.
type Image struct {
	Path     string
	Kernel   guestkernel.Kernel
	Manifest initramfs.Manifest
}

// ImageOptions say what a node image is made of.
type ImageOptions struct {
	Program string // the static program that becomes /init
	JobInit string // the static program that becomes node.JobInit; empty: the node can run no jobs
	Kernel  string // the user's own kernel; empty for the distribution's newest
	Refresh bool   // look for a newer kernel than the one in the cache
	Metal   bool   // the image is for machines of their own
	Plain   bool   // the image is not compressed: an emulator hands it over
	Told    progress.Func
}

// CacheDir returns the folder that keeps kernels, images and emulators for later machines:
// MARGAY_CACHE if set, else a folder in the user's cache. It creates the folder if necessary. A
// folder that a user other than root can change or replace is an error, because its contents are
// run. Links that no other user can change are followed.
func CacheDir() (string, error) {
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

// FindEmulator finds the QEMU that runs virtual nodes; where it is cached is set here.
func FindEmulator(ctx context.Context, o emulator.Options) (*qemu.Emulator, error) {
	cache, err := CacheDir()
	if err != nil {
		return nil, err
	}
	o.CacheDir = filepath.Join(cache, "qemu")
	return emulator.Find(ctx, o)
}

// FindFirmware finds what nodes boot over the network with; where it is cached is set here.
func FindFirmware(ctx context.Context, o firmware.Options) (firmware.Files, error) {
	cache, err := CacheDir()
	if err != nil {
		return firmware.Files{}, err
	}
	o.CacheDir = filepath.Join(cache, "firmware")
	return firmware.Find(ctx, o)
}

// BuildImage makes the node image, or finds the one that was made of the same parts before.
func BuildImage(ctx context.Context, o ImageOptions) (Image, error) {
	cache, err := CacheDir()
	if err != nil {
		return Image{}, err
	}
	kernel, err := linux.Find(ctx, linux.Options{
		Override: o.Kernel, CacheDir: filepath.Join(cache, "kernel"), Refresh: o.Refresh,
	}, o.Told)
	if err != nil {
		return Image{}, err
	}
	spec := initramfs.Spec{Kernel: kernel, Init: o.Program, JobInit: o.JobInit, Plain: o.Plain, Progress: o.Told}
	if o.Metal {
		spec.Modules = initramfs.MetalModules()
	}
	path, manifest, err := initramfs.Cached(ctx, spec, filepath.Join(cache, "image"))
	if err != nil {
		return Image{}, fmt.Errorf("node image: %w", err)
	}
	return Image{Path: path, Kernel: kernel, Manifest: manifest}, nil
}

// DirectKernel returns the path of a kernel in the form that an emulated machine starts fastest:
// unpacked, or the image itself if that is not possible. Unpacking takes an emulated processor more
// than a second at each boot, and the host a third of that once.
func DirectKernel(k guestkernel.Kernel) (string, error) {
	cache, err := CacheDir()
	if err != nil {
		return "", err
	}
	path, err := initramfs.UnpackedKernel(k.Image, filepath.Join(cache, "unpacked"))
	if errors.Is(err, guestkernel.ErrNotDirect) {
		return k.Image, nil
	}
	return path, err
}
