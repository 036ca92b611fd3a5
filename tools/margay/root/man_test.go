package root_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"margay/tools/margay/margaytest"
	"margay/tools/margay/root"
)

func TestManPages(t *testing.T) {
	dir := t.TempDir()
	status, stdout, stderr := margaytest.Margay("", "man", dir)
	if status != 0 || stdout != "" || stderr != "" {
		t.Fatalf("status %d, %q, %q", status, stdout, stderr)
	}
	page := func(name string) string {
		text, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	margaytest.Wants(t, 0, 0, page("margay.1"), ".SH COMMANDS\n", ".BR margay\\-run (1)\n", ".SH EXAMPLES\n")
	margaytest.Wants(t, 0, 0, page("margay-run.1"), ".SH NAME\nmargay\\-run \\- Run a program", ".B \\-n, \\-\\-ranks int\n", ".B \\-\\-wait[=time]\n", ".SH SEE ALSO\n.BR margay (1)\n")
	margaytest.Wants(t, 0, 0, page("margay-ext-insert.1"), ".B margay ext insert [JOB] OBJECT [flags]\n", ".BR margay\\-ext (1)\n")
	for _, hidden := range []string{"margay-holder.1", "margay-man.1"} {
		if _, err := os.Stat(filepath.Join(dir, hidden)); err == nil {
			t.Errorf("%s is there", hidden)
		}
	}
	if got := root.Roff(".dot\n'quote a\\b -x"); got != "\\&.dot\n\\&'quote a\\eb \\-x" {
		t.Errorf("roff: %q", got)
	}
}

// make install puts everything below a folder, and what it installs works there.
func TestInstall(t *testing.T) {
	dir := t.TempDir()
	if out, err := exec.Command("make", "-C", "../../..", "install", "DESTDIR="+dir, "PREFIX=/usr").CombinedOutput(); err != nil {
		t.Fatalf("make install: %v\n%s", err, out)
	}
	for _, name := range []string{
		"bin/margay", "bin/margayd", "bin/nodekernel", "bin/jobinit", "lib/libmargay.a", "lib/libfabric/margay-fi.so", "include/margay.h", "include/margay/ext/margay_ext.h", "include/margay/ext/margay_hash.h",
		"include/margay/ext/margay_sched.h", "share/man/man1/margay.1", "share/man/man1/margay-machine-up.1",
		"share/bash-completion/completions/margay", "share/zsh/site-functions/_margay", "share/fish/vendor_completions.d/margay.fish",
	} {
		if info, err := os.Stat(filepath.Join(dir, "usr", name)); err != nil || info.Size() == 0 {
			t.Errorf("%s: %v", name, err)
		}
	}
	out, err := exec.Command(filepath.Join(dir, "usr/bin/margay"), "version").Output()
	if err != nil || !strings.HasPrefix(string(out), "margay ") {
		t.Errorf("%v: %s", err, out)
	}
	program := filepath.Join(dir, "greet")
	margaytest.Compile(t, "#include <margay.h>\nint main(void) { return margay_rank() > 0; }", program, "-I"+dir+"/usr/include", "-L"+dir+"/usr/lib", "-lmargay")

	// The headers of extensions. One has the name of the library's.
	if _, err := exec.LookPath("clang-19"); err != nil {
		t.Skip("the rest of this test needs clang-19")
	}
	object := filepath.Join(dir, "tally.o")
	cmd := exec.Command("clang-19", "-target", "bpf", "-mcpu=v3", "-O2", "-g", "-Wall", "-Werror", "-I", filepath.Join(dir, "usr/include/margay/ext"),
		"-x", "c", "-c", "-", "-o", object)
	cmd.Stdin = strings.NewReader("#include <margay_ext.h>\n#include <margay_sched.h>\n" +
		"SEC(\"message\") int drop(struct margay_message *m) { return m->length ? MARGAY_DROP : MARGAY_DELIVER; }\n")
	if text, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("clang: %v\n%s", err, text)
	}
	out, err = exec.Command(filepath.Join(dir, "usr/bin/margay"), "nimble", "verify", "--elf", object).CombinedOutput()
	if err != nil || !strings.HasPrefix(string(out), "message drop: accepted") {
		t.Errorf("%v: %s", err, out)
	}
}

// The Debian package has all of that, in the name of root, and what dpkg unpacks works.
func TestPackage(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "margay.deb")
	command := func(name string, args ...string) string {
		t.Helper()
		cmd := exec.Command(name, args...)
		cmd.Dir = "../../.."
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("%s: %v\n%s", name, err, out)
		}
		return string(out)
	}
	command("tools/deb/build", file, "-Zgzip", "-z1")
	margaytest.Wants(t, 0, 0, command("dpkg-deb", "--info", file), "\n Package: margay\n", "\n Version: 0~20", "\n Architecture: ")
	margaytest.Wants(t, 0, 0, command("dpkg-deb", "--contents", file), "-rwxr-xr-x root/root", "./usr/bin/yod -> margay\n", "./usr/share/man/man1/margay-run.1.gz\n",
		"./usr/share/doc/margay/operating.md\n", "./usr/bin/jobinit\n")
	command("dpkg-deb", "--extract", file, filepath.Join(dir, "root"))
	margaytest.Wants(t, 0, 0, command(filepath.Join(dir, "root/usr/bin/margay"), "version"), "margay ")
}
