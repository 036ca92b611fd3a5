package e2e

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// brought lists the files below a folder, with their contents.
func brought(t *testing.T, dir string) (files []string) {
	t.Helper()
	err := filepath.Walk(dir, func(path string, info os.FileInfo, err error) error {
		if err != nil || !info.Mode().IsRegular() {
			return err
		}
		text, err := os.ReadFile(path)
		name, _ := filepath.Rel(dir, path)
		files = append(files, name+"="+strings.TrimSpace(string(text)))
		return err
	})
	if err != nil {
		t.Error(err)
	}
	return files
}

// runIn runs margay run in a folder.
func (m *machine) runIn(dir string, args ...string) *command {
	m.t.Helper()
	return start(m.t, func(c *exec.Cmd) { c.Dir = dir }, append([]string{"-m", m.name, "run"}, args...)...)
}

// Files that ranks have written come back, from all nodes into one folder or one for each, also
// when the job fails or reaches its limit. Files that do not come back are named, once.
func TestOut(t *testing.T) {
	onBoth(t, func(t *testing.T, m *machine) {
		dir := t.TempDir()
		run := func(want int, args ...string) result {
			t.Helper()
			r := m.runIn(dir, append([]string{"-n", "2", "--ppn", "1", "--with", "/bin/mkdir", "--with", "/bin/ln"}, args...)...).wait()
			if r.code != want {
				t.Errorf("want status %d: %v", want, r)
			}
			return r
		}
		const write = `mkdir -p res/d && echo $MARGAY_RANK >res/d/$MARGAY_RANK && echo both >res/both && echo lost >other; `
		r := run(0, "--out", "res", "sh", "-c", write+"ln -s /etc/passwd res/way; ln -s both res/link")
		if got := brought(t, dir); !slices.Equal(got, []string{"res/both=both", "res/both.node1=both", "res/d/0=0", "res/d/1=1"}) {
			t.Errorf("there are %q: %v", got, r)
		}
		if to, err := os.Readlink(dir + "/res/link"); to != "both" {
			t.Errorf("the link leads to %q: %v", to, err)
		}
		for _, words := range []string{"2 files written by ranks were not kept: other (on 2 nodes)\n", "/res/both of node1 is both.node1\n", "/res/way of node1: it is a link to /etc/passwd, out of the folder\n"} {
			if strings.Count(r.stderr, words) != 1 {
				t.Errorf("it does not say %q: %v", words, r)
			}
		}
		if !m.hosted() {
			return
		}
		if r := run(3, "--out", "res=failed/%n", "--keep-going", "sh", "-c", write+"exit $((MARGAY_RANK * 3))"); len(brought(t, dir+"/failed")) != 4 {
			t.Errorf("of a job that failed came %q: %v", brought(t, dir+"/failed"), r)
		}
		if r := run(124, "-t", "1s", "--out", "res=late/%n", "sh", "-c", write+"trap '' TERM; while :; do echo on >res/on; done"); len(brought(t, dir+"/late")) != 6 {
			t.Errorf("of a job at its limit came %q: %v", brought(t, dir+"/late"), r)
		}
		if r := run(125, "--out", "res=none", "true"); !strings.Contains(r.stderr, "no rank has written anything at "+dir+"/res, which --out names") {
			t.Errorf("a job that wrote nothing: %v", r)
		}
		run(0, "--out", "res/both=res/both", "--out-overwrite", "sh", "-c", "mkdir res; echo new$MARGAY_RANK >res/both")
		if got := brought(t, dir+"/res"); !slices.Contains(got, "both=new0") || !slices.Contains(got, "both.node1=new1") {
			t.Errorf("after --out-overwrite there are %q", got)
		}
	})
}

// mapper changes the first byte of files through a mapping, when it has read it.
const mapper = `
#include <fcntl.h>
#include <sys/mman.h>
int main(int argc, char **argv)
{
	for (int i = 1; i < argc; i++) {
		char *at = mmap(0, 1, PROT_READ | PROT_WRITE, MAP_SHARED, open(argv[i], O_RDWR), 0);
		if (at == MAP_FAILED || *(volatile char *)at != 'a')
			return 1;
		*(volatile char *)at = 'A';
	}
	return 0;
}
`

