// Package provision finds or makes what virtual nodes run on: the guest kernel, QEMU and firmware,
// which it fetches from the archive of the host's distribution if need be, and the node image. All
// of it is cached.
package provision

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"

	"margay/cluster/cache"
	"margay/cluster/provision/emulator"
	"margay/cluster/provision/firmware"
	"margay/cluster/provision/linux"
	"margay/initramfs"
	"margay/initramfs/guestkernel"
	"margay/internal/progress"
	"margay/qemu"
)

// Image is a node image and the kernel that boots it.
type Image struct {
	Path     string             `json:"path"`
	Kernel   guestkernel.Kernel `json:"kernel"`
	Manifest initramfs.Manifest `json:"manifest"`
}

// ImageOptions say what a node image is made of.
type ImageOptions struct {
	Program string // the static program that becomes /init
	JobInit string // the static program that becomes node.JobInit; empty: the node can run no jobs
	Kernel  string // the path of the user's own kernel, or Generic; empty for the distribution's newest for virtual machines
	Refresh bool   // look for a newer kernel than the one in the cache
	Metal   bool   // the image is for machines of their own
	Plain   bool   // the image is not compressed: an emulator hands it over
	Told    progress.Func
}

// Generic stands for the distribution's newest kernel for machines of any kind, where the path of a
// kernel may stand.
const Generic = "generic"

// FindEmulator finds the QEMU that runs virtual nodes; where it is cached is set here.
func FindEmulator(ctx context.Context, o emulator.Options) (*qemu.Emulator, error) {
	dir, err := cache.Dir()
	if err != nil {
		return nil, err
	}
	o.CacheDir = filepath.Join(dir, "qemu")
	return emulator.Find(ctx, o)
}

// FindFirmware finds what nodes boot over the network with; where it is cached is set here.
func FindFirmware(ctx context.Context, o firmware.Options) (firmware.Files, error) {
	dir, err := cache.Dir()
	if err != nil {
		return firmware.Files{}, err
	}
	o.CacheDir = filepath.Join(dir, "firmware")
	return firmware.Find(ctx, o)
}

// FindKernel finds the kernel that boots the image of these options.
func FindKernel(ctx context.Context, o ImageOptions) (guestkernel.Kernel, error) {
	dir, err := cache.Dir()
	if err != nil {
		return guestkernel.Kernel{}, err
	}
	options := linux.Options{Override: o.Kernel, CacheDir: filepath.Join(dir, "kernel"), Refresh: o.Refresh}
	if o.Kernel == Generic {
		options.Override, options.CacheDir, options.Generic = "", filepath.Join(dir, "kernel-generic"), true
	}
	return linux.Find(ctx, options, o.Told)
}

// BuildImage makes the node image, or finds the one that was made of the same parts before.
func BuildImage(ctx context.Context, o ImageOptions) (Image, error) {
	dir, err := cache.Dir()
	if err != nil {
		return Image{}, err
	}
	kernel, err := FindKernel(ctx, o)
	if err != nil {
		return Image{}, err
	}
	spec := initramfs.Spec{Kernel: kernel, Init: o.Program, JobInit: o.JobInit, Plain: o.Plain, Progress: o.Told}
	if o.Metal {
		spec.Modules = initramfs.MetalModules()
	}
	path, manifest, err := initramfs.Cached(ctx, spec, filepath.Join(dir, "image"))
	if err != nil {
		return Image{}, fmt.Errorf("node image: %w", err)
	}
	return Image{Path: path, Kernel: kernel, Manifest: manifest}, nil
}

// DirectKernel returns the path of a kernel in the form that an emulated machine starts fastest:
// unpacked, or the image itself if that is not possible. Unpacking takes an emulated processor more
// than a second at each boot, and the host a third of that once.
func DirectKernel(k guestkernel.Kernel) (string, error) {
	dir, err := cache.Dir()
	if err != nil {
		return "", err
	}
	path, err := initramfs.UnpackedKernel(k.Image, filepath.Join(dir, "unpacked"))
	if errors.Is(err, guestkernel.ErrNotDirect) {
		return k.Image, nil
	}
	return path, err
}
