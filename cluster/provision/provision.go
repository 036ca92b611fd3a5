// Package provision finds or makes what virtual nodes run on: the guest kernel, QEMU and firmware,
// which it fetches from the archive of the host's distribution if need be, and the node image. All
// of it is cached.
package provision

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"

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

	CardFirmware []string // folders with firmware files of network cards, the first one that has a file counts; Nonfree stands for the distribution's
}

// Generic stands for the distribution's newest kernel for machines of any kind, where the path of a
// kernel may stand.
const Generic = "generic"

// Nonfree stands for the firmware files of network cards that the distribution has, where a folder
// with such files may stand. They are not free software.
const Nonfree = "nonfree"

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
	if spec.Firmware, err = findCards(ctx, o, spec, filepath.Join(dir, "card-firmware")); err != nil {
		return Image{}, err
	}
	path, manifest, err := initramfs.Cached(ctx, spec, filepath.Join(dir, "image"))
	if err != nil {
		return Image{}, fmt.Errorf("node image: %w", err)
	}
	return Image{Path: path, Kernel: kernel, Manifest: manifest}, nil
}

// findCards returns the folders with firmware files for an image.
func findCards(ctx context.Context, o ImageOptions, spec initramfs.Spec, cacheDir string) ([]string, error) {
	folders := slices.Clone(o.CardFirmware)
	for _, folder := range folders {
		if info, err := os.Stat(folder); folder != Nonfree && (err != nil || !info.IsDir()) {
			return nil, fmt.Errorf("firmware files of network cards: %q is not a folder (%s stands for the ones of the distribution)", folder, Nonfree)
		}
	}
	own := slices.Index(folders, Nonfree)
	if own < 0 {
		return folders, nil
	}
	names, err := initramfs.FirmwareNames(ctx, spec)
	if err != nil {
		return nil, fmt.Errorf("node image: %w", err)
	}
	arch, err := guestkernel.ArchNamed(spec.Kernel.Arch)
	if err != nil {
		return nil, err
	}
	folders[own], err = firmware.FindCards(ctx, firmware.Options{CacheDir: cacheDir, Progress: o.Told},
		firmware.Cards{Names: names, Arch: arch.Debian, Refresh: o.Refresh})
	return folders, err
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