// A file that came with the job comes back when a rank has changed it through a mapping, which
// leaves the file its time.
func TestOutMapped(t *testing.T) {
	m := use(t, "hosted")
	dir := t.TempDir()
	names := []string{"large", "same-large", "same-small", "small"}
	data := map[string]string{"small": "abc", "large": strings.Repeat("abcd", 16<<10)}
	for _, name := range names {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(data[strings.TrimPrefix(name, "same-")]), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	args := []string{"--out", ".=to"}
	for _, name := range names {
		args = append(args, "--with", name)
	}
	args = append(args, compile(t, "mapper", mapper), "small", "large")
	for range 2 { // the node has the large ones already the second time
		if err := os.RemoveAll(dir + "/to"); err != nil {
			t.Fatal(err)
		}
		r := m.runIn(dir, args...).wait()
		if got := brought(t, dir+"/to"); r.code != 0 || !slices.Equal(got, []string{"large=A" + data["large"][1:], "small=Abc"}) {
			t.Errorf("there are %.100q: %v", got, r)
		}
	}
	m.usable()
}

// The files of a job come back when it is killed and when it is interrupted. A margay run that ends
// leaves no job behind.
func TestOutOfKilled(t *testing.T) {
	w := expect("hosted")
	t.Parallel()
	m := w.take(t)
	m.t = t
	dir := t.TempDir()
	begin := func(as string) (c *command, job string) {
		c = m.runIn(dir, "-n", "2", "--ppn", "1", "--out", "f="+as+"/%n/f", "--with", "/bin/sleep", "sh", "-c", "trap '' INT; echo $MARGAY_RANK >f; echo ready $MARGAY_RANK; sleep 1000; sleep 1000")
		c.awaitRanks("ready", 2)
		return c, m.onlyJob()
	}
	c, job := begin("killed")
	if r := m.margay("kill", "--force", job); r.code != 0 {
		t.Error(r)
	}
	if r := c.wait(); r.code != 137 || !slices.Equal(brought(t, dir+"/killed"), []string{"0/f=0", "1/f=1"}) {
		t.Errorf("of a job that was killed came %q: %v", brought(t, dir+"/killed"), r)
	}
	c, _ = begin("interrupted")
	for range 2 {
		c.signal(unix.SIGINT)
		eventually(t, "word about the signal", func() bool { return strings.Contains(c.stderr.String(), "Ctrl-C again") }, c.stderr.String)
	}
	if r := c.wait(); r.code != 130 || len(brought(t, dir+"/interrupted")) != 2 {
		t.Errorf("of a job that was interrupted came %q: %v", brought(t, dir+"/interrupted"), r)
	}
	c, job = begin("gone")
	c.signal(unix.SIGKILL)
	c.wait()
	eventually(t, "end of the job", func() bool { return strings.Contains(m.margay("ps", job).stdout, "its margay run is gone") }, func() string { return m.margay("ps", job).String() })
	m.usable()
}

// A margay run that is stopped while it brings files back continues where it was, whatever is
// killed in between. One that is killed leaves no part of a file under its name.
func TestOutGoesOn(t *testing.T) {
	w := expect("hosted")
	t.Parallel()
	m := w.take(t)
	m.t = t
	dir := t.TempDir()
	const size = 48 << 20
	stopped := func() *command {
		c := m.runIn(dir, "--out", "big", "--with", "/bin/dd", "sh", "-c", fmt.Sprintf("dd if=/dev/zero of=big bs=1M count=%d 2>/dev/null", size>>20))
		eventually(t, "part of the file", func() bool {
			parts, _ := filepath.Glob(dir + "/.margay-*")
			return len(parts) > 0
		}, func() string { return c.stderr.String() })
		c.signal(unix.SIGSTOP)
		return c
	}
	c := stopped()
	_, serve := m.status()
	for _, pid := range append(m.nodeKernels(), serve) {
		kill(t, pid)
	}
	c.signal(unix.SIGCONT) // a restarted serve waits for it, but not for long
	r := c.wait()
	text, err := os.ReadFile(dir + "/big")
	if r.code != 0 || err != nil || len(text) != size || len(bytes.Trim(text, "\x00")) > 0 {
		t.Fatalf("%d bytes came, %v: %v", len(text), err, r)
	}
	if err := os.Remove(dir + "/big"); err != nil {
		t.Fatal(err)
	}
	c = stopped()
	c.signal(unix.SIGKILL)
	c.wait()
	if _, err := os.Stat(dir + "/big"); err == nil && len(text) != size {
		t.Error("a part of the file has its name")
	}
	m.usable()
}

// A full disk on this side is an error that names the missing files.
func TestOutOnFullDisk(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("mounting a small disk needs root")
	}
	w := expect("hosted")
	t.Parallel()
	m := w.take(t)
	script := `mount -t tmpfs -o size=256k small "$1" && cd "$1" || exit 9
"$2" -m "$3" run -n 2 --ppn 1 --with /bin/dd --out .=to/%n sh -c 'dd if=/dev/zero of=big bs=64k count=16 2>/dev/null'; echo "status $?"
ls -A to/0; rm -r to
"$2" -m "$3" run --out .=to sh -c 'echo works >small'; cat to/small`
	cmd := exec.Command("sh", "-c", script, "sh", t.TempDir(), filepath.Join(bin, "margay"), m.name)
	cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: unix.CLONE_NEWNS}
	text, err := cmd.CombinedOutput()
	if err != nil || !strings.Contains(string(text), "big of node0: ") || !strings.Contains(string(text), "no space left on device\nstatus 125\nworks\n") {
		t.Errorf("%v:\n%s", err, text)
	}
}

