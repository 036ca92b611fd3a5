package root_test

import (
	"debug/elf"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	"margay/cluster/control"
	"margay/tools/margay/margaytest"
)

// Commands that say what they do say nothing with -q.
func TestQuiet(t *testing.T) {
	object := filepath.Join(t.TempDir(), "x.o")
	if err := os.WriteFile(object, []byte(elf.ELFMAG), 0o600); err != nil {
		t.Fatal(err)
	}
	answer := func(question proto.Message) (proto.Message, error) {
		if _, ok := question.(*control.InsertExtension); ok {
			return &control.Extensions{Extensions: []*control.ExtensionState{{Name: "x"}}}, nil
		}
		return &control.Done{}, nil
	}
	for _, line := range []string{"ext insert " + object, "kill 5", "machine restart 2", "machine cores --all on"} {
		for flag, silent := range map[string]bool{" -q": true, " --quiet": true, " -v": false} {
			if strings.HasPrefix(line, "ext") && !silent {
				flag = ""
			}
			status, stdout, stderr := margaytest.Played(t, answer, strings.Fields(line+flag)...)
			if status != 0 || silent != (stdout+stderr == "") {
				t.Errorf("%s%s: status %d, %q, %q", line, flag, status, stdout, stderr)
			}
		}
	}
	status, _, stderr := margaytest.Margay("", "kill", "-q", "-v", "5")
	margaytest.Wants(t, status, 125, stderr, "margay: kill: -q and -v exclude each other\n")
	refused := func(proto.Message) (proto.Message, error) {
		return nil, control.Failf(control.Code_CODE_NOT_FOUND, "there is no job 5")
	}
	if status, stdout, stderr := margaytest.Played(t, refused, "kill", "-q", "5"); status != 125 || stdout != "" || stderr != "margay: there is no job 5\n" {
		t.Errorf("an error: status %d, %q, %q", status, stdout, stderr)
	}
}
