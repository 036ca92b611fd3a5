package login

import (
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"margay/cluster/site"
	"margay/cluster/trust"
)

// example is a login that can be used.
func example() Login {
	return Login{Address: "host:7118", Machine: "m", Token: trust.UserToken{Number: 3, Secret: trust.NewSecret()}.String(), Since: time.Unix(1e9, 0).UTC()}
}

func TestSave(t *testing.T) {
	state := filepath.Join(t.TempDir(), "state")
	t.Setenv(site.StateVariable, state)
	if names, err := Names(); names != nil || err != nil {
		t.Errorf("at first: %v, %v", names, err)
	}
	want := example()
	for _, name := range []string{"b", "a", "b"} {
		if err := Save(name, want); err != nil {
			t.Fatal(err)
		}
	}
	names, err := Names()
	if !slices.Equal(names, []string{"a", "b"}) || err != nil {
		t.Errorf("%v, %v", names, err)
	}
	dir, err := Dir("b")
	if err != nil || !Exists(dir) {
		t.Fatal(dir, err)
	}
	if got, err := Read(dir); got != want || err != nil {
		t.Errorf("%v, %v", got, err)
	}
	for path, mode := range map[string]fs.FileMode{state: 0o700, dir: 0o700, filepath.Join(dir, fileName): 0o600} {
		if info, err := os.Stat(path); err != nil || info.Mode().Perm() != mode {
			t.Errorf("%s: %v, %v", path, info.Mode(), err)
		}
	}
	if of, is := Of(site.Socket(dir)); of != dir || !is {
		t.Errorf("its socket is of %s, %v", of, is)
	}
	foreign := filepath.Join(dir, "foreign")
	if err := os.WriteFile(foreign, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := Remove("b"); err != nil || Exists(dir) {
		t.Errorf("%v, and it is still there: %v", err, Exists(dir))
	}
	if err := Remove("b"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("again: %v", err)
	}
	if err := os.RemoveAll(dir); err != nil { // with the other file
		t.Error(err)
	}
	if err := Remove("a"); err != nil {
		t.Error(err)
	}
	if left, _ := os.ReadDir(state); len(left) > 0 {
		t.Errorf("left is %v", left)
	}
}

// A file that another user could have read or changed, or that lacks something, is not used.
func TestRead(t *testing.T) {
	t.Setenv(site.StateVariable, t.TempDir())
	good, err := json.Marshal(example())
	if err != nil {
		t.Fatal(err)
	}
	for what, spoil := range map[string]func(path string) error{
		"open to others": func(path string) error { return os.Chmod(path, 0o640) },
		"a link": func(path string) error {
			return errors.Join(os.Rename(path, path+".real"), os.Symlink(path+".real", path))
		},
		"empty":      func(path string) error { return os.WriteFile(path, nil, 0o600) },
		"cut":        func(path string) error { return os.WriteFile(path, good[:len(good)/2], 0o600) },
		"no token":   func(path string) error { return os.WriteFile(path, []byte(`{"Address":"h:1","Machine":"m"}`), 0o600) },
		"no address": func(path string) error { return os.WriteFile(path, []byte(`{"Address":"h"}`), 0o600) },
	} {
		if err := Save("m", example()); err != nil {
			t.Fatal(err)
		}
		dir, _ := Dir("m")
		path := filepath.Join(dir, fileName)
		if err := spoil(path); err != nil {
			t.Fatal(err)
		}
		if l, err := Read(dir); err == nil || errors.Is(err, fs.ErrNotExist) || l != (Login{}) {
			t.Errorf("%s: %v, %v", what, l, err)
		}
		if err := os.RemoveAll(dir); err != nil {
			t.Fatal(err)
		}
	}
}

func TestAddress(t *testing.T) {
	for address, good := range map[string]bool{
		"host:7118": true, "10.0.0.1:1": true, "[::1]:65535": true,
		"": false, "host": false, ":7118": false, "host:": false, "host:0": false, "host:65536": false, "host:x": false, "::1:7": false,
	} {
		if err := CheckAddress(address); (err == nil) != good {
			t.Errorf("%s: %v", address, err)
		}
	}
}

// The paths of the sockets of machines are not paths of logins.
func TestOf(t *testing.T) {
	for _, path := range []string{"/run/user/0/margay/m/serve.sock", "/x/margay-logins/serve.sock", "/x/margay-logins/m/other", "serve.sock", ""} {
		if dir, is := Of(path); is {
			t.Errorf("%s is the login %s", path, dir)
		}
	}
	if _, err := Dir("a/b"); err == nil {
		t.Error("a name can lead elsewhere")
	}
}

// A file is refused, or the login in it can be used.
func FuzzParse(f *testing.F) {
	good, _ := json.Marshal(example())
	f.Add(good)
	f.Add([]byte(`{"Address":"h:1"}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		l, err := parse(text)
		if err != nil {
			return
		}
		if _, err := trust.ParseToken(l.Token); err != nil || CheckAddress(l.Address) != nil {
			t.Errorf("%v is accepted", l)
		}
	})
}
