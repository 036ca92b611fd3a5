package machine

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"runtime"
	"slices"
	"strings"

	"margay/cluster/control"
	"margay/cluster/folder"
	"margay/cluster/provision"
	"margay/initramfs"
	"margay/initramfs/guestkernel"
	"margay/internal/progress"
	"margay/kernel/abi/node"
	"margay/qemu"
)

// ImageOptions say what an update gives to nodes.
type ImageOptions struct {
	File     string // a node image that exists; empty: one of Program and JobInit is built
	Program  string // the node program
	JobInit  string
	Kernel   string // provision.Generic, or the user's own kernel; empty: as the machine was made
	Progress progress.Func
}

// CanUpdate returns an error unless nodes of this machine can start another image.
func (d Dir) CanUpdate() error {
	spec, err := d.ReadSpec()
	if err != nil {
		return err
	}
	return spec.canUpdate()
}

func (s *Spec) canUpdate() error {
	if s.Substrate == node.Hosted || s.Substrate == node.Hosts {
		return control.Failf(control.Code_CODE_REFUSED, "the nodes of machine %s run on the Linux of their hosts, which Margay does not replace; margay machine down and up start them with another program", s.Name)
	}
	return nil
}

// AddImage makes an image for an update of the machine, and returns its name, and whether the
// machine was made with the same one. An image that exists is used again.
func (d Dir) AddImage(ctx context.Context, o ImageOptions) (name string, first bool, err error) {
	spec, err := d.ReadSpec()
	if err != nil {
		return "", false, err
	}
	if err := spec.canUpdate(); err != nil {
		return "", false, err
	}
	built, err := o.find(ctx, &spec)
	if err != nil {
		return "", false, err
	}
	if err := checkKernel(built.Kernel); err != nil {
		return "", false, err
	}
	b := bootImage{Kernel: built.Kernel.Image, Image: built.Path, Lacks: lacksOf(built.Kernel)}
	if b.Cmdline, err = spec.cmdline(built.Kernel); err != nil {
		return "", false, err
	}
	if spec.fromFiles() && spec.Accel == string(qemu.TCG) {
		if b.Direct, err = provision.DirectKernel(built.Kernel); err != nil {
			return "", false, err
		}
	}
	if name, err = d.addImage(b); err != nil {
		return "", false, err
	}
	made, err := spec.first().name()
	return name, err == nil && made == name, nil // its kernel may be gone from the cache
}

// forNodes are the options by which an image for the nodes of a machine is made.
func (o ImageOptions) forNodes(s *Spec) provision.ImageOptions {
	return provision.ImageOptions{
		Program: o.Program, JobInit: o.JobInit, Kernel: cmp.Or(o.Kernel, s.KernelOf), Plain: s.fromFiles(), Metal: s.Substrate == node.Metal,
		CardFirmware: s.CardFirmware, Told: o.Progress,
	}
}

// find finds the kernel, and the node image or builds it.
func (o ImageOptions) find(ctx context.Context, s *Spec) (provision.Image, error) {
	options := o.forNodes(s)
	if o.File == "" {
		image, err := provision.BuildImage(ctx, options)
		if err == nil {
			err = s.checkItems(image)
		}
		return image, err
	}
	f, err := os.Open(o.File)
	if err != nil {
		return provision.Image{}, err
	}
	defer f.Close()
	entries, err := initramfs.List(f)
	if err != nil {
		return provision.Image{}, fmt.Errorf("%s: %w", o.File, err)
	}
	kernel, err := provision.FindKernel(ctx, options)
	if err == nil {
		err = s.checkImage(entries, kernel)
	}
	if err != nil {
		return provision.Image{}, fmt.Errorf("%s: %w", o.File, err)
	}
	return provision.Image{Path: o.File, Kernel: kernel}, nil
}

