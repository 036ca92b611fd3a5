package job

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"margay/cluster/launch/bring"
)

func TestTargets(t *testing.T) {
	here := t.TempDir()
	t.Chdir(here)
	long := strings.Repeat("x", 200)
	var many []string
	for i := range 700 {
		many = append(many, fmt.Sprintf("%s%d=%d", long, 1000+i, i))
	}
	for _, c := range []struct {
		values []string
		want   []bring.Target
		says   string // the error
	}{
		{[]string{"res", "/abs/x"}, []bring.Target{{Path: "/w/res", Dest: "/w/res"}, {Path: "/abs/x", Dest: "/abs/x"}}, ""},
		{[]string{"../res/=to/%n"}, []bring.Target{{Path: "/res", Dest: here + "/to/%n"}}, ""},
		{[]string{".=to/", "/tmp/a%b"}, []bring.Target{{Path: "/w", Dest: here + "/to/"}, {Path: "/tmp/a%b", Dest: "/tmp/a%%b"}}, ""},
		{[]string{"a=b=c"}, []bring.Target{{Path: "/w/a", Dest: here + "/b=c"}}, ""},
		{[]string{"/=all"}, []bring.Target{{Path: "/", Dest: here + "/all"}}, ""},
		{[]string{"/"}, nil, "need a folder of their own"},
		{[]string{""}, nil, "PATH or PATH=DEST"},
		{[]string{"a="}, nil, "PATH or PATH=DEST"},
		{[]string{"a=b%r"}, nil, "after % comes"},
		{[]string{"a", "a/b"}, nil, "one in the other"},
		{[]string{"a", "/"}, nil, "need a folder"},
		{[]string{"a", "/=x"}, nil, "one in the other"},
		{many, nil, "name a folder"},
		{[]string{"a=/proc/none/x"}, nil, "write to the folder"},
	} {
		got, err := targets(c.values, "/w")
		if !slices.Equal(got, c.want) || (err == nil) != (c.says == "") || err != nil && !strings.Contains(err.Error(), c.says) {
			if c.says == "write to the folder" && os.Getuid() == 0 {
				continue // root may, as far as access(2) knows
			}
			t.Errorf("%q: %+v, %v", c.values, got, err)
		}
	}
}

// The name of the working directory is not a pattern.
func TestTargetsBelowPercent(t *testing.T) {
	for _, name := range []string{"50%new", "100%", "%%"} {
		here := filepath.Join(t.TempDir(), name)
		if err := os.MkdirAll(here+"/sub", 0o755); err != nil {
			t.Fatal(err)
		}
		t.Chdir(here + "/sub")
		got, err := targets([]string{"res=../%n/"}, "/w")
		if err != nil {
			t.Errorf("in %s: %v", name, err)
			continue
		}
		if dest := bring.Expand(got[0].Dest, 7, 3); dest != here+"/3/" {
			t.Errorf("in %s the files go to %s", here, dest)
		}
	}
}
