package machine

import (
	"errors"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"margay/cluster/client"
	"margay/cluster/folder"
	"margay/cluster/permit"
	"margay/kernel/abi/node"
)

// lab is a door of this user's.
func lab(t *testing.T) string {
	t.Setenv(client.DoorVariable, t.TempDir())
	return client.Door(uint32(os.Getuid()), "lab")
}

// Two users may each have a machine of the same name, and each has a path of its own.
func TestDoorPaths(t *testing.T) {
	t.Setenv(client.DoorVariable, "")
	for uid, want := range map[uint32]string{0: "/run/margay-users-0/lab/serve.sock", 1000: "/tmp/margay-users-1000/lab/serve.sock"} {
		if got := client.Door(uid, "lab"); got != want {
			t.Errorf("the door of user %d is %s, not %s", uid, got, want)
		}
	}
}

func TestCompleteAccess(t *testing.T) {
	users := permit.Policy{Users: permit.Members{{Name: "ann", ID: 1001}}}
	limits := permit.Policy{Cores: 1}
	negative := users
	negative.Jobs = -1
	for _, c := range []struct {
		access    permit.Policy
		substrate string
		uid       int
		want      string // of the error
	}{
		{permit.Policy{}, node.Hosted, 1000, ""},
		{users, node.Virtual, 1000, ""},
		{users, node.Hosted, 0, ""},
		{users, node.Hosts, 0, ""},
		{users, node.Hosted, 1000, "all other users are the same one"},
		{users, node.Hosts, 1000, "all other users are the same one"},
		{limits, node.Virtual, 0, "limits are for users who are let in"},
		{negative, node.Virtual, 0, "none can be negative"},
	} {
		s := Spec{Name: "lab", Substrate: c.substrate, Access: c.access}
		err := s.completeAccess(c.uid)
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%v on %s by user %d: %v", c.access, c.substrate, c.uid, err)
		}
		if open := s.Door != ""; open != (c.access.Open() && err == nil) {
			t.Errorf("%v: the door is %q", c.access, s.Door)
		}
	}
	t.Setenv(client.DoorVariable, "doors")
	s := Spec{Name: "lab", Substrate: node.Virtual, Access: users}
	if err := s.completeAccess(1000); err == nil || !strings.Contains(err.Error(), "not an absolute path") {
		t.Errorf("a folder of doors with a relative path: %v", err)
	}
}

// A door takes connections beside the owner's socket, belongs to one machine at a time, and can be
// taken over after a kill.
func TestDoor(t *testing.T) {
	door := lab(t)
	if err := checkDoor(door); err != nil {
		t.Fatal(err)
	}
	if left, err := os.ReadDir(os.Getenv(client.DoorVariable)); err != nil || len(left) > 0 {
		t.Errorf("a check has left %v, %v", left, err)
	}
	lock, err := lockDoor(door)
	if err != nil {
		t.Fatal(err)
	}
	if err := checkDoor(door); err == nil || !strings.Contains(err.Error(), "another machine of yours with this name lets others in") {
		t.Errorf("a door of two machines: %v", err)
	}
	if err := os.WriteFile(door, nil, 0o600); err != nil { // a serve that was killed leaves its socket
		t.Fatal(err)
	}
	own := filepath.Join(t.TempDir(), "own.sock")
	l, err := listenClients(own)
	if err == nil {
		l, err = addDoor(l, door)
	}
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{own, door, own, door} {
		near, err := net.Dial("unix", path)
		if err != nil {
			t.Fatal(err)
		}
		far, err := l.Accept()
		if err != nil || far.LocalAddr().String() != path {
			t.Fatalf("a connection to %s: %v", path, err)
		}
		near.Close()
		far.Close()
	}
	inner := filepath.Dir(door)
	for path, want := range map[string]fs.FileMode{filepath.Dir(inner): 0o711, inner: 0o711, door: 0o666, own: 0o600} {
		if info, err := os.Stat(path); err != nil || info.Mode().Perm() != want {
			t.Errorf("%s has mode %v, not %v: %v", path, info.Mode(), want, err)
		}
	}
	if err := errors.Join(l.Close(), lock.Close()); err != nil {
		t.Error(err)
	}
	if _, err := l.Accept(); !errors.Is(err, net.ErrClosed) {
		t.Errorf("a closed door: %v", err)
	}
	lock, err = lockDoor(door)
	if err != nil {
		t.Fatal(err)
	}
	defer lock.Close()
	clearDoor(door)
	if _, err := os.Stat(filepath.Dir(inner)); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the door is left: %v", err)
	}
}

// A folder that another user can change is refused, and so is a link.
func TestStrangeDoor(t *testing.T) {
	for name, spoil := range map[string]func(path string) error{
		"can be written by others": func(path string) error { return errors.Join(os.Mkdir(path, 0o700), os.Chmod(path, 0o777)) },
		"is a symbolic link":       func(path string) error { return os.Symlink(t.TempDir(), path) },
		"is no folder":             func(path string) error { return os.WriteFile(path, nil, 0o600) },
	} {
		door := lab(t)
		if err := spoil(filepath.Dir(filepath.Dir(door))); err != nil {
			t.Fatal(err)
		}
		if err := checkDoor(door); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: %v", name, err)
		}
	}
	door := lab(t)
	if err := os.Chmod(os.Getenv(client.DoorVariable), 0o777); err != nil {
		t.Fatal(err)
	}
	if err := checkDoor(door); err == nil || !strings.Contains(err.Error(), "can be written by others") {
		t.Errorf("a door that others can exchange: %v", err)
	}
}

func TestDoorOf(t *testing.T) {
	door := lab(t)
	lock, err := lockDoor(door)
	if err != nil {
		t.Fatal(err)
	}
	defer lock.Close()
	uid := permit.NameOf(uint32(os.Getuid()))
	if d, is, err := folder.Door(uid + ":lab"); err != nil || !is || d.Socket() != door || d.Name() != "lab" {
		t.Errorf("%s, %v, %v", d, is, err)
	}
	if _, is, err := folder.Door("lab"); is || err != nil {
		t.Errorf("a machine of this user: %v, %v", is, err)
	}
	for name, why := range map[string]string{
		uid + ":other":     "no such machine lets others in",
		"4000000000:lab":   "no such machine lets others in",
		uid + ":../lab":    "is not a machine of another user",
		uid + ":":          "is not a machine of another user",
		"no such user:lab": "there is no user",
		":lab":             "there is no user",
		uid + ":lab:lab":   "is not a machine of another user",
	} {
		if _, is, err := folder.Door(name); !is || err == nil || !strings.Contains(err.Error(), why) {
			t.Errorf("%q: %v, %v", name, is, err)
		}
	}
	// A folder in the place of another user's.
	if err := os.MkdirAll(filepath.Dir(client.Door(4000000001, "lab")), 0o711); err != nil {
		t.Fatal(err)
	}
	if _, _, err := folder.Door("4000000001:lab"); err == nil || !strings.Contains(err.Error(), "is no folder of 4000000001's") {
		t.Errorf("a folder in another user's place: %v", err)
	}
}
