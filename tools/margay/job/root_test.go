package job

import (
	"slices"
	"strings"
	"testing"

	"margay/cluster/launch/image"
)

// A job's own variables count, and the image's where it has none. PATH is the image's.
func TestImageEnvironment(t *testing.T) {
	for _, tt := range []struct{ env, image, set, want string }{
		{"A=1 B=2", "B=3 C=4", "", "A=1 B=2 C=4"},
		{"PATH=/here A=1", "PATH=/image", "", "A=1 PATH=/image"},
		{"A=1 PATH=/set", "PATH=/image", "PATH=/set", "A=1 PATH=/set"},
		{"PATH=/here", "A=1", "", "PATH=/here A=1"},
		{"", "=x none A=1 A=2", "", "A=1"},
	} {
		env := strings.Fields(tt.env)
		got := imageEnvironment(env, strings.Fields(tt.image), strings.Fields(tt.set))
		if strings.Join(got, " ") != tt.want {
			t.Errorf("%+v: %q", tt, got)
		}
		if strings.Join(env, " ") != tt.env {
			t.Errorf("%+v: the environment of margay run has become %q", tt, env)
		}
	}
}

// A job that names neither a program nor a folder has the image's.
func TestImageDefaults(t *testing.T) {
	f := Flags{Root: "image", Ranks: 2, image: &image.Image{Config: image.Config{
		Entrypoint: []string{"/e"}, Cmd: []string{":", "-n", "3"}, WorkingDir: "../w/./x", Env: []string{"A=1"},
	}}}
	parts, err := f.parts(nil)
	if err != nil || len(parts) != 1 || f.Ranks != 2 || !slices.Equal(parts[0].argv, []string{"/e", ":", "-n", "3"}) {
		t.Errorf("%+v, %v", parts, err)
	}
	if parts, err = f.parts([]string{"p"}); err != nil || !slices.Equal(parts[0].argv, []string{"p"}) {
		t.Errorf("%+v, %v", parts, err)
	}
	if dir, err := f.dir(); err != nil || string(dir) != "/w/x" {
		t.Errorf("%s, %v", dir, err)
	}
	f.Chdir = "/none"
	if dir, err := f.dir(); err != nil || string(dir) != "/none" {
		t.Errorf("%s, %v", dir, err)
	}
	f.Export, f.Env = "NONE", []string{"B=2"}
	if env, err := f.environment(); err != nil || !slices.Equal(env, []string{"B=2", "A=1"}) {
		t.Errorf("%q, %v", env, err)
	}
	f.image.Config = image.Config{}
	if _, err := f.parts(nil); err == nil || !strings.Contains(err.Error(), "names none (Entrypoint, Cmd)") {
		t.Error(err)
	}
	f.image = nil
	if _, err := f.parts(nil); err == nil || !strings.Contains(err.Error(), "only an image names one") {
		t.Error(err)
	}
}
