package job

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	"margay/cluster/control"
)

func TestSharedFlag(t *testing.T) {
	dir := t.TempDir()
	t.Chdir(dir)
	if err := os.MkdirAll("a/b", 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile("file", nil, 0o600); err != nil {
		t.Fatal(err)
	}
	with := t.TempDir()
	if err := os.MkdirAll(with+"/machines/inside", 0o700); err != nil {
		t.Fatal(err)
	}
	t.Setenv("MARGAY_DIR", with+"/machines")
	for name, test := range map[string]struct {
		values []string
		path   string // of the last folder
		name   string // on the nodes; empty: refused
	}{
		"working directory": {[]string{"."}, dir, dir},
		"another name":      {[]string{"a/b=/data"}, dir + "/a/b", "/data"},
		"relative name":     {[]string{"a=in/../x"}, dir + "/a", "/work/x"},
		"two":               {[]string{"a", "a/b=/data"}, dir + "/a/b", "/data"},
		"read-only":         {[]string{"a=/data:ro"}, dir + "/a", "/data"},
		"none":              {[]string{"=x"}, "", ""},
		"no name":           {[]string{"a="}, "", ""},
		"missing":           {[]string{"missing"}, "", ""},
		"a file":            {[]string{"file"}, "", ""},
		"root":              {[]string{"a=/"}, "", ""},
		"devices":           {[]string{"a=/dev/../dev/x"}, "", ""},
		"same":              {[]string{"a=/x", "a/b=/x"}, "", ""},
		"nested":            {[]string{"a=/x/y", "a/b=/x"}, "", ""},
		"brought back":      {[]string{"a=/out"}, "", ""},
		"with machines":     {[]string{with + ":ro"}, "", ""},
		"the machines":      {[]string{with + "/machines"}, "", ""},
		"of a machine":      {[]string{with + "/machines/inside=/x"}, "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			f := &Flags{Files: test.values}
			s := &control.JobSpec{Dir: []byte("/work"), Out: [][]byte{[]byte("/out/x")}}
			folders, err := f.shared(s, nil)
			if test.name == "" {
				if err == nil {
					t.Errorf("accepted: %v, %v", folders, s.Shared)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			last := len(folders) - 1
			if path, _ := filepath.EvalSymlinks(folders[last].Path); path != test.path && folders[last].Path != test.path || string(s.Shared[last].Path) != test.name {
				t.Errorf("%v is %s there", folders[last], s.Shared[last].Path)
			}
			if readOnly := name == "read-only"; folders[last].ReadOnly != readOnly || s.Shared[last].ReadOnly != readOnly {
				t.Error("it may be changed")
			}
		})
	}
}

// A file in a shared folder is there: no hint says that it was not copied.
func TestArgumentsOutsideShared(t *testing.T) {
	t.Chdir(t.TempDir())
	dir, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	parts := []part{{argv: []string{"app", "in/file", "file"}}, {argv: []string{"app", dir + "/in/file", dir + "/inner"}}}
	got := argumentsOf(parts, []*control.SharedFolder{{Path: []byte(dir + "/in")}})
	if want := []string{"file", dir + "/inner"}; !slices.Equal(got, want) {
		t.Errorf("missing may be %q", got)
	}
}
