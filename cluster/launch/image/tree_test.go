package image

import (
	"archive/tar"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// Layers lie over each other as in a container.
func TestLayers(t *testing.T) {
	for name, tt := range map[string]struct {
		layers [][]tar.Header
		want   []string
	}{
		"replaced": {[][]tar.Header{{file("a", "1"), file("b/c", "1"), file("d", "1")}, {file("a", "2"), file("b", "2"), folder("d")}},
			[]string{"/a=2", "/b=2", "/d/"}},
		"folders are joined": {[][]tar.Header{{folder("a"), file("a/b", "1")}, {folder("a"), file("a/c", "2")}}, []string{"/a/", "/a/b=1", "/a/c=2"}},
		"whiteout":           {[][]tar.Header{{file("a/b", ""), file("a/c", ""), file("d", "")}, {file(".wh.d", ""), file("a/.wh.b", ""), file(".wh.none", ""), file("none/.wh.x", "")}}, []string{"/a/", "/a/c="}},
		"whiteout of a folder": {[][]tar.Header{{file("a/b/c", ""), file("a/d", "")}, {file(".wh.a", "")}, {file("a/e", "3")}},
			[]string{"/a/", "/a/e=3"}},
		"whiteout and the same name": {[][]tar.Header{{file("a", "1"), file("b/c", "1")}, {file("a", "2"), file(".wh.a", ""), file("b/d", "2"), file(".wh.b", "")}},
			[]string{"/a=2", "/b/", "/b/d=2"}},
		"opaque":                         {[][]tar.Header{{file("a/b", "1"), file("a/c/d", "1")}, {file("a/c/e", "2"), file("a/.wh..wh..opq", ""), file("a/f", "2")}}, []string{"/a/", "/a/c/", "/a/c/e=2", "/a/f=2"}},
		"opaque in each layer":           {[][]tar.Header{{file("a/b", "1")}, {file("a/.wh..wh..opq", ""), file("a/c", "2")}, {file("a/.wh..wh..opq", "")}}, []string{"/a/"}},
		"older metadata":                 {[][]tar.Header{{file("a", "1"), file(".wh..wh.aufs", ""), file(".wh..wh.plnk/x", "")}}, []string{"/.wh..wh.plnk/", "/.wh..wh.plnk/x=", "/a=1"}},
		"hard link to a lower layer":     {[][]tar.Header{{file("a", "1")}, {hard("b", "a"), file("a", "2")}, {hard("./c", "/b")}}, []string{"/a=2", "/b=1", "/c=1"}},
		"hard link to a link":            {[][]tar.Header{{link("a", "x"), hard("b", "a")}}, []string{"/a -> x", "/b -> x"}},
		"files below links":              {[][]tar.Header{{folder("usr/bin"), link("bin", "usr/bin"), link("abs", "/bin")}, {file("bin/a", "1"), file("abs/b", "2"), hard("usr/c", "abs/a")}}, []string{"/abs -> /bin", "/bin -> usr/bin", "/usr/", "/usr/bin/", "/usr/bin/a=1", "/usr/bin/b=2", "/usr/c=1"}},
		"links that leave":               {[][]tar.Header{{link("up", "../../.."), link("out", "/../x")}, {file("up/a", "1"), file("out/b", "2"), file("../../c", "3")}}, []string{"/a=1", "/c=3", "/out -> /../x", "/up -> ../../..", "/x/", "/x/b=2"}},
		"a folder replaces a link":       {[][]tar.Header{{file("x/a", "1"), link("b", "x")}, {folder("b"), file("b/c", "2")}}, []string{"/b/", "/b/c=2", "/x/", "/x/a=1"}},
		"devices are left out":           {[][]tar.Header{{file("a", "1"), {Name: "n", Typeflag: tar.TypeChar}, {Name: "p", Typeflag: tar.TypeFifo}}, {{Name: "a", Typeflag: tar.TypeBlock}}}, []string{}},
		"the root":                       {[][]tar.Header{{folder("./"), folder("/"), folder(".."), file("/./a", "1")}}, []string{"/a=1"}},
		"a file is no folder for others": {[][]tar.Header{{file("a", "1")}, {file("a", "2"), hard("b", "a")}, {file(".wh.a", "")}}, []string{"/b=2"}},
	} {
		t.Run(name, func(t *testing.T) {
			var layers [][]byte
			for _, headers := range tt.layers {
				layers = append(layers, tarOf(t, headers...))
			}
			_, got, err := open(t, layout(t, layers...).folder(t))
			if err != nil || !slices.Equal(got, tt.want) {
				t.Errorf("there are\n%q, %v, not\n%q", got, err, tt.want)
			}
		})
	}
}

// What no root can be made of is refused, with the name of the entry.
func TestBadLayers(t *testing.T) {
	for name, tt := range map[string]struct {
		headers []tar.Header
		want    string
	}{
		"hard link to nothing":    {[]tar.Header{hard("a", "../../etc/shadow")}, `"a": it is another name of "../../etc/shadow", which does not come before it`},
		"hard link to a folder":   {[]tar.Header{folder("d"), hard("a", "d")}, "does not come before it"},
		"hard link out":           {[]tar.Header{link("l", "/etc"), hard("a", "l/shadow")}, "does not come before it"},
		"below a file":            {[]tar.Header{file("a", ""), file("a/b", "")}, `it is below "a", which is a file`},
		"loop":                    {[]tar.Header{link("a", "b"), link("b", "a"), file("a/x", "")}, "too many symbolic links"},
		"long name":               {[]tar.Header{file(strings.Repeat("x", 256), "")}, "its name is too long"},
		"long path through links": {[]tar.Header{link("l", strings.Repeat("x/", 1500)), file("l/"+strings.Repeat("y/", 1500)+"z", "")}, "its name is too long"},
		"long path":               {[]tar.Header{file(strings.Repeat("x/", 2048), "")}, "its name is too long"},
		"long link":               {[]tar.Header{link("a", strings.Repeat("x", 4096))}, "its name is too long"},
		"holes":                   {[]tar.Header{{Name: "a", Typeflag: tar.TypeGNUSparse}}, "it has holes"},
		"too many steps (links)":  {[]tar.Header{link("a", strings.Repeat("./", 2000)+"a"), file("a/b", "")}, "too many symbolic links"},
	} {
		t.Run(name, func(t *testing.T) {
			var data []byte
			if name == "holes" { // which package tar reads and does not write
				data = tarOf(t, tar.Header{Name: "a", Format: tar.FormatGNU})
				data[156] = tar.TypeGNUSparse
				setSum(data)
			} else {
				data = tarOf(t, tt.headers...)
			}
			if _, _, err := open(t, layout(t, data).folder(t)); err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("the error is %v, not %q", err, tt.want)
			}
		})
	}
}

