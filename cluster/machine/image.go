package machine

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"margay/cluster/control"
	"margay/cluster/folder"
	"margay/cluster/provision"
	"margay/initramfs"
	"margay/internal/progress"
	"margay/kernel/abi/id"
	"margay/kernel/abi/node"
	"margay/qemu"
)

// An update (margay node update) gives nodes an image of a name, which has a folder in the folder
// of the machine: the kernel, the node image, and a description of both. The name is made from
// their content. The client makes the folder; the holder reads it, and records which image a node
// boots once the node has come up with it.

// The files of an image in its folder, and the record in the machine's folder of the images that
// nodes boot.
const (
	imagesName   = "images"
	kernelFile   = "kernel"
	initrdFile   = "image"
	describeFile = "image.json"
	bootsName    = "boots.json"
	nextBoots    = "boots.next"
	nextImage    = ".next" // begins the name of the folder of an image that is being made
)

// bootImage is what a virtual node boots, besides its configuration.
type bootImage struct {
	Kernel  string   `json:"-"`                // path of the guest kernel
	Image   string   `json:"-"`                // path of the node image
	Direct  string   `json:"direct,omitempty"` // as Spec.Direct
	Cmdline string   `json:"cmdline"`          // of the guest kernel
	Lacks   []string `json:"lacks,omitempty"`  // what it lacks
}

// first is the image that the machine was made with.
func (s *Spec) first() bootImage {
	return bootImage{Kernel: s.Kernel, Image: s.Image, Direct: s.Direct, Cmdline: s.Cmdline, Lacks: s.Lacks}
}

// start is the path of the kernel that a virtual node starts.
func (b bootImage) start() string {
	if _, err := os.Stat(b.Direct); err != nil {
		return b.Kernel
	}
	return b.Direct
}

// imageDigits is the length of an image's name, in hexadecimal digits.
const imageDigits = 16

func (d Dir) imageFolder(name string, file ...string) string {
	return d.file(append([]string{imagesName, name}, file...)...)
}

// readImage returns an image by its name, which is untrusted.
func (d Dir) readImage(name string) (bootImage, error) {
	if _, err := hex.DecodeString(name); err != nil || len(name) != imageDigits {
		return bootImage{}, control.Failf(control.Code_CODE_BAD_REQUEST, "%q is not the name of an image", name)
	}
	text, err := folder.Read(d.imageFolder(name, describeFile))
	if errors.Is(err, fs.ErrNotExist) {
		return bootImage{}, control.Failf(control.Code_CODE_NOT_FOUND, "machine %s has no image %s", d.Name(), name)
	}
	b := bootImage{Kernel: d.imageFolder(name, kernelFile), Image: d.imageFolder(name, initrdFile)}
	if err == nil {
		err = json.Unmarshal(text, &b)
	}
	if err != nil {
		return bootImage{}, fmt.Errorf("image %s: %w", name, err)
	}
	b.Cmdline = named(b.Cmdline, name)
	return b, nil
}

// boots says which images nodes boot. The zero value is for a machine that was never updated. It is
// plain data.
type boots struct {
	Nodes map[id.Node]string `json:"nodes,omitempty"` // names by number; others boot the machine's first image
}

func (d Dir) readBoots() (b boots, err error) {
	text, err := folder.Read(d.file(bootsName))
	if errors.Is(err, fs.ErrNotExist) {
		return b, nil
	}
	if err == nil {
		err = json.Unmarshal(text, &b)
	}
	if err != nil {
		return b, fmt.Errorf("machine %s: %s: %w", d.Name(), d.file(bootsName), err)
	}
	return b, nil
}

// writeBoots records which images nodes boot. A reader gets the last record or this one.
func (d Dir) writeBoots(b boots) error { return d.replace(bootsName, nextBoots, b) }

// ImageOptions say what an update gives to nodes.
type ImageOptions struct {
	File     string // a node image that exists; empty: one of Program and JobInit is built
	Program  string // the node program
	JobInit  string
	Kernel   string // the user's own kernel; empty for the distribution's newest in the cache
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
	switch {
	case s.Substrate == node.Hosted || s.Substrate == node.Hosts:
		return control.Failf(control.Code_CODE_REFUSED, "the nodes of machine %s run on the Linux of their hosts, which Margay does not replace; margay machine down and up start them with another program", s.Name)
	case s.Substrate != node.Virtual || s.fromNetwork():
		return control.Failf(control.Code_CODE_REFUSED, "the nodes of machine %s boot over the network, and margay node update is for nodes that boot with --boot %s; margay machine down and up give them another image", s.Name, BootKernel)
	}
	return nil
}

// AddImage makes an image for an update of the machine, and returns its name. An image that exists
// is used again.
func (d Dir) AddImage(ctx context.Context, o ImageOptions) (name string, err error) {
	spec, err := d.ReadSpec()
	if err != nil {
		return "", err
	}
	if err := spec.canUpdate(); err != nil {
		return "", err
	}
	built, err := o.find(ctx)
	if err != nil {
		return "", err
	}
	profile, err := initramfs.ParseProfile(spec.Profile)
	if err != nil {
		return "", err
	}
	b := bootImage{Kernel: built.Kernel.Image, Image: built.Path, Lacks: lacksOf(built.Kernel)}
	if b.Cmdline, err = initramfs.Cmdline(built.Kernel, profile, spec.Cores+1); err != nil {
		return "", err
	}
	if spec.Accel == string(qemu.TCG) {
		if b.Direct, err = provision.DirectKernel(built.Kernel); err != nil {
			return "", err
		}
	}
	return d.addImage(b)
}

