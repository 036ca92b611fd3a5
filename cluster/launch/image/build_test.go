package image

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"
)

// Entries of tar files for tests.
func file(name, text string) tar.Header {
	return tar.Header{Name: name, Mode: 0o644, Size: int64(len(text)), PAXRecords: map[string]string{"TEST.text": text}}
}
func folder(name string) tar.Header {
	return tar.Header{Name: name, Mode: 0o755, Typeflag: tar.TypeDir}
}
func link(name, to string) tar.Header {
	return tar.Header{Name: name, Typeflag: tar.TypeSymlink, Linkname: to}
}
func hard(name, to string) tar.Header {
	return tar.Header{Name: name, Typeflag: tar.TypeLink, Linkname: to}
}

// tarOf returns a tar file of entries.
func tarOf(t testing.TB, headers ...tar.Header) []byte {
	t.Helper()
	var packed bytes.Buffer
	w := tar.NewWriter(&packed)
	for _, h := range headers {
		if err := w.WriteHeader(&h); err != nil {
			t.Fatalf("%s: %v", h.Name, err)
		}
		if _, err := w.Write([]byte(h.PAXRecords["TEST.text"])); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return packed.Bytes()
}

// gzipped and zstded compress.
func gzipped(t testing.TB, data []byte) []byte {
	var out bytes.Buffer
	w := gzip.NewWriter(&out)
	_, err := w.Write(data)
	if err := errors.Join(err, w.Close()); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

func zstded(t testing.TB, data []byte) []byte {
	w, err := zstd.NewWriter(nil)
	if err != nil {
		t.Fatal(err)
	}
	return w.EncodeAll(data, nil)
}

func digestOf(data []byte) string {
	sum := sha256.Sum256(data)
	return "sha256:" + hex.EncodeToString(sum[:])
}

// files are the files of an image, by their names.
type files map[string][]byte

// add adds a blob and returns its descriptor.
func (f files) add(data []byte, fields string) string {
	digest := digestOf(data)
	f["blobs/"+strings.Replace(digest, ":", "/", 1)] = data
	return fmt.Sprintf(`{"digest":%q,"size":%d%s}`, digest, len(data), fields)
}

// configOf returns the configuration of an image with layers.
func configOf(t testing.TB, c Config, layers ...[]byte) []byte {
	t.Helper()
	ids := []string{}
	for _, l := range layers {
		ids = append(ids, digestOf(l))
	}
	data, err := json.Marshal(map[string]any{"os": "linux", "architecture": "amd64", "config": c, "rootfs": map[string]any{"type": "layers", "diff_ids": ids}})
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// addImage adds an image with layers that pack compresses, and returns its descriptor.
func (f files) addImage(t testing.TB, c Config, fields string, pack func(testing.TB, []byte) []byte, layers ...[]byte) string {
	t.Helper()
	config := f.add(configOf(t, c, layers...), "")
	var list []string
	for _, l := range layers {
		list = append(list, f.add(pack(t, l), ""))
	}
	return f.add(fmt.Appendf(nil, `{"config":%s,"layers":[%s]}`, config, strings.Join(list, ",")), fields)
}

// setIndex makes an image layout of descriptors.
func (f files) setIndex(descriptors ...string) files {
	f["oci-layout"] = []byte(`{"imageLayoutVersion":"1.0.0"}`)
	f["index.json"] = fmt.Appendf(nil, `{"manifests":[%s]}`, strings.Join(descriptors, ","))
	return f
}

func raw(_ testing.TB, data []byte) []byte { return data }

// layout returns an image layout with one image.
func layout(t testing.TB, layers ...[]byte) files {
	f := make(files)
	return f.setIndex(f.addImage(t, Config{}, "", raw, layers...))
}

// folder writes the files into a folder.
func (f files) folder(t testing.TB) string {
	t.Helper()
	dir := t.TempDir()
	for name, data := range f {
		at := filepath.Join(dir, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(at), 0o755), os.WriteFile(at, data, 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// tar writes the files into a tar file.
func (f files) tar(t testing.TB) string {
	t.Helper()
	var headers []tar.Header
	for name, data := range f {
		headers = append(headers, file("./"+name, string(data)))
	}
	slices.SortFunc(headers, func(a, b tar.Header) int { return strings.Compare(a.Name, b.Name) })
	return written(t, tarOf(t, headers...))
}

// written writes a file.
func written(t testing.TB, data []byte) string {
	t.Helper()
	name := filepath.Join(t.TempDir(), "file.tar")
	if err := os.WriteFile(name, data, 0o600); err != nil {
		t.Fatal(err)
	}
	return name
}

// contents describes a tree: names in order, with what files hold and where links lead.
func contents(t testing.TB, tree *Tree) []string {
	t.Helper()
	list := []string{}
	for name, e := range tree.All() {
		switch {
		case e.Mode.IsDir():
			name += "/"
		case e.Link != "":
			name += " -> " + e.Link
		default:
			data, err := os.ReadFile(e.Path)
			if err != nil {
				t.Fatal(err)
			}
			name += "=" + string(data[e.At:e.At+e.Size])
		}
		list = append(list, name)
	}
	return list
}

// open opens an image and unpacks it into a new cache.
func open(t testing.TB, name string) (*Image, []string, error) {
	t.Helper()
	im, err := Open(name, "amd64")
	if err != nil {
		return nil, nil, err
	}
	defer im.Close()
	tree, release, err := im.Root(t.Context(), &Cache{Dir: t.TempDir(), Most: 1 << 30}, 1<<20, func(int64) {})
	if err != nil {
		return im, nil, err
	}
	defer release()
	return im, contents(t, tree), nil
}
