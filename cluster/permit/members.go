package permit

import (
	"fmt"
	"os/user"
	"strconv"
	"strings"

	"margay/internal/printable"
)

// mostMembers bounds a list of members.
const mostMembers = 1000

// ParseMembers reads a list of users and groups: names or numbers with commas between them, groups
// after an @.
func ParseMembers(text string) (Members, error) {
	return parseMembers(text, userID, groupID)
}

// parseMembers is ParseMembers with functions that look up names.
func parseMembers(text string, userID, groupID func(name string) (string, error)) (members Members, err error) {
	for _, name := range strings.Split(text, ",") {
		m := Member{Name: name}
		lookUp, kind := userID, "user"
		bare := name
		if bare, m.Group = strings.CutPrefix(name, "@"); m.Group {
			lookUp, kind = groupID, "group"
		}
		if m.ID, err = parseID(bare, kind, lookUp); err != nil {
			return nil, err
		}
		if members = append(members, m); len(members) > mostMembers {
			return nil, fmt.Errorf("these are more than %d users and groups", mostMembers)
		}
	}
	return members, nil
}

// parseID returns the id of a user or a group, kind, by its name or number. lookUp finds names.
func parseID(name, kind string, lookUp func(name string) (string, error)) (id uint32, err error) {
	text := name
	if !isNumber(name) {
		if text, err = lookUp(name); err != nil {
			return 0, fmt.Errorf("there is no %s %q; its number can be given instead: %w", kind, name, err)
		}
	}
	number, err := strconv.ParseUint(text, 10, 32)
	if err != nil || number == unknownUID {
		return 0, fmt.Errorf("%q is not the number of a %s", text, kind)
	}
	return uint32(number), nil
}

// isNumber reports whether a name consists of digits. No user or group has such a name (useradd
// refuses them).
func isNumber(name string) bool {
	return name != "" && strings.Trim(name, "0123456789") == ""
}

func userID(name string) (string, error) {
	u, err := user.Lookup(name)
	if err != nil {
		return "", err
	}
	return u.Uid, nil
}

func groupID(name string) (string, error) {
	g, err := user.LookupGroup(name)
	if err != nil {
		return "", err
	}
	return g.Gid, nil
}

// String returns the list as it was given.
func (m Members) String() string {
	var names []string
	for _, one := range m {
		names = append(names, one.Name)
	}
	return strings.Join(names, ",")
}

// mostName bounds the name of a user, in bytes.
const mostName = 64

// UserOf returns the user id of a name or number. A number need not be known to this host.
func UserOf(name string) (uid uint32, err error) { return parseID(name, "user", userID) }

// GroupsOf returns the groups of a user according to the tables of this host: none if the user is
// not in them.
func GroupsOf(uid uint32) (gids []uint32) {
	u, err := user.LookupId(strconv.FormatUint(uint64(uid), 10))
	if err != nil {
		return nil
	}
	ids, _ := u.GroupIds()
	for _, id := range ids {
		if gid, err := strconv.ParseUint(id, 10, 32); err == nil {
			gids = append(gids, uint32(gid))
		}
	}
	return gids
}

// NameOf returns the name of a user for people and for a line of /etc/passwd: userN if there is no
// better one.
func NameOf(uid uint32) string {
	if uid == unknownUID {
		return "(unknown)"
	}
	u, err := user.LookupId(strconv.FormatUint(uint64(uid), 10))
	if err != nil || u.Username == "" || len(u.Username) > mostName || strings.ContainsAny(u.Username, ":/") || printable.Line(u.Username) != u.Username {
		return fmt.Sprint("user", uid)
	}
	return u.Username
}
