package machine

import (
	"cmp"
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"margay/cluster/boot"
	"margay/cluster/control"
	"margay/cluster/folder"
	"margay/cluster/trust"
	"margay/internal/flock"
	"margay/kernel/abi/id"
	"margay/kernel/abi/node"
)

// A token of a node lets a machine that boots from a disk become that node without a person's
// approval. The owner makes it and brings it on the disk; the machine presents it when it asks for
// its configuration. The folder of the machine has the hash of each token, in a file by the number
// of the node. Presenting a token notes that there, whatever comes of it, so a token is good for
// one attempt. A process that changes the folder has it locked.

// NodeToken is the token of a node.
type NodeToken struct {
	Node   id.Node
	Secret trust.Secret
}

// String returns the text of the token, which is one word of a kernel command line.
func (t NodeToken) String() string { return fmt.Sprintf("%d-%x", t.Node, t.Secret) }

// ParseNodeToken is the inverse of NodeToken.String. No other text is a token.
func ParseNodeToken(text string) (t NodeToken, err error) {
	number, secret, _ := strings.Cut(text, "-")
	n, err := strconv.ParseUint(number, 10, 32)
	b, failed := hex.DecodeString(secret)
	if err == nil && failed == nil && len(b) == len(t.Secret) {
		if t = (NodeToken{id.Node(n), trust.Secret(b)}); t.String() == text {
			return t, nil
		}
	}
	return NodeToken{}, errors.New("not the token of a node, which margay node token prints")
}

// storedToken is what the folder of the machine has of a token.
type storedToken struct {
	Hash []byte `json:"hash"`
	NodeTokenState
}

// NodeTokenState is what a machine knows of a token, but for its hash.
type NodeTokenState struct {
	Node    id.Node   `json:"node"`
	Term    uint32    `json:"term"` // of the number that the node will have
	Created time.Time `json:"created"`
	Expires time.Time `json:"expires"`
	Used    time.Time `json:"used,omitzero"`  // zero: it was not presented yet
	Card    string    `json:"card,omitempty"` // the network card of the machine that has presented it
}

// The folder with the tokens of nodes, and the file that becomes the next one.
const (
	tokensName = "tokens"
	nextToken  = "next"
)

func (d Dir) tokenFile(number id.Node) string {
	return d.file(tokensName, strconv.FormatUint(uint64(number), 10))
}

// lockWait bounds how long a process waits for the folder with the tokens.
const lockWait = 10 * time.Second

