package apt

import (
	"slices"
	"strings"
)

// source is one entry of apt's list of sources that offers binary packages.
type source struct {
	URIs, Suites, Components []string
	Architectures            []string // empty: all
	SignedBy                 string   // keyring paths, fingerprints or a key in text; empty: the keyrings apt trusts
	CheckValidUntil          string   // as written; empty: apt's default
}

// parseSources reads a file in deb822 form (*.sources, sources.list(5)). Entries that are disabled,
// malformed or not for binary packages are skipped: apt judges the entries of third parties.
func parseSources(text string) []source {
	var found []source
	for _, s := range parseStanzas(text) {
		src := source{
			URIs:            strings.Fields(s["uris"]),
			Suites:          strings.Fields(s["suites"]),
			Components:      strings.Fields(s["components"]),
			Architectures:   strings.Fields(s["architectures"]),
			SignedBy:        s["signed-by"],
			CheckValidUntil: s["check-valid-until"],
		}
		if slices.Contains(strings.Fields(s["types"]), "deb") && !isNo(s["enabled"]) && src.usable() {
			found = append(found, src)
		}
	}
	return found
}

// parseList reads a file in the one-line form (*.list, sources.list(5)): type [options] uri suite
// components.
func parseList(text string) []source {
	var found []source
	for line := range strings.Lines(text) {
		line, _, _ = strings.Cut(line, "#")
		rest, ok := strings.CutPrefix(strings.TrimSpace(line), "deb")
		if !ok || strings.TrimLeft(rest, " \t") == rest {
			continue
		}
		var src source
		rest = strings.TrimSpace(rest)
		if inner, ok := strings.CutPrefix(rest, "["); ok {
			options, after, closed := strings.Cut(inner, "]")
			if !closed {
				continue
			}
			src.setOptions(options)
			rest = after
		}
		words := strings.Fields(rest)
		if len(words) < 3 {
			continue
		}
		src.URIs, src.Suites, src.Components = words[:1], words[1:2], words[2:]
		found = append(found, src)
	}
	return found
}

// setOptions reads the bracketed options of a one-line entry; three of them matter here.
func (s *source) setOptions(options string) {
	for option := range strings.FieldsSeq(options) {
		name, value, _ := strings.Cut(option, "=")
		list := strings.ReplaceAll(value, ",", " ")
		switch strings.ToLower(name) {
		case "arch":
			s.Architectures = strings.Fields(list)
		case "signed-by":
			s.SignedBy = list
		case "check-valid-until":
			s.CheckValidUntil = value
		}
	}
}

func (s source) usable() bool {
	return len(s.URIs) > 0 && len(s.Suites) > 0 && len(s.Components) > 0
}

// isNo reports whether apt reads a value as no.
func isNo(value string) bool {
	return slices.Contains([]string{"no", "false", "without", "off", "disable", "0"}, strings.ToLower(value))
}

// stanza returns the entry in deb822 form, for the given Debian architecture alone.
func (s source) stanza(arch string) string {
	var b strings.Builder
	field := func(name, value string) {
		if value != "" {
			b.WriteString(name + ": " + value + "\n")
		}
	}
	field("Types", "deb")
	field("URIs", strings.Join(s.URIs, " "))
	field("Suites", strings.Join(s.Suites, " "))
	field("Components", strings.Join(s.Components, " "))
	field("Architectures", arch)
	field("Signed-By", s.SignedBy)
	field("Check-Valid-Until", s.CheckValidUntil)
	b.WriteString("\n")
	return b.String()
}

// parseStanzas reads Debian control data (deb-control(5)): stanzas of "Name: value" separated by
// empty lines, where a line that begins with white space continues the value. Names are returned in
// lower case, continuation lines as they stand. Comments and other lines are skipped.
func parseStanzas(text string) []map[string]string {
	var all []map[string]string
	current, last := map[string]string{}, ""
	end := func() {
		if len(current) > 0 {
			all = append(all, current)
		}
		current, last = map[string]string{}, ""
	}
	for line := range strings.Lines(text) {
		line = strings.TrimRight(line, " \t\r\n")
		switch {
		case line == "":
			end()
		case line[0] == '#':
		case line[0] == ' ' || line[0] == '\t':
			if last != "" {
				current[last] += "\n" + line
			}
		default:
			name, value, ok := strings.Cut(line, ":")
			last = strings.ToLower(strings.TrimSpace(name))
			if ok && last != "" {
				current[last] = strings.TrimSpace(value)
			} else {
				last = ""
			}
		}
	}
	end()
	return all
}
