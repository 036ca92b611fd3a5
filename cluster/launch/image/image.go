// Package image reads images of containers: what their files are, and how they are run. An image is
// an OCI image layout, in a folder or a tar file, or an archive of docker save.
//
// Nothing in an image is trusted. Its description is small, or refused, and must have the digest
// that names it. So must the data of a layer, before anything reads them: the configuration has
// their digests (diff_ids). Layers are never unpacked into files and folders. A Tree looks names up
// in itself, so neither links nor whiteouts lead out of it, and data are read from the tar file of
// the layer. A Cache keeps these tar files by digest.
//
// An Image may be used by one goroutine.
package image

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
	"regexp"
	"slices"
	"strings"
	"sync"
)

// ErrNone reports a folder or a file without an image. It may hold a plain root.
var ErrNone = errors.New("it has neither an OCI image layout nor the manifest of docker save")

// How an image gets to this host, for errors.
const howToSave = "nothing is pulled from a registry; skopeo copy docker://NAME oci:DIR, or docker save -o FILE NAME, brings an image here"

// Config says how the programs of an image are run.
type Config struct {
	Env        []string // NAME=VALUE
	Entrypoint []string
	Cmd        []string
	WorkingDir string // empty: it names none
}

// Image is an image on this host.
type Image struct {
	Config Config
	store  store
	layers []layer
}

// layer is a layer of an image, the lowest first.
type layer struct {
	name   string // in the store
	digest string // of its data without compression
}

// Bounds of what describes an image.
const (
	maxJSON   = 4 << 20 // bytes of one file
	maxLayers = 1024
	maxDepth  = 4 // indexes in indexes
)

// Prefixes of names of images, as skopeo has them.
const (
	ociPrefix    = "oci:"
	dockerPrefix = "docker-archive:"
)

// Open opens an image by its name: a folder or file, oci:PATH[:TAG] or docker-archive:FILE[:TAG].
// Of images for several processors it takes the one for Linux on arch, as Go names it. The error is
// ErrNone if the folder or file has no image.
func Open(name, arch string) (*Image, error) {
	at, tag, prefix := name, "", ""
	for _, p := range []string{ociPrefix, dockerPrefix} {
		if rest, ok := strings.CutPrefix(name, p); ok {
			prefix = p
			at, tag = cutTag(rest)
		}
	}
	s, err := openStore(at)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%w; %s", fs.ErrNotExist, howToSave)
	}
	if err != nil {
		return nil, err
	}
	im := &Image{store: s}
	switch {
	case prefix != dockerPrefix && s.has("oci-layout") && s.has("index.json"):
		err = im.readLayout(tag, arch)
	case prefix != ociPrefix && s.has(dockerManifest):
		err = im.readDocker(tag, prefix == "")
	default:
		err = ErrNone
	}
	if err != nil {
		im.Close()
		return nil, err
	}
	return im, nil
}

// Named reports whether a name says that it is one of an image.
func Named(name string) bool {
	return strings.HasPrefix(name, ociPrefix) || strings.HasPrefix(name, dockerPrefix)
}

// cutTag separates the tag that follows a path. A path that exists has none.
func cutTag(text string) (at, tag string) {
	if _, err := os.Stat(text); err == nil {
		return text, ""
	}
	at, tag, _ = strings.Cut(text, ":")
	return at, tag
}

// Size returns how many bytes the layers have as they are here.
func (im *Image) Size() (sum int64) {
	for _, l := range im.layers {
		if in, size, err := im.store.open(l.name); err == nil {
			in.Close()
			sum += size
		}
	}
	return sum
}

// Close closes the files of the image.
func (im *Image) Close() error { return im.store.Close() }

// Names of media types, with which OCI's and Docker's differ only in their beginning.
const (
	indexType      = "application/vnd.oci.image.index.v1+json"
	dockerListType = "application/vnd.docker.distribution.manifest.list.v2+json"
)

// Annotations of the images in a layout that hold their tags.
var tagAnnotations = []string{"org.opencontainers.image.ref.name", "io.containerd.image.name"}

// descriptor names a blob.
type descriptor struct {
	MediaType   string            `json:"mediaType"`
	Digest      string            `json:"digest"`
	Annotations map[string]string `json:"annotations"`
	Platform    *platform         `json:"platform"`
}

type platform struct {
	OS   string `json:"os"`
	Arch string `json:"architecture"`
}

func (p platform) String() string { return p.OS + "/" + p.Arch }