// With --root host, ranks find the host's programs and the files that those need, and nothing else.
// They cannot change any of them.
func TestRootHost(t *testing.T) {
	onBoth(t, func(t *testing.T, m *machine) {
		dir := t.TempDir()
		if !m.hosted() {
			rootHostLent(t, m)
			return
		}
		writeProgram(t, filepath.Join(dir, "script"), []byte("#!/usr/bin/env perl\nprint \"perl \" . join(\",\", map { $_ * 2 } 1..3) . \"\\n\";\n"))
		if r := m.runIn(dir, "-n", "2", "--root", "host", "./script").wait(); r.code != 0 || r.stdout != strings.Repeat("perl 2,4,6\n", 2) || r.stderr != "" {
			t.Error(r)
		}
		if err := os.Symlink("/root", filepath.Join(dir, "way")); err != nil {
			t.Fatal(err)
		}
		r := m.runIn(dir, "--root", "host", "sh", "-c", `
ls /usr/bin | wc -l | grep -q '[1-9]' && echo programs; id -un; cut -d: -f1 /etc/passwd | wc -l
for f in /home /root /var /run /srv /opt /boot /work /proc/1/root/home /usr/../home /etc/../root; do [ -e $f ] && echo "there is $f"; done
cat /etc/shadow /etc/gshadow 2>/dev/null
for f in /usr/new /etc/new /usr/bin/env /etc/hosts /bin/sh; do ( : >>$f ) 2>/dev/null && echo "writes $f"; done
grep -E ' /(usr|etc)[ /]' /proc/self/mounts | grep -v -E ' ro,[^ ]*' | grep -v -E ' /etc/(passwd|group|hostname|hosts|nsswitch.conf) '
grep -E ' /(usr|etc) ' /proc/self/mounts | grep -q -v nosuid && echo suid
find /usr /etc -xdev \( -type s -o -type b -o -type c -o -type p \) 2>/dev/null | head -1
true`).wait()
		user := strings.TrimSpace(string(output(t, "id", "-un")))
		if want := "programs\n" + user + "\n2\n"; r.code != 0 || r.stdout != want || r.stderr != "" {
			t.Errorf("want %q: %v", want, r)
		}
		// Files that --root host hides from ranks stay hidden when files come back.
		if r := m.runIn(dir, "--root", "host", "--out", "/etc/shadow=shadow", "true").wait(); r.code != 0 || !strings.Contains(r.stderr, "/etc/shadow of node") {
			t.Error(r)
		}
		if _, err := os.Stat(filepath.Join(dir, "shadow")); err == nil {
			t.Error("a rank's margay run has read a file of root")
		}
	})
}