// setSum sets the checksum of the first header of a tar file.
func setSum(data []byte) {
	copy(data[148:156], "        ")
	sum := 0
	for _, b := range data[:512] {
		sum += int(b)
	}
	copy(data[148:156], fmt.Sprintf("%06o\x00 ", sum))
}

// In a plain root names mean nothing else.
func TestPlainNames(t *testing.T) {
	var tree Tree
	if err := tree.AddTar(t.Context(), written(t, tarOf(t, file("a", "1"), file(".wh.a", "2")))); err != nil {
		t.Fatal(err)
	}
	if got := contents(t, &tree); !slices.Equal(got, []string{"/.wh.a=2", "/a=1"}) {
		t.Errorf("there are %q", got)
	}
}

// model is a root as a list of paths, by the words of the OCI image specification.
type model map[string]string

func (m model) removeBelow(name string) {
	maps.DeleteFunc(m, func(at, _ string) bool { return strings.HasPrefix(at, name+"/") })
}

// apply applies a layer: all whiteouts first, which concern lower layers, and then its entries.
func (m model) apply(layer []tar.Header) {
	for _, h := range layer {
		dir, base := path.Split("/" + h.Name)
		if base == opaque {
			m.removeBelow(path.Clean(dir))
		} else if hidden, ok := strings.CutPrefix(base, whiteout); ok {
			delete(m, dir+hidden)
			m.removeBelow(dir + hidden)
		}
	}
	for _, h := range layer {
		name := "/" + h.Name
		if strings.HasPrefix(path.Base(name), whiteout) {
			continue
		}
		if h.Typeflag == tar.TypeDir {
			m[name] = "/"
			continue
		}
		m.removeBelow(name)
		m[name] = "=" + h.PAXRecords["TEST.text"]
	}
}

// Random layers make the root that the specification describes.
func TestModel(t *testing.T) {
	seed, rounds := rand.Uint64(), 60
	if text := os.Getenv("MARGAY_SEED"); text != "" {
		seed, _ = strconv.ParseUint(text, 10, 64)
	}
	if os.Getenv("MARGAY_SOAK") != "" {
		rounds = 5_000
	}
	t.Logf("MARGAY_SEED=%d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	dir := t.TempDir()
	for range rounds {
		var tree Tree
		want := make(model)
		for number := range 1 + random.IntN(4) {
			layer := randomLayer(random)
			want.apply(layer)
			name := fmt.Sprintf("%s/%d", dir, number)
			if err := os.WriteFile(name, tarOf(t, layer...), 0o600); err != nil {
				t.Fatal(err)
			}
			if err := tree.addLayer(t.Context(), name); err != nil {
				t.Fatal(err)
			}
		}
		var list []string
		for name, text := range want {
			list = append(list, name+text)
		}
		got := contents(t, &tree)
		slices.Sort(list)
		if !slices.Equal(slices.Sorted(slices.Values(got)), list) {
			t.Fatalf("there are\n%q, not\n%q", got, list)
		}
		if tree.files != len(want) {
			t.Fatalf("%d files are counted, there are %d", tree.files, len(want))
		}
	}
}

// randomLayer returns a layer in which no name is both a file and a folder, and each folder comes
// before its contents, as in layers that tools make.
func randomLayer(random *rand.Rand) (layer []tar.Header) {
	kinds := make(map[string]bool) // by name: whether it is a folder
	for range random.IntN(8) {
		var parts []string
		for range 1 + random.IntN(3) {
			parts = append(parts, string(rune('a'+random.IntN(3))))
		}
		name := strings.Join(parts, "/")
		var h tar.Header
		switch random.IntN(5) {
		case 0:
			layer = append(layer, file(path.Join(path.Dir(name), whiteout+path.Base(name)), ""))
			continue
		case 1:
			layer = append(layer, file(name+"/"+opaque, ""))
			continue
		case 2:
			h = folder(name)
		default:
			h = file(name, strconv.Itoa(random.IntN(100)))
		}
		isFolder, known := kinds[name]
		fits := !known || isFolder == (h.Typeflag == tar.TypeDir)
		for dir := path.Dir(name); dir != "."; dir = path.Dir(dir) {
			isFolder, known := kinds[dir]
			fits = fits && (!known || isFolder)
		}
		if !fits {
			continue
		}
		kinds[name] = h.Typeflag == tar.TypeDir
		at := len(layer)
		for dir := path.Dir(name); dir != "."; dir = path.Dir(dir) {
			kinds[dir] = true
			layer = slices.Insert(layer, at, folder(dir))
		}
		layer = append(layer, h)
	}
	return layer
}
