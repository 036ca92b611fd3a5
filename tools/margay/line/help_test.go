package line

import "testing"

func TestReflow(t *testing.T) {
	const text = "one\ntwo three four five\n\n  as\n  it is\n\nlast"
	if got, want := reflow(text, 20), "one two three four\nfive\n\n  as\n  it is\n\nlast"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}