// readLayout reads the description of an image from an OCI image layout.
func (im *Image) readLayout(tag, arch string) error {
	data, err := readSmall(im.store, "index.json")
	if err != nil {
		return err
	}
	images, err := imagesOf(data)
	if err != nil {
		return fmt.Errorf("index.json: %w", err)
	}
	found, err := tagged(images, tag)
	for depth := 0; err == nil; depth++ {
		if found, err = fitting(found, arch); err != nil {
			break
		}
		if len(found) > 1 && depth == 0 {
			return tagMissing("oci:PATH", tagsOf(images))
		}
		if data, err = im.blob(found[0].Digest); err != nil {
			break
		}
		if !slices.Contains([]string{indexType, dockerListType}, found[0].MediaType) {
			return im.readManifest(data)
		}
		if depth == maxDepth {
			return errors.New("it has too many indexes in each other")
		}
		found, err = imagesOf(data)
	}
	return err
}

// imagesOf reads an index.
func imagesOf(data []byte) ([]descriptor, error) {
	var index struct {
		Manifests []descriptor `json:"manifests"`
	}
	err := json.Unmarshal(data, &index)
	return index.Manifests, err
}

// tagged returns the images with a tag or, if it is a digest, the one with that digest.
func tagged(images []descriptor, tag string) (found []descriptor, err error) {
	if tag == "" {
		return images, nil
	}
	for _, d := range images {
		if d.Digest == tag || slices.ContainsFunc(tagAnnotations, func(key string) bool { return isTag(tag, d.Annotations[key]) }) {
			found = append(found, d)
		}
	}
	if found == nil {
		return nil, noTag(tag, tagsOf(images))
	}
	return found, nil
}

// isTag reports whether a tag means a name, which may have a registry before it.
func isTag(tag, name string) bool { return name == tag || strings.HasSuffix(name, "/"+tag) }

func noTag(tag, there string) error {
	return fmt.Errorf("it has no image with the tag %q, but %s", tag, there)
}

func tagMissing(place, there string) error {
	return fmt.Errorf("it has several images, and the tag is missing: %s:TAG, with one of %s", place, there)
}

// mostNamed is how many tags or platforms an error names.
const mostNamed = 20

// listed lists names for an error.
func listed(names []string) string {
	names = slices.DeleteFunc(names, func(name string) bool { return name == "" })
	slices.Sort(names)
	names = slices.Compact(names)
	names = names[:min(len(names), mostNamed)]
	for i, name := range names {
		names[i] = fmt.Sprintf("%.100q", name)
	}
	return cmp.Or(strings.Join(names, ", "), "none")
}

func tagsOf(images []descriptor) string {
	var tags []string
	for _, d := range images {
		tags = append(tags, cmp.Or(d.Annotations[tagAnnotations[0]], d.Annotations[tagAnnotations[1]], d.Digest))
	}
	return listed(tags)
}

// fitting returns the images for Linux on arch. An image that names no platform fits, and one for
// Linux that is alone.
func fitting(images []descriptor, arch string) (found []descriptor, err error) {
	var others []descriptor
	var platforms []string
	for _, d := range images {
		if d.Platform != nil {
			platforms = append(platforms, d.Platform.String())
		}
		switch {
		case d.Platform == nil || *d.Platform == platform{"linux", arch}:
			found = append(found, d)
		case d.Platform.OS == "linux":
			others = append(others, d)
		}
	}
	if found == nil && len(others) == 1 {
		return others, nil
	}
	if found == nil {
		return nil, fmt.Errorf("it has no image for linux/%s, but %s", arch, listed(platforms))
	}
	return found, nil
}

// readManifest reads the manifest of an image.
func (im *Image) readManifest(data []byte) error {
	var manifest struct {
		Config descriptor   `json:"config"`
		Layers []descriptor `json:"layers"`
	}
	if err := json.Unmarshal(data, &manifest); err != nil {
		return fmt.Errorf("manifest: %w", err)
	}
	config, err := im.blob(manifest.Config.Digest)
	if err != nil {
		return fmt.Errorf("configuration: %w", err)
	}
	names := make([]string, 0, len(manifest.Layers))
	for _, d := range manifest.Layers {
		name, err := blobName(d.Digest)
		if err != nil {
			return fmt.Errorf("layer: %w", err)
		}
		names = append(names, name)
	}
	return im.configure(config, names)
}

// configure reads the configuration of an image whose layers have these names in the store.
func (im *Image) configure(data []byte, names []string) error {
	var c struct {
		OS     string `json:"os"`
		Config Config `json:"config"`
		RootFS struct {
			DiffIDs []string `json:"diff_ids"`
		} `json:"rootfs"`
	}
	if err := json.Unmarshal(data, &c); err != nil {
		return fmt.Errorf("configuration: %w", err)
	}
	if c.OS != "" && c.OS != "linux" {
		return fmt.Errorf("it is for %.100q, not for linux", c.OS)
	}
	digests := c.RootFS.DiffIDs
	if len(digests) != len(names) || len(names) == 0 || len(names) > maxLayers {
		return fmt.Errorf("it has %d layers, and digests of %d; an image has 1 to %d", len(names), len(digests), maxLayers)
	}
	for i, digest := range digests {
		if !digestForm().MatchString(digest) {
			return badDigest(digest)
		}
		im.layers = append(im.layers, layer{name: names[i], digest: digest})
	}
	for _, text := range slices.Concat(c.Config.Env, c.Config.Entrypoint, c.Config.Cmd, []string{c.Config.WorkingDir}) {
		if strings.ContainsRune(text, 0) {
			return fmt.Errorf("configuration: %.100q has a NUL", text)
		}
	}
	if len(c.Config.WorkingDir) > maxPath {
		return errors.New("configuration: the working directory is too long")
	}
	im.Config = c.Config
	return nil
}

