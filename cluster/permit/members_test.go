package permit

import (
	"errors"
	"slices"
	"strings"
	"testing"
)

// names are the users and groups of a played system.
func names(known map[string]string) func(string) (string, error) {
	return func(name string) (string, error) {
		if id, ok := known[name]; ok {
			return id, nil
		}
		return "", errors.New("unknown")
	}
}

var (
	playedUsers  = names(map[string]string{"ann": "1001", "strange": "none"})
	playedGroups = names(map[string]string{"lab": "50"})
)

func TestParseMembers(t *testing.T) {
	got, err := parseMembers("ann,@lab,1002,@51", playedUsers, playedGroups)
	want := Members{{"ann", 1001, false}, {"@lab", 50, true}, {"1002", 1002, false}, {"@51", 51, true}}
	if err != nil || !slices.Equal(got, want) || got.String() != "ann,@lab,1002,@51" {
		t.Errorf("%v, %v", got, err)
	}
	for text, why := range map[string]string{
		"":                                      `there is no user ""`,
		"ann,":                                  `there is no user ""`,
		"@":                                     `there is no group ""`,
		"bob":                                   `there is no user "bob"; its number can be given instead`,
		"@ann":                                  `there is no group "ann"`,
		"ann, @lab":                             `there is no user " @lab"`,
		"-1":                                    `there is no user "-1"`,
		"4294967295":                            `"4294967295" is not the number of a user`,
		"@4294967296":                           `"4294967296" is not the number of a group`,
		"strange":                               `"none" is not the number of a user`,
		strings.Repeat("1,", mostMembers) + "1": "these are more than 1000 users and groups",
	} {
		if got, err := parseMembers(text, playedUsers, playedGroups); err == nil || !strings.HasPrefix(err.Error(), why) {
			t.Errorf("%.20q: %v, %v", text, got, err)
		}
	}
}

func FuzzParseMembers(f *testing.F) {
	for _, text := range []string{"ann,@lab,1002,@51", "", ",", "@", "@@", "0", "18446744073709551616", "ann\n,\x00"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		got, err := parseMembers(text, playedUsers, playedGroups)
		if err != nil {
			return
		}
		if again, err := parseMembers(got.String(), playedUsers, playedGroups); err != nil || !slices.Equal(again, got) {
			t.Errorf("%q is %v, and then %v, %v", text, got, again, err)
		}
	})
}

func TestNameOf(t *testing.T) {
	if name := NameOf(0); name != "root" {
		t.Errorf("user 0 is %s", name)
	}
	if name := NameOf(4000000000); name != "user4000000000" {
		t.Errorf("a user without a name is %s", name)
	}
}
