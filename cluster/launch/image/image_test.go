package image

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

var (
	lower = Config{Env: []string{"A=1"}, Entrypoint: []string{"/e"}, Cmd: []string{"c"}, WorkingDir: "/w"}
	want  = []string{"/a=1", "/b=2"}
)

// docker returns an archive of docker save. Images have one layer each.
func docker(t testing.TB, tags []string, configs [][]byte, layers [][]byte) files {
	t.Helper()
	f := make(files)
	var list []string
	for i, layer := range layers {
		config := strings.TrimPrefix(digestOf(configs[i]), "sha256:") + ".json"
		f[config], f[fmt.Sprint(i, "/layer.tar")] = configs[i], layer
		list = append(list, fmt.Sprintf(`{"Config":%q,"RepoTags":[%q],"Layers":["%d/layer.tar"]}`, config, tags[i], i))
	}
	f["manifest.json"] = fmt.Appendf(nil, "[%s]", strings.Join(list, ","))
	return f
}

// An image is found in each of its forms, whatever compresses its layers.
func TestForms(t *testing.T) {
	one, two := tarOf(t, file("a", "1"), file("b", "1")), tarOf(t, file("b", "2"))
	oci := make(files)
	for _, pack := range []func(testing.TB, []byte) []byte{raw, gzipped, zstded} {
		oci.setIndex(oci.addImage(t, lower, `,"annotations":{"org.opencontainers.image.ref.name":"v:1"}`, pack, one, two))
		for _, name := range []string{oci.folder(t), oci.tar(t)} {
			for _, as := range []string{name, "oci:" + name, "oci:" + name + ":v:1"} {
				im, got, err := open(t, as)
				if err != nil || !slices.Equal(got, want) || fmt.Sprint(im.Config) != fmt.Sprint(lower) {
					t.Errorf("%s: %+v, %q, %v", as, im, got, err)
				}
			}
		}
	}
	old := make(files) // with a link to a layer, as docker save made them
	config := configOf(t, lower, one, two)
	old["x.json"], old["1/layer.tar"], old["2/layer.tar"] = config, one, gzipped(t, two)
	old["manifest.json"] = []byte(`[{"Config":"x.json","RepoTags":["n:t"],"Layers":["1/layer.tar","link"]}]`)
	data, err := os.ReadFile(old.tar(t))
	if err != nil {
		t.Fatal(err)
	}
	name := written(t, append(tarOf(t, link("link", "2/layer.tar"))[:512], data...))
	for _, as := range []string{name, "docker-archive:" + name, "docker-archive:" + name + ":n:t"} {
		if im, got, err := open(t, as); err != nil || !slices.Equal(got, want) || fmt.Sprint(im.Config) != fmt.Sprint(lower) {
			t.Errorf("%s: %+v, %q, %v", as, im, got, err)
		}
	}
}