// rootHostLent is TestRootHost on nodes with a Linux of their own: they have the host's files from
// margay run, the world-readable ones only.
func rootHostLent(t *testing.T, m *machine) {
	dir, secret := t.TempDir(), "/etc/margay-secret-"+filepath.Base(t.TempDir())
	if err := os.WriteFile(secret, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	defer os.Remove(secret)
	// In locale C, programs read none of the many small files of a locale.
	r := m.runIn(dir, "-n", "2", "-N", "2", "--env", "LC_ALL=C", "--root", "host", "bash", "-c", `
seq 10 | sort -rn | head -1; if [ $MARGAY_RANK = 0 ]; then id -un; cut -d: -f1 /etc/passwd | wc -l; fi
for f in /home /root /var /srv /opt /etc/shadow `+secret+`; do [ -e $f ] && echo "there is $f"; done
for f in /usr/new /usr/bin/env /etc/hosts; do ( : >>$f ) 2>/dev/null && echo "writes $f"; done
test /etc/os-release -ef /usr/lib/os-release || echo "os-release is another file"`).wait()
	user := strings.TrimSpace(string(output(t, "id", "-un")))
	if want := "10\n10\n" + user + "\n2\n"; r.code != 0 || !slices.Equal(sorted(r.stdout), sorted(want)) || r.stderr != "" {
		t.Errorf("want %q: %v", want, r)
	}
	if r := m.run(125, "-d", "--root", "host", "true"); !strings.Contains(r.stderr, "leave out -d") {
		t.Error(r)
	}
}

// A root comes from a folder or a tar file, and so does the program. The root's files are the job's
// own, and the files that ranks change come back.
func TestRoot(t *testing.T) {
	onBoth(t, func(t *testing.T, m *machine) {
		dir := t.TempDir()
		program, err := os.ReadFile(probe())
		if err != nil {
			t.Fatal(err)
		}
		if err := os.Mkdir(dir+"/bin", 0o755); err != nil {
			t.Fatal(err)
		}
		writeProgram(t, dir+"/bin/p", program)
		if err := errors.Join(os.WriteFile(dir+"/data", []byte("first\n"), 0o644), os.Symlink("bin/p", dir+"/app"), os.Mkdir(dir+"/etc", 0o755), os.WriteFile(dir+"/etc/passwd", []byte("evil"), 0o644)); err != nil {
			t.Fatal(err)
		}
		roots := []string{filepath.Join(t.TempDir(), "root.tar")}
		output(t, "tar", "-C", dir, "-cf", roots[0], ".")
		if m.hosted() {
			roots = append(roots, dir)
		}
		for _, root := range roots {
			if r := m.run(0, "-n", "2", "--ppn", "1", "--root", root, "/app", "read", "/data"); strings.Count(r.stdout, `6 bytes, first line "first"`) != 2 || r.stderr != "" {
				t.Error(r)
			}
			if !m.hosted() {
				continue
			}
			if r := m.run(0, "--root", root, "/app", "read", "/etc/passwd"); !strings.Contains(r.stdout, `first line "root:`) {
				t.Errorf("the file of the root is seen: %v", r)
			}
			back := t.TempDir()
			if r := m.run(0, "--root", root, "--chdir", "/not/here", "--out", "/="+back, "p", "write", "/data", "new"); len(brought(t, back)) != 2 {
				t.Errorf("%q came back: %v", brought(t, back), r)
			}
		}
		cache := t.TempDir()
		images := []string{roots[0], os.DevNull}
		if !m.hosted() {
			images = images[:1]
		}
		for _, data := range images { // the second image lacks its layer, which is in the cache
			r := start(t, func(c *exec.Cmd) { c.Env = append(os.Environ(), "MARGAY_CACHE="+cache) },
				"-m", m.name, "run", "-n", "2", "--ppn", "1", "--root", savedImage(t, roots[0], data)).wait()
			if r.code != 0 || strings.Count(r.stdout, ` env image args ["word"]`) != 2 || strings.Count(r.stdout, " dir /work/here ") != 2 || r.stderr != "" {
				t.Errorf("the program of the image: %v", r)
			}
		}
	})
}

// savedImage makes an archive as of docker save with one layer. Its data come from another file.
func savedImage(t *testing.T, layer, data string) string {
	t.Helper()
	root, err := os.ReadFile(layer)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	config := fmt.Sprintf(`{"os":"linux","config":{"Env":["PROBE_ENV=image","PATH=/bin"],"WorkingDir":"/work/here","Entrypoint":["p","hello"],"Cmd":["word"]},
		"rootfs":{"diff_ids":["sha256:%x"]}}`, sha256.Sum256(root))
	manifest := `[{"Config":"config.json","Layers":["layer.tar"]}]`
	saved, err := os.ReadFile(data)
	if err := errors.Join(err, os.WriteFile(dir+"/config.json", []byte(config), 0o600), os.WriteFile(dir+"/manifest.json", []byte(manifest), 0o600),
		os.WriteFile(dir+"/layer.tar", saved, 0o600)); err != nil {
		t.Fatal(err)
	}
	output(t, "tar", "-C", dir, "-cf", dir+"/image.tar", "manifest.json", "config.json", "layer.tar")
	return dir + "/image.tar"
}

// output runs a command of the host.
func output(t testing.TB, name string, args ...string) []byte {
	t.Helper()
	text, err := exec.Command(name, args...).Output()
	if err != nil {
		t.Fatal(err)
	}
	return text
}