// digestForm is how a digest is written.
var digestForm = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile("^sha256:[0-9a-f]{64}$") })

func badDigest(digest string) error {
	return fmt.Errorf("%.100q is not a SHA-256 digest", digest)
}

// blobName returns the name in a layout of the blob with a digest.
func blobName(digest string) (string, error) {
	if !digestForm().MatchString(digest) {
		return "", badDigest(digest)
	}
	return "blobs/" + strings.Replace(digest, ":", "/", 1), nil
}

// blob reads a small blob, which must have its digest.
func (im *Image) blob(digest string) ([]byte, error) {
	name, err := blobName(digest)
	if err != nil {
		return nil, err
	}
	data, err := readSmall(im.store, name)
	if err == nil {
		err = checkDigest(data, digest)
	}
	return data, err
}

// errChanged reports data that are not those that were named.
var errChanged = errors.New("the image is damaged or changed; save it again")

func checkDigest(data []byte, digest string) error {
	if sum := sha256.Sum256(data); "sha256:"+hex.EncodeToString(sum[:]) != digest {
		return fmt.Errorf("%s has another digest: %w", digest, errChanged)
	}
	return nil
}

// dockerManifest is the file that describes the images of docker save.
const dockerManifest = "manifest.json"

// dockerImage describes an image in an archive of docker save.
type dockerImage struct {
	Config   string
	RepoTags []string
	Layers   []string
}

// readDocker reads the description of an image from an archive of docker save. A file of that name
// may be one of a plain root.
func (im *Image) readDocker(tag string, perhaps bool) error {
	var images []dockerImage
	data, err := readSmall(im.store, dockerManifest)
	if err == nil {
		err = json.Unmarshal(data, &images)
	}
	if perhaps && (err != nil || len(images) == 0 || !im.store.has(path.Clean(images[0].Config))) {
		return ErrNone
	}
	if err != nil {
		return fmt.Errorf("%s: %w", dockerManifest, err)
	}
	var tags []string
	found := slices.DeleteFunc(slices.Clone(images), func(d dockerImage) bool {
		tags = append(tags, d.RepoTags...)
		return tag != "" && !slices.ContainsFunc(d.RepoTags, func(name string) bool { return isTag(tag, name) })
	})
	switch {
	case len(found) == 0:
		return noTag(tag, listed(tags))
	case len(found) > 1:
		return tagMissing("docker-archive:FILE", listed(tags))
	}
	config, err := readSmall(im.store, found[0].Config)
	if err != nil {
		return err
	}
	// Its name is its digest in all archives of today.
	if digest := "sha256:" + strings.TrimSuffix(path.Base(found[0].Config), ".json"); digestForm().MatchString(digest) {
		if err := checkDigest(config, digest); err != nil {
			return err
		}
	}
	return im.configure(config, found[0].Layers)
}

// readSmall reads a file of an image that describes it.
func readSmall(s store, name string) ([]byte, error) {
	in, size, err := s.open(name)
	if err != nil {
		return nil, err
	}
	defer in.Close()
	if size > maxJSON {
		return nil, fmt.Errorf("%.200q has %d bytes, at most %d are read", name, size, maxJSON)
	}
	return io.ReadAll(io.LimitReader(in, maxJSON))
}

// Root makes the root of the image. Its layers stay in the cache, for readers of the tree, until
// release is called. most bounds the bytes of all layers without compression. progress receives the
// number of bytes that have been read of layers as the image has them.
func (im *Image) Root(ctx context.Context, c *Cache, most int64, progress func(done int64)) (t *Tree, release func(), err error) {
	var held []io.Closer
	release = func() {
		for _, f := range held {
			f.Close()
		}
	}
	t = new(Tree)
	meter := &meter{left: most, most: most, progress: progress}
	for i, l := range im.layers {
		f, err := c.layer(ctx, l.digest, meter, func() (io.ReadCloser, error) {
			in, _, err := im.store.open(l.name)
			return in, err
		})
		if err == nil {
			held = append(held, f)
			err = t.addLayer(ctx, f.Name())
		}
		if err != nil {
			release()
			return nil, nil, fmt.Errorf("layer %d of %d: %w", i+1, len(im.layers), err)
		}
	}
	return t, release, nil
}