// Of several images the one for this processor is taken, or the one with the tag.
func TestChoice(t *testing.T) {
	layer := func(text string) []byte { return tarOf(t, file("a", text)) }
	forArch := func(arch, more string) string {
		return fmt.Sprintf(`,"platform":{"os":"linux","architecture":%q}%s`, arch, more)
	}
	f := make(files)
	amd := f.addImage(t, Config{}, forArch("amd64", ""), raw, layer("amd64"))
	arm := f.addImage(t, Config{}, forArch("arm64", ""), raw, layer("arm64"))
	risc := f.addImage(t, Config{}, forArch("riscv64", ""), raw, layer("riscv64"))
	windows := f.addImage(t, Config{}, `,"platform":{"os":"windows","architecture":"amd64"}`, raw, layer("windows"))
	tag := func(name string) string {
		return fmt.Sprintf(`,"mediaType":%q,"annotations":{"io.containerd.image.name":%q}`, indexType, name)
	}
	index := func(more string, list ...string) string {
		return f.add(fmt.Appendf(nil, `{"manifests":[%s]}`, strings.Join(list, ",")), more)
	}
	for name, tt := range map[string]struct {
		tag  string
		list []string
		want string // what the file has, or the error
	}{
		"this processor":          {"", []string{arm, amd, windows}, "/a=amd64"},
		"in an index":             {"", []string{index(tag("x"), arm, windows, amd)}, "/a=amd64"},
		"the only one for linux":  {"", []string{windows, arm}, "/a=arm64"},
		"none for this processor": {"", []string{arm, risc, windows}, `it has no image for linux/amd64, but "linux/arm64", "linux/riscv64", "windows/amd64"`},
		"no image":                {"", nil, "it has no image for linux/amd64, but none"},
		"tag":                     {"y", []string{index(tag("x"), arm), index(tag("y"), amd)}, "/a=amd64"},
		"tag is missing":          {"", []string{index(tag("x"), arm), index(tag("y"), amd)}, `the tag is missing: oci:PATH:TAG, with one of "x", "y"`},
		"tag is wrong":            {"z", []string{index(tag("x"), arm), index(tag("y"), amd)}, `it has no image with the tag "z", but "x", "y"`},
		"digest":                  {digestOf(f.manifest(t, arm)), []string{arm, amd}, "/a=arm64"},
		"indexes in each other":   {"", []string{index(tag("1"), index(tag("2"), index(tag("3"), index(tag("4"), index(tag("5"), amd)))))}, "too many indexes"},
	} {
		t.Run(name, func(t *testing.T) {
			at := "oci:" + f.setIndex(tt.list...).folder(t)
			if tt.tag != "" {
				at += ":" + tt.tag
			}
			_, got, err := open(t, at)
			if text := strings.Join(got, ""); text != tt.want && (err == nil || !strings.Contains(err.Error(), tt.want)) {
				t.Errorf("%q, %v", got, err)
			}
		})
	}
	one, two := layer("one"), layer("two")
	at := docker(t, []string{"n:1", "registry/n:2"}, [][]byte{configOf(t, Config{}, one), configOf(t, Config{}, two)}, [][]byte{one, two}).tar(t)
	if _, _, err := open(t, "docker-archive:"+at+":n:3"); err == nil || !strings.Contains(err.Error(), `no image with the tag "n:3", but "n:1", "registry/n:2"`) {
		t.Error(err)
	}
	if _, got, err := open(t, "docker-archive:"+at+":n:2"); err != nil || !slices.Equal(got, []string{"/a=two"}) {
		t.Errorf("%q, %v", got, err)
	}
	if _, _, err := open(t, at); err == nil || !strings.Contains(err.Error(), `the tag is missing: docker-archive:FILE:TAG, with one of "n:1", "registry/n:2"`) {
		t.Error(err)
	}
}

// manifest returns the blob of a descriptor.
func (f files) manifest(t testing.TB, descriptor string) []byte {
	for name, data := range f {
		if strings.Contains(descriptor, filepath.Base(name)) {
			return data
		}
	}
	t.Fatal("no blob")
	return nil
}

// An image that is not as its digests say is refused, whichever of its files is changed, too short
// or missing.
func TestChanged(t *testing.T) {
	layer := tarOf(t, file("a", strings.Repeat("text", 300)))
	for name, f := range map[string]files{
		"layout": make(files).setOne(t, gzipped, layer), "zstd": make(files).setOne(t, zstded, layer),
		"docker": docker(t, []string{"t"}, [][]byte{configOf(t, Config{}, layer)}, [][]byte{layer}),
	} {
		for changed, data := range f {
			if changed == "oci-layout" || changed == "index.json" || changed == "manifest.json" {
				continue
			}
			for how, now := range map[string][]byte{
				"changed": append(slices.Clone(data[:len(data)/2]), append([]byte{data[len(data)/2] ^ 1}, data[len(data)/2+1:]...)...),
				"short":   data[:len(data)/2], "empty": {}, "longer": append(slices.Clone(data), data...), "padded": append(slices.Clone(data), ' '), "missing": nil,
			} {
				bad := maps.Clone(f)
				if bad[changed] = now; now == nil {
					delete(bad, changed)
				}
				at := bad.tar(t)
				if name == "docker" {
					at = "docker-archive:" + at
				}
				if _, got, err := open(t, at); err == nil {
					t.Errorf("%s: %s is %s: %q", name, changed, how, got)
				}
			}
		}
	}
}

// setOne makes a layout with one image.
func (f files) setOne(t testing.TB, pack func(testing.TB, []byte) []byte, layers ...[]byte) files {
	return f.setIndex(f.addImage(t, lower, "", pack, layers...))
}

