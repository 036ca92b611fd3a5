package initramfs

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

const (
	imageSuffix    = ".img"
	manifestSuffix = ".json"
	keepImages     = 4
	// staleAfter is the age at which a temporary file no longer belongs to a running build.
	staleAfter = time.Hour
)

// Cached returns an image of spec in cacheDir and its manifest, and builds the image if necessary.
// The hash of its archive identifies an image, so it is never stale, and it is checked against its
// manifest before use. The newest few images are kept. Several processes may use one cache; the
// path stays valid until as many newer images exist.
func Cached(ctx context.Context, spec Spec, cacheDir string) (string, Manifest, error) {
	archive, manifest, err := assemble(ctx, spec)
	if err != nil {
		return "", Manifest{}, err
	}
	key := sha256.New()
	if !spec.Plain {
		fmt.Fprintln(key, packing(spec.Kernel.Arch))
	}
	key.Write(archive)
	path := filepath.Join(cacheDir, hex.EncodeToString(key.Sum(nil)[:16])+imageSuffix)
	if sum, size, err := cachedSum(path); err == nil {
		manifest.SHA256, manifest.Compressed = sum, size
		now := time.Now()
		return path, manifest, os.Chtimes(path, now, now)
	}
	image, err := finish(ctx, spec, archive, &manifest)
	if err != nil {
		return "", Manifest{}, err
	}
	if err := store(path, image, manifest); err != nil {
		return "", Manifest{}, fmt.Errorf("store image %s: %w", path, err)
	}
	if err := prune(cacheDir, imageSuffix, keepImages); err != nil {
		return "", Manifest{}, fmt.Errorf("prune image cache %s: %w", cacheDir, err)
	}
	return path, manifest, ctx.Err()
}

// cachedSum returns hash and size of the image at path if they match its manifest.
func cachedSum(path string) (sum string, size int64, err error) {
	data, err := os.ReadFile(strings.TrimSuffix(path, imageSuffix) + manifestSuffix)
	if err != nil {
		return "", 0, err
	}
	var m Manifest
	if err := json.Unmarshal(data, &m); err != nil {
		return "", 0, err
	}
	image, err := os.ReadFile(path)
	if err != nil {
		return "", 0, err
	}
	hash := sha256.Sum256(image)
	if hex.EncodeToString(hash[:]) != m.SHA256 {
		return "", 0, errors.New("the image does not match its manifest")
	}
	return m.SHA256, int64(len(image)), nil
}

// store writes manifest and image, the image last, so that an image always has a manifest.
func store(path string, image []byte, manifest Manifest) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	data, err := json.MarshalIndent(manifest, "", "  ")
	if err != nil {
		return err
	}
	name := strings.TrimSuffix(path, imageSuffix) + manifestSuffix
	for _, file := range []struct {
		name string
		data []byte
	}{{name, append(data, '\n')}, {path, image}} {
		err := Replace(file.name, 0o600, func(f *os.File) error {
			_, err := f.Write(file.data)
			return err
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// prune removes all but the newest files of dir with a suffix, their manifests, and leftovers of
// dead builds. A file that another process has removed is not an error.
func prune(dir, suffix string, keep int) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	type item struct {
		name string
		time time.Time
	}
	var items []item
	var remove []string
	for _, e := range entries {
		info, err := e.Info()
		if err != nil {
			continue
		}
		if name := e.Name(); strings.HasSuffix(name, suffix) {
			items = append(items, item{name, info.ModTime()})
		} else if strings.HasPrefix(name, ".") && time.Since(info.ModTime()) > staleAfter {
			remove = append(remove, name)
		}
	}
	slices.SortFunc(items, func(a, b item) int {
		return cmp.Or(b.time.Compare(a.time), strings.Compare(a.name, b.name))
	})
	for _, i := range items[min(keep, len(items)):] {
		remove = append(remove, i.name, strings.TrimSuffix(i.name, suffix)+manifestSuffix)
	}
	for _, name := range remove {
		if err := os.Remove(filepath.Join(dir, name)); err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
	}
	return nil
}