// checkItems returns an error if nodes could not find their configuration with an image that was
// built.
func (s *Spec) checkItems(image provision.Image) error {
	if !s.fromNetwork() || !slices.Contains(image.Manifest.Absent, initramfs.ItemsModule) {
		return nil
	}
	return fmt.Errorf("the guest kernel %s lacks the module %s, by which a node that boots over the network gets its configuration: "+
		"use another one, or --boot %s", image.Kernel.Version, initramfs.ItemsModule, BootKernel)
}

// checkKernel returns an error if nodes could not start a kernel: the programs of a node are for
// its service host's processor.
func checkKernel(k guestkernel.Kernel) error {
	if k.Arch != runtime.GOARCH {
		return fmt.Errorf("the kernel %s is for %s, and the nodes are for %s: use another one (--kernel)", k.Version, k.Arch, runtime.GOARCH)
	}
	return nil
}

// checkImage returns an error if nodes could not boot an image of a user's with a kernel.
func (s *Spec) checkImage(entries []initramfs.Entry, k guestkernel.Kernel) error {
	const modules = "/lib/modules/"
	has := make(map[string]bool) // files, and names of modules
	for _, e := range entries {
		has[e.Path] = true
		if path.Ext(e.Path) == ".ko" {
			has[node.ModuleName(e.Path)] = true
		}
		version, _, below := strings.Cut(strings.TrimPrefix(e.Path, modules), "/")
		if strings.HasPrefix(e.Path, modules) && below && version != k.Version {
			return fmt.Errorf("it has modules of Linux %s, and the kernel is Linux %s: give it the kernel of its modules (--kernel)", version, k.Version)
		}
	}
	switch {
	case !has["/init"]:
		return errors.New("it has no /init, which a whole node image has (margay image build -o)")
	case s.fromNetwork() && !has[initramfs.ItemsModule] && k.Option("FW_CFG_SYSFS") != "y":
		return fmt.Errorf("it lacks the module %s, by which a node that boots over the network gets its configuration", initramfs.ItemsModule)
	case s.Substrate == node.Metal && has[node.LoadOrder] && !has[node.Drivers]:
		return errors.New("it has the modules of virtual nodes: build one for machines of their own (margay image build --metal)")
	}
	return nil
}

// addImage copies an image into the folder of the machine, which must exist. The folder of the
// image is complete or absent.
func (d Dir) addImage(b bootImage) (name string, err error) {
	if name, err = b.name(); err != nil {
		return "", err
	}
	if _, err := d.readImage(name); err == nil {
		return name, nil
	}
	if err := os.Mkdir(d.file(imagesName), 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return "", err
	}
	next, err := os.MkdirTemp(d.file(imagesName), nextImage)
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(next)
	copied := b
	copied.Kernel, copied.Image = filepath.Join(next, kernelFile), filepath.Join(next, initrdFile)
	if err := errors.Join(copyFile(b.Kernel, copied.Kernel), copyFile(b.Image, copied.Image)); err != nil {
		return "", err
	}
	text, err := json.Marshal(b)
	if err != nil {
		return "", err
	}
	if err := writeFile(filepath.Join(next, describeFile), text); err != nil {
		return "", err
	}
	if name, err = copied.name(); err != nil { // the files may have changed
		return "", err
	}
	if err := os.Rename(next, d.imageFolder(name)); err != nil && !errors.Is(err, fs.ErrExist) {
		return "", err
	}
	return name, nil
}

// name returns the name of an image, which is made from its content.
func (b bootImage) name() (string, error) {
	sum := sha256.New()
	for _, path := range []string{b.Kernel, b.Image} {
		hash, err := hashFile(path)
		if err != nil {
			return "", err
		}
		sum.Write(hash)
	}
	text, err := json.Marshal(b)
	if err != nil {
		return "", err
	}
	sum.Write(text)
	return hex.EncodeToString(sum.Sum(nil))[:imageDigits], nil
}

func copyFile(from, to string) error {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := folder.Open(to, os.O_WRONLY|os.O_CREATE)
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	return errors.Join(err, out.Close())
}

// hashFile returns the hash (SHA-256) of a file.
func hashFile(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	sum := sha256.New()
	_, err = io.Copy(sum, f)
	return sum.Sum(nil), err
}