// What an image says of itself is checked.
func TestBadImages(t *testing.T) {
	layer := tarOf(t, file("a", "1"))
	f := make(files)
	of := func(config, layers string) files {
		g := maps.Clone(f)
		c := g.add([]byte(config), "")
		return g.setIndex(g.add(fmt.Appendf(nil, `{"config":%s,"layers":[%s]}`, c, layers), ""))
	}
	blob := f.add(layer, "")
	good := string(configOf(t, Config{}, layer))
	large := make(files).setOne(t, raw, layer)
	large["index.json"] = bytes.Repeat([]byte(" "), maxJSON+1)
	for name, tt := range map[string]struct {
		files files
		want  string
	}{
		"no JSON":              {files{"oci-layout": {}, "index.json": []byte("{")}, "index.json: unexpected end"},
		"large":                {large, "at most 4194304 are read"},
		"no digest":            {make(files).setIndex(`{"digest":"sha256:../../../etc/passwd"}`), `"sha256:../../../etc/passwd" is not a SHA-256 digest`},
		"other digest":         {make(files).setIndex(`{"digest":"sha512:00"}`), "is not a SHA-256 digest"},
		"missing":              {make(files).setIndex(fmt.Sprintf(`{"digest":%q}`, digestOf(nil))), "no such file"},
		"fewer digests":        {of(good, blob+","+blob), "2 layers, and digests of 1"},
		"no layers":            {of(`{}`, ""), "0 layers"},
		"digest of a layer":    {of(strings.Replace(good, "sha256:", "../", 1), blob), "is not a SHA-256 digest"},
		"windows":              {of(`{"os":"windows"}`, blob), `for "windows"`},
		"configuration":        {of(`[]`, blob), "configuration: "},
		"NUL":                  {of(strings.Replace(good, `"Env":null`, `"Env":["A=\u0000"]`, 1), blob), "has a NUL"},
		"long folder":          {of(strings.Replace(good, `"WorkingDir":""`, fmt.Sprintf(`"WorkingDir":%q`, strings.Repeat("x", 5000)), 1), blob), "too long"},
		"layer is no tar file": {make(files).setOne(t, raw, []byte("text")), "layer 1 of 1: it is not a tar file"},
		"too many layers":      {make(files).setOne(t, raw, slices.Repeat([][]byte{layer}, maxLayers+1)...), "1 to 1024"},
	} {
		t.Run(name, func(t *testing.T) {
			if _, got, err := open(t, tt.files.folder(t)); err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("the error is %v, not %q; %q", err, tt.want, got)
			}
		})
	}
}

// Folders and files without an image are plain roots, if the user does not say otherwise.
func TestNoImage(t *testing.T) {
	dir := t.TempDir()
	plain := written(t, tarOf(t, file("manifest.json", `[{"Config":"none"}]`), file("bin/p", "")))
	for _, name := range []string{dir, plain, written(t, []byte("text")), written(t, bytes.Repeat([]byte("text"), 1000)), written(t, nil)} {
		if _, err := Open(name, "amd64"); !errors.Is(err, ErrNone) {
			t.Errorf("%s: %v", name, err)
		}
		if _, err := Open("oci:"+name, "amd64"); !errors.Is(err, ErrNone) {
			t.Errorf("%s: %v", name, err)
		}
		if _, err := Open("docker-archive:"+name, "amd64"); err == nil {
			t.Errorf("%s is an archive of docker save", name)
		}
	}
	for _, name := range []string{"debian:bookworm", "docker://debian", "oci:" + dir + "/none:x"} {
		if _, err := Open(name, "amd64"); !errors.Is(err, fs.ErrNotExist) || !strings.Contains(err.Error(), "skopeo copy") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// No file makes the reader of images panic or take much memory.
func FuzzOpen(f *testing.F) {
	layer := tarOf(f, file("a", "1"), link("b", ".."), file(".wh.c", ""))
	for _, seed := range []files{layout(f, layer, layer), docker(f, []string{"t"}, [][]byte{configOf(f, lower, layer)}, [][]byte{gzipped(f, layer)})} {
		data, err := os.ReadFile(seed.tar(f))
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		_, _, _ = open(t, written(t, data))
	})
}

func FuzzLayer(f *testing.F) {
	f.Add(tarOf(f, file("a", "1"), folder("b"), link("l", "../b"), file("l/x", "2"), hard("h", "l/x")), tarOf(f, file("b/.wh..wh..opq", ""), file(".wh.a", "")))
	f.Fuzz(func(t *testing.T, one, two []byte) {
		var tree Tree
		for _, data := range [][]byte{one, two} {
			if tree.addLayer(t.Context(), written(t, data)) != nil {
				return
			}
		}
		count := 0
		for name, e := range tree.All() {
			count++
			if name != filepath.Clean(name) || !filepath.IsAbs(name) || e.Size < 0 || e.Mode.IsRegular() != (e.Path != "") {
				t.Errorf("%q: %+v", name, e)
			}
		}
		if count != tree.files {
			t.Errorf("%d files are counted, there are %d", tree.files, count)
		}
	})
}