// find finds the kernel, and the node image or builds it.
func (o ImageOptions) find(ctx context.Context) (provision.Image, error) {
	options := provision.ImageOptions{Program: o.Program, JobInit: o.JobInit, Kernel: o.Kernel, Plain: true, Told: o.Progress}
	if o.File == "" {
		return provision.BuildImage(ctx, options)
	}
	f, err := os.Open(o.File)
	if err != nil {
		return provision.Image{}, err
	}
	defer f.Close()
	if _, err := initramfs.List(f); err != nil {
		return provision.Image{}, fmt.Errorf("%s: %w", o.File, err)
	}
	kernel, err := provision.FindKernel(ctx, options)
	return provision.Image{Path: o.File, Kernel: kernel}, err
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

// updater is a substrate whose nodes can start another image.
type updater interface {
	// stage prepares an image for a node. The term is its number's.
	stage(number id.Node, term uint32, image string) (*control.ImageStaged, error)
	// keep makes an image the one that a node boots.
	keep(number id.Node, image string) error
}

// stageImage prepares an image for a node by order of serve.
func (h *holder) stageImage(m *control.StageImage) (*control.ImageStaged, error) {
	if err := h.spec.canUpdate(); err != nil {
		return nil, err
	}
	n, u, err := h.updated(m.Node)
	if err != nil {
		return nil, err
	}
	return u.stage(n.number, n.term, m.Image)
}

// keepImage makes an image the one that a node boots, by order of serve.
func (h *holder) keepImage(m *control.KeepImage) error {
	n, u, err := h.updated(m.Node)
	if err != nil {
		return err
	}
	if err := u.keep(n.number, m.Image); err != nil {
		return err
	}
	h.log("node%d boots image %s from now on", n.number, m.Image)
	return nil
}

func (h *holder) updated(number uint32) (*heldNode, updater, error) {
	h.mu.Lock()
	n := h.nodes[id.Node(number)]
	h.mu.Unlock()
	u, can := h.substrate.(updater)
	if n == nil || !can {
		return nil, nil, control.Failf(control.Code_CODE_NOT_FOUND, "the holder has no node%d that can be updated", number)
	}
	return n, u, nil
}

// boots returns the image that a node boots.
func (v *virtual) boots(number id.Node) (bootImage, error) {
	b, err := v.dir.readBoots()
	if err != nil || b.Nodes[number] == "" {
		return v.spec.first(), err
	}
	return v.dir.readImage(b.Nodes[number])
}

// stage implements updater. The file of the node has its join token, so serve gives it to that node
// alone. A machine has one update at a time, so images of earlier ones that no node boots are
// removed.
func (v *virtual) stage(number id.Node, term uint32, name string) (*control.ImageStaged, error) {
	b, err := v.dir.readImage(name)
	if err != nil {
		return nil, err
	}
	v.removeUnused(name)
	path := v.dir.stagedImage(number)
	if err := v.writeImage(b, number, term, path); err != nil {
		return nil, err
	}
	// The node has it twice in memory, and Linux a third time.
	if err := initramfs.Compress(path); err != nil {
		return nil, err
	}
	staged := &control.ImageStaged{
		Kernel: b.Kernel, Initramfs: path,
		Cmdline: qemu.CommandLine(qemu.Accel(v.spec.Accel), b.Cmdline),
	}
	if staged.KernelHash, err = hashFile(b.Kernel); err != nil {
		return nil, err
	}
	staged.InitramfsHash, err = hashFile(path)
	return staged, err
}

// named adds the name of an image to a kernel command line.
func named(cmdline, image string) string {
	return strings.TrimSpace(cmdline + " " + node.ImageWord + "=" + image)
}

// keep implements updater.
func (v *virtual) keep(number id.Node, name string) error {
	if _, err := v.dir.readImage(name); err != nil {
		return err
	}
	v.keeping.Lock()
	defer v.keeping.Unlock()
	b, err := v.dir.readBoots()
	if err != nil {
		return err
	}
	if b.Nodes == nil {
		b.Nodes = make(map[id.Node]string)
	}
	b.Nodes[number] = name
	if err := v.dir.writeBoots(b); err != nil {
		return err
	}
	if err := errors.Join(removeFiles(v.dir.stagedImage(number)), v.dir.removeUnused(b, name)); err != nil {
		fmt.Fprintln(os.Stderr, err) // the image is recorded
	}
	return nil
}

// removeUnused removes the images that no node boots, except the one of this name.
func (v *virtual) removeUnused(name string) {
	v.keeping.Lock()
	defer v.keeping.Unlock()
	b, err := v.dir.readBoots()
	if err == nil {
		err = v.dir.removeUnused(b, name)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err) // it is tried again with the next image
	}
}

// makingImage is how long a client may take to copy an image.
const makingImage = time.Hour

func (d Dir) removeUnused(b boots, name string) error {
	used := map[string]bool{name: true}
	for _, name := range b.Nodes {
		used[name] = true
	}
	entries, err := os.ReadDir(d.file(imagesName))
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), nextImage) {
			if info, err := e.Info(); err != nil || time.Since(info.ModTime()) < makingImage {
				continue
			}
		}
		if !used[e.Name()] {
			err = errors.Join(err, os.RemoveAll(d.imageFolder(e.Name())))
		}
	}
	return err
}
