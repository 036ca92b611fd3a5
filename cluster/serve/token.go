package serve

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"time"

	"google.golang.org/protobuf/proto"

	"margay/cluster/control"
	"margay/cluster/permit"
	"margay/cluster/trust"
)

// Bounds of tokens.
const (
	mostTokens = 1000                 // of a machine, expired ones included
	mostLife   = 366 * 24 * time.Hour // of a token
)

// createToken makes a token. The store has it before the answer, so it survives a serve.
func (c *client) createToken(m *control.CreateToken, now time.Time) (*control.Token, error) {
	s := c.server
	life := time.Duration(m.LifeNs)
	switch {
	case s.config.Remote == nil:
		return nil, control.Failf(control.Code_CODE_REFUSED, "machine %s does not listen to other hosts (margay machine up --listen)", s.config.Machine)
	case life <= 0 || life > mostLife:
		return nil, control.Failf(control.Code_CODE_BAD_REQUEST, "a token is valid for %d days at most, and for more than no time", int(mostLife.Hours()/24))
	}
	t := &control.Token{
		Administrator: m.Administrator, CreatedNs: now.UnixNano(), ExpiresNs: now.Add(life).UnixNano(), Creator: c.caller.Name,
	}
	if c.caller.UID == s.config.Owner {
		t.Creator = m.User
	}
	if err := c.nameUser(t, m); err != nil {
		return nil, err
	}
	if t.Owner && c.caller.Role != permit.Owner {
		return nil, control.Failf(control.Code_CODE_REFUSED, "%s is an owner of machine %s: only an owner creates tokens of owners", t.User, s.config.Machine)
	}
	if s.roleOf(t) == permit.Stranger {
		return nil, control.Failf(control.Code_CODE_REFUSED, "machine %s does not let %s in (margay machine up --users), so a token would admit nothing", s.config.Machine, t.User)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.tokens) >= mostTokens {
		return nil, control.Failf(control.Code_CODE_NO_ROOM, "machine %s has %d tokens, the most that it may have: margay machine token revoke deletes some", s.config.Machine, len(s.tokens))
	}
	number, err := s.store.nextToken()
	if err != nil {
		return nil, err
	}
	t.Number = number
	whole := trust.UserToken{Machine: s.config.Authority.Fingerprint(), Number: number, Secret: trust.NewSecret()}
	stored := &control.StoredToken{Token: t, Hash: whole.Secret.Hash()}
	if err := s.store.saveToken(stored); err != nil {
		return nil, err
	}
	s.tokens[number] = stored
	s.config.Log("%s has created token %d of %s", t.Creator, number, t.User)
	answer := proto.CloneOf(t)
	answer.Text = whole.String()
	return answer, nil
}

// nameUser enters the user of a token. What the owner says of itself is taken as it is, as in sign.
func (c *client) nameUser(t *control.Token, m *control.CreateToken) error {
	owner := c.server.config.Owner
	self := c.caller.UID == owner && (m.Whom == m.User || m.Whom == strconv.FormatUint(uint64(m.Uid), 10))
	if m.Whom == "" || self {
		t.User, t.Uid, t.Owner = c.caller.Name, c.caller.UID, c.caller.Role == permit.Owner
		if c.caller.UID == owner {
			t.User, t.Uid = m.User, m.Uid
		}
		return nil
	}
	uid, err := permit.UserOf(m.Whom)
	if err != nil {
		return control.Failf(control.Code_CODE_NOT_FOUND, "%v", err)
	}
	t.User, t.Uid, t.Owner = permit.NameOf(uid), uid, uid == owner || uid == 0
	return nil
}

// roleOf returns what the user of a token may be over a connection from another host now: it is
// never the owner, whose processes are on this host.
func (s *Server) roleOf(t *control.Token) permit.Role {
	role := permit.Administrator
	if !t.Owner {
		role = s.config.Access.Role(control.Peer{UID: t.Uid, GIDs: permit.GroupsOf(t.Uid)})
	}
	if !t.Administrator {
		role = min(role, permit.User)
	}
	return role
}

// listTokens returns the tokens without their hashes, in the order of their numbers.
func (s *Server) listTokens() *control.Tokens {
	s.mu.Lock()
	defer s.mu.Unlock()
	list := new(control.Tokens)
	for _, number := range slices.Sorted(maps.Keys(s.tokens)) {
		list.Tokens = append(list.Tokens, s.tokens[number].Token)
	}
	return list
}

// revokeTokens deletes tokens and ends the connections that they have admitted.
func (s *Server) revokeTokens(m *control.RevokeTokens, by string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, number := range m.Tokens {
		if s.tokens[number] == nil {
			return control.Failf(control.Code_CODE_NOT_FOUND, "machine %s has no token %d", s.config.Machine, number)
		}
	}
	if err := s.store.deleteTokens(m.Tokens); err != nil {
		return err
	}
	for _, number := range m.Tokens {
		delete(s.tokens, number)
		s.config.Log("%s has revoked token %d", cmp.Or(by, "the owner"), number)
		for conn, admitted := range s.remotes {
			if admitted == number {
				go conn.Dismiss(control.Failf(control.Code_CODE_REFUSED, "token %d was revoked", number))
			}
		}
	}
	return nil
}

// badToken reports a token that admits nothing. Its text is for the log and the audit log;
// strangers do not get it.
type badToken struct {
	caller permit.Caller // as far as it is known
	why    string
}

func (b *badToken) Error() string { return b.why }

// tokenOf returns a token, which does not change; nil if there is none.
func (s *Server) tokenOf(number uint32) *control.StoredToken {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.tokens[number]
}

// valid reports whether a token has neither been revoked nor expired.
func (s *Server) valid(number uint32, now time.Time) bool {
	stored := s.tokenOf(number)
	return stored != nil && now.UnixNano() < stored.Token.ExpiresNs
}

// admits returns the caller that a token admits at a time, if the secret is right; stored may be
// nil. The error is a *badToken.
func (s *Server) admits(stored *control.StoredToken, number uint32, secret trust.Secret, now time.Time) (permit.Caller, error) {
	if !secret.Is(stored.GetHash()) {
		return permit.Unknown, &badToken{permit.Unknown, fmt.Sprintf("wrong token %d", number)}
	}
	t := stored.Token
	caller := permit.Caller{UID: t.Uid, Name: t.User, Role: s.roleOf(t), Token: number}
	switch {
	case now.UnixNano() >= t.ExpiresNs:
		return caller, &badToken{caller, fmt.Sprintf("expired token %d", number)}
	case caller.Role == permit.Stranger:
		return caller, &badToken{caller, fmt.Sprintf("token %d of a user that is not let in", number)}
	}
	return caller, nil
}
