package page

import "testing"

func TestInsert(t *testing.T) {
	const begin, end = "<!-- begin: written by margay bench x -->\n", "<!-- end: written by margay bench x -->\n"
	page := "# Page\n" + begin + "old\n" + end + "rest\n"
	first, err := Insert(page, "margay bench x", "figures\n")
	if want := "# Page\n" + begin + "\nfigures\n\n" + end + "rest\n"; err != nil || first != want {
		t.Errorf("%v: %s", err, first)
	}
	if again, err := Insert(first, "margay bench x", "figures\n"); err != nil || again != first {
		t.Errorf("%v: a second time: %s", err, again)
	}
	for _, page := range []string{"", begin, end, end + begin} {
		if _, err := Insert(page, "margay bench x", "figures\n"); err == nil {
			t.Errorf("%q is accepted", page)
		}
	}
}

func TestHost(t *testing.T) {
	if got := cpuModel("processor\t: 0\nmodel name\t: Some CPU: fast\nmodel name: other\n"); got != "Some CPU: fast" {
		t.Errorf("the model is %q", got)
	}
	if h := ThisHost("v1"); h.CPUs < 1 || h.Date == "" || h.Linux == "unknown" || h.Margay != "v1" {
		t.Errorf("%+v", h)
	}
	if (Host{CPUs: 2, Load: 0.5}).Busy() || !(Host{CPUs: 2, Load: 0.7}).Busy() {
		t.Error("a load of 0.5 on two CPUs is not busy, a load of 0.7 is")
	}
}
