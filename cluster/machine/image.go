package machine

import (
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"margay/cluster/boot"
	"margay/cluster/control"
	"margay/cluster/folder"
	"margay/initramfs"
	"margay/kernel/abi/id"
	"margay/kernel/abi/node"
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

// bootImage is what a node boots, besides its configuration.
type bootImage struct {
	Name    string   `json:"-"`                // empty: the machine was made with it
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
	b := bootImage{Name: name, Kernel: d.imageFolder(name, kernelFile), Image: d.imageFolder(name, initrdFile)}
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

// images says what the nodes of a machine boot: the image that was recorded for a node last, or the
// one that the machine was made with. It is safe for concurrent use.
type images struct {
	dir  Dir
	spec Spec

	keeping sync.Mutex // held while the record changes
}

// of returns the image that a node boots.
func (i *images) of(number id.Node) (bootImage, error) {
	b, err := i.dir.readBoots()
	if err != nil || b.Nodes[number] == "" {
		return i.spec.first(), err
	}
	return i.dir.readImage(b.Nodes[number])
}

// own is what a node that boots over the network boots instead of the machine's first image.
func (i *images) own(number id.Node) (own boot.Own, has bool, err error) {
	b, err := i.of(number)
	if err != nil || b.Name == "" {
		return boot.Own{}, false, err
	}
	return boot.Own{Name: b.Name, Cmdline: i.spec.passed(b.Cmdline), Kernel: b.Kernel, Image: b.Image}, true, nil
}

// stage writes an image with the configuration of a node, which it returns with its hashes. The
// file has the join token of the node, so serve gives it to that node alone. A machine has one
// update at a time, so images of earlier ones that no node boots are removed.
func (i *images) stage(name string, config node.Config) (*control.ImageStaged, error) {
	b, err := i.dir.readImage(name)
	if err != nil {
		return nil, err
	}
	i.removeUnused(name)
	path := i.dir.stagedImage(config.Node)
	if err := b.write(config, path); err != nil {
		return nil, err
	}
	// The node has it twice in memory, and Linux a third time.
	if err := initramfs.Compress(path); err != nil {
		return nil, err
	}
	staged := &control.ImageStaged{Kernel: b.Kernel, Initramfs: path, Cmdline: i.spec.passed(b.Cmdline)}
	if staged.KernelHash, err = hashFile(b.Kernel); err != nil {
		return nil, err
	}
	staged.InitramfsHash, err = hashFile(path)
	return staged, err
}

// write writes the image with the configuration of a node.
func (b bootImage) write(config node.Config, path string) error {
	config.Lacks = b.Lacks
	text, err := config.Encode()
	if err != nil {
		return err
	}
	return initramfs.WriteNodeImage(b.Image, configFiles(text), path)
}

// configFiles are the files with which a node image has a configuration.
func configFiles(config []byte) []initramfs.File {
	return []initramfs.File{
		{Path: filepath.Dir(node.Path), Mode: os.ModeDir | 0o700},
		{Path: node.Path, Mode: 0o600, Data: config},
	}
}

// stage implements updater.
func (v *virtual) stage(number id.Node, term uint32, name string) (*control.ImageStaged, error) {
	return v.images.stage(name, v.spec.bootConfig(number, term, v.cert))
}

// keep implements updater.
func (v *virtual) keep(number id.Node, name string) error { return v.images.keep(number, name) }

// named adds the name of an image to a kernel command line.
func named(cmdline, image string) string {
	return strings.TrimSpace(cmdline + " " + node.ImageWord + "=" + image)
}

// keep makes an image the one that a node boots.
func (i *images) keep(number id.Node, name string) error {
	if _, err := i.dir.readImage(name); err != nil {
		return err
	}
	i.keeping.Lock()
	defer i.keeping.Unlock()
	b, err := i.dir.readBoots()
	if err != nil {
		return err
	}
	if b.Nodes == nil {
		b.Nodes = make(map[id.Node]string)
	}
	b.Nodes[number] = name
	if err := i.dir.writeBoots(b); err != nil {
		return err
	}
	if err := errors.Join(removeFiles(i.dir.stagedImage(number)), i.dir.removeUnused(b, name)); err != nil {
		fmt.Fprintln(os.Stderr, err) // the image is recorded
	}
	return nil
}

// removeUnused removes the images that no node boots, except the one of this name.
func (i *images) removeUnused(name string) {
	i.keeping.Lock()
	defer i.keeping.Unlock()
	b, err := i.dir.readBoots()
	if err == nil {
		err = i.dir.removeUnused(b, name)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err) // it is tried again with the next image
	}
}

// forget removes the staged image of a node, and the record of the one that it boots. It returns
// the name of that; empty: there was no record.
func (i *images) forget(number id.Node) (name string, err error) {
	i.keeping.Lock()
	defer i.keeping.Unlock()
	err = removeFiles(i.dir.stagedImage(number))
	b, broken := i.dir.readBoots()
	if broken != nil || b.Nodes[number] == "" {
		return "", errors.Join(err, broken)
	}
	name = b.Nodes[number]
	delete(b.Nodes, number)
	return name, errors.Join(err, i.dir.writeBoots(b))
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