// lockTokens locks the folder with the tokens, until the returned file is closed. The error is
// fs.ErrNotExist if there was no token yet.
func (d Dir) lockTokens() (*os.File, error) {
	f, err := os.OpenFile(d.file(tokensName), os.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return nil, err
	}
	if err := flock.Lock(f, unix.LOCK_EX, lockWait); err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// MakeNodeToken makes the token of a node that the machine, of the substrate metal, does not have
// yet. It replaces an earlier one of that node.
func (d Dir) MakeNodeToken(number uint32, now, expires time.Time) (NodeToken, error) {
	spec, err := d.ReadSpec()
	if err != nil {
		return NodeToken{}, err
	}
	if spec.Substrate != node.Metal {
		return NodeToken{}, control.Failf(control.Code_CODE_REFUSED, "machine %s has no boot network, and tokens are for nodes of the substrate %s", spec.Name, node.Metal)
	}
	if _, ok := spec.Metal.Plan.Node(id.Node(number)); !ok {
		return NodeToken{}, control.Failf(control.Code_CODE_BAD_REQUEST, "node%d: the range %v has addresses for %d nodes", number, spec.Metal.Plan.Range, spec.Metal.Plan.Nodes())
	}
	r, err := d.ReadRoster(spec)
	if err != nil {
		return NodeToken{}, err
	}
	if r.Has(number) {
		return NodeToken{}, control.Failf(control.Code_CODE_REFUSED, "node%d is a node of machine %s already, and needs no token", number, spec.Name)
	}
	if err := os.Mkdir(d.file(tokensName), 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return NodeToken{}, err
	}
	locked, err := d.lockTokens()
	if err != nil {
		return NodeToken{}, err
	}
	defer locked.Close()
	t := NodeToken{id.Node(number), trust.NewSecret()}
	state := NodeTokenState{Node: t.Node, Term: r.Term(number) + 1, Created: now, Expires: expires}
	return t, d.writeToken(storedToken{t.Secret.Hash(), state})
}

// writeToken records a token. The caller has the folder locked.
func (d Dir) writeToken(stored storedToken) error {
	text, err := json.Marshal(stored)
	if err != nil {
		return err
	}
	next := d.file(tokensName, nextToken)
	if err := writeFile(next, append(text, '\n')); err != nil {
		return err
	}
	return os.Rename(next, d.tokenFile(stored.Node))
}

// RevokeNodeToken removes the token of a node. It is an error if there is none that was not
// presented yet.
func (d Dir) RevokeNodeToken(number uint32) error {
	if _, err := d.ReadSpec(); err != nil {
		return err
	}
	locked, err := d.lockTokens()
	if err == nil {
		defer locked.Close()
		var stored storedToken
		if stored, err = readToken(d.tokenFile(id.Node(number))); err == nil && !stored.Used.IsZero() {
			return control.Failf(control.Code_CODE_REFUSED, "the token of node%d was used at %s, and admits nothing any more", number, stored.Used.Format(time.DateTime))
		}
		if !errors.Is(err, fs.ErrNotExist) {
			err = os.Remove(d.tokenFile(id.Node(number))) // also a damaged one
		}
	}
	if errors.Is(err, fs.ErrNotExist) {
		return control.Failf(control.Code_CODE_NOT_FOUND, "machine %s has no token of node%d", d.Name(), number)
	}
	return err
}

// readToken reads what the folder has of a token.
func readToken(path string) (stored storedToken, err error) {
	record, err := folder.Read(path)
	if err == nil {
		err = json.Unmarshal(record, &stored)
	}
	return stored, err
}

// NodeTokens returns the last token of each node, used or not, by number. A token that cannot be
// read admits nothing, and is left out.
func (d Dir) NodeTokens() []NodeTokenState {
	all := []NodeTokenState{}
	entries, _ := os.ReadDir(d.file(tokensName)) // there is none before the first token
	for _, e := range entries {
		if _, err := strconv.ParseUint(e.Name(), 10, 32); err != nil {
			continue // the next one, which is being written
		}
		if stored, err := readToken(d.file(tokensName, e.Name())); err == nil {
			all = append(all, stored.NodeTokenState)
		}
	}
	slices.SortFunc(all, func(a, b NodeTokenState) int { return cmp.Compare(a.Node, b.Node) })
	return all
}

// promised returns the numbers of nodes that have a token which was not presented yet and has not
// expired.
func (d Dir) promised(now time.Time) (numbers []uint32) {
	for _, t := range d.NodeTokens() {
		if t.Used.IsZero() && now.Before(t.Expires) {
			numbers = append(numbers, uint32(t.Node))
		}
	}
	return numbers
}

// errToken reports a text that is not the token of a node, and gives no reason: any station can
// ask.
var errToken = errors.New("it is not a token of this machine, or was replaced")

// spentError reports a token of the machine that admits nothing. Its secret was shown, so the
// reason need not be hidden.
type spentError struct {
	node id.Node
	why  string
}

func (e *spentError) Error() string { return e.why }

// backSlack is how much earlier than the creation of a token the clock may be when it is presented.
// A clock that was set back further would prolong the token.
const backSlack = time.Minute

// spendNodeToken uses up a token, which a machine with a network card brings, and returns its node.
// An expired one is used up as well, and one from the future is not.
func (d Dir) spendNodeToken(now time.Time, text string, card boot.MAC) (id.Node, error) {
	t, err := ParseNodeToken(text)
	if err != nil {
		return 0, errToken
	}
	locked, err := d.lockTokens()
	var stored storedToken
	if err == nil {
		defer locked.Close()
		stored, err = readToken(d.tokenFile(t.Node))
	}
	if errors.Is(err, fs.ErrNotExist) || err == nil && !t.Secret.Is(stored.Hash) {
		return 0, errToken
	}
	refused := func(format string, at time.Time) error {
		return &spentError{t.Node, fmt.Sprintf(format, at.Format(time.DateTime))}
	}
	if err == nil {
		switch {
		case !stored.Used.IsZero():
			return 0, refused("it was used before, at %s", stored.Used)
		case now.Before(stored.Created.Add(-backSlack)):
			return 0, refused("it was made at %s, which is in the future: the clock of the service host was set back", stored.Created)
		}
		stored.Node, stored.Used, stored.Card = t.Node, now, card.String()
		err = d.writeToken(stored)
	}
	if err != nil {
		return 0, fmt.Errorf("it cannot be checked: %w", err)
	}
	if !now.Before(stored.Expires) {
		return 0, refused("it expired at %s", stored.Expires)
	}
	return t.Node, nil
}

// token uses up the token that a machine on the boot network brings. A guest becomes its node.
func (m *metalNodes) token(h boot.Host, text string) error {
	now := time.Now()
	number, err := m.dir.spendNodeToken(now, text, h.MAC)
	m.mu.Lock()
	defer m.mu.Unlock()
	_, known := m.cards.Node(h.MAC)
	if err != nil {
		if spent := (*spentError)(nil); errors.As(err, &spent) && !known && now.Sub(m.spent[spent.node]) >= warnPause {
			m.spent[spent.node] = now
			m.running.Go(func() { m.events.shown(spent.node, h.MAC, err) })
		}
		return err
	}
	m.cards.Met(now, h.MAC)
	if known {
		m.events.log("%v has brought the token of node%d, and is a node without it: the token is used up", h, number)
		return nil
	}
	m.events.log("the machine with the network card %v has brought the token of node%d", h.MAC, number)
	m.running.Go(func() { m.events.admitted(number, h.MAC) })
	return nil
}

// admit makes a machine on the boot network the node of a number. It runs until served ends.
func (h *holder) admit(served context.Context, number id.Node, mac boot.MAC) error {
	nodes, ok := h.substrate.(*metalNodes)
	if !ok {
		return errors.New("the machine has no boot network")
	}
	h.changing.Lock()
	defer h.changing.Unlock()
	if h.ending {
		return ErrDown
	}
	if slices.Contains(nodes.busy(), uint32(number)) {
		return fmt.Errorf("the last node%d has left, and may still run with its address", number)
	}
	grown, err := h.roster.With(uint32(number))
	if err != nil {
		return err
	}
	_, err = h.makeNodes(served, served, nodes, trust.NewToken(), []boot.MAC{mac}, grown, []uint32{uint32(number)})
	return err
}
