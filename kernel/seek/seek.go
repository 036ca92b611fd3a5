// Package seek finds the configuration of a node that boots from a disk or a USB stick: nothing
// that is on it belongs to one node, so the node asks the boot services of its machine, as iPXE
// does for a node that boots over the network (cluster/boot).
//
//	-> DHCP  discover, request, of user class node.UserClass   on all network cards at once
//	-> HTTP  GET node.FetchPath                               from the host of the script that an answer names
//
// A machine that is not a node is refused its configuration, and asks again until it is one. The
// command line of the kernel says that a node seeks, and may name the key of its machine: then the
// node belongs to no other, and takes only a configuration that this key has signed for its
// question.
package seek

import (
	"context"
	"crypto/ed25519"
	"crypto/sha256"
	"crypto/x509"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"time"

	"margay/kernel/abi/node"
)

// Machine says which machines a node may belong to: the one whose certificate has this hash
// (SHA-256, hexadecimal), or, if it is node.AnyMachine, all.
type Machine string

// Sought returns what a kernel command line says of the machine. Without a word about it ok is
// false: the node has its configuration in another way.
func Sought(cmdline string) (m Machine, ok bool, err error) {
	for word := range strings.FieldsSeq(cmdline) {
		value, found := strings.CutPrefix(word, node.MachineWord+"=")
		if !found {
			continue
		}
		if hash, err := hex.DecodeString(value); value != node.AnyMachine && (err != nil || len(hash) != sha256.Size) {
			return "", false, fmt.Errorf("kernel command line: %s=%q is neither %q nor a SHA-256 hash", node.MachineWord, value, node.AnyMachine)
		}
		m, ok = Machine(strings.ToLower(value)), true
	}
	return m, ok, nil
}

// Token returns the token that a kernel command line has; empty: it has none.
func Token(cmdline string) (token string, err error) {
	for word := range strings.FieldsSeq(cmdline) {
		value, found := strings.CutPrefix(word, node.TokenWord+"=")
		if !found {
			continue
		}
		if value == "" || len(value) > maxToken || strings.Trim(value, "0123456789abcdef-") != "" {
			return "", fmt.Errorf("kernel command line: the word %s has no token that margay node token has printed", node.TokenWord)
		}
		token = value
	}
	return token, nil
}

// maxToken bounds the length of a token.
const maxToken = 128

// Card is a network card of Ethernet.
type Card struct {
	Name string
	MAC  net.HardwareAddr
}

// Network asks boot services.
type Network interface {
	// Cards returns the cards that there are now.
	Cards() ([]Card, error)
	// Ask gets the configuration on the network of a card. It leaves nothing on the card, and ends
	// within a time of its own or with the context.
	Ask(context.Context, Card) (Answer, error)
}

// Answer is the text of a configuration, with the nonce of the question and the signature that came
// (node.Statement). Any station on the network may have sent it.
type Answer struct {
	Text, Nonce, Signature []byte
}

// Seeker finds a configuration.
type Seeker struct {
	Network Network
	Machine Machine
	Pause   time.Duration // between two rounds
	Log     func(format string, args ...any)
}

// Find returns the text of the configuration, which it has checked. It asks until it has one or ctx
// ends.
func (s Seeker) Find(ctx context.Context) ([]byte, error) {
	said := make(map[string]string) // what was last logged about a card
	for {
		cards, err := s.Network.Cards()
		if err == nil && len(cards) == 0 {
			err = errors.New("there is none (is the module of its driver in the node image?)")
		}
		if err != nil {
			s.say(said, "network cards", err)
		}
		if text := s.round(ctx, cards, said); text != nil {
			return text, nil
		}
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("find the configuration: %w", context.Cause(ctx))
		case <-time.After(s.Pause):
		}
	}
}

// round asks on all cards at once, and returns the first configuration; nil if there is none.
func (s Seeker) round(ctx context.Context, cards []Card, said map[string]string) (text []byte) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var mu sync.Mutex // guards text and said
	var all sync.WaitGroup
	for _, c := range cards {
		all.Go(func() {
			found, err := s.Network.Ask(ctx, c)
			if err == nil {
				err = s.check(found, c)
			}
			mu.Lock()
			defer mu.Unlock()
			switch {
			case text != nil:
			case err != nil:
				s.say(said, "network card "+c.Name+" ("+c.MAC.String()+")", err)
			default:
				text = found.Text
				cancel()
			}
		})
	}
	all.Wait()
	return text
}

// check checks an answer that came on a card.
func (s Seeker) check(a Answer, c Card) error {
	config, err := node.Parse(a.Text)
	if err != nil {
		return err
	}
	if mac, err := net.ParseMAC(config.MAC); err != nil || mac.String() != c.MAC.String() || config.Substrate != node.Metal {
		return errors.New("the configuration that came is of another node")
	}
	if s.Machine == node.AnyMachine {
		return nil
	}
	if hash := sha256.Sum256(config.CA); string(s.Machine) != hex.EncodeToString(hash[:]) {
		return fmt.Errorf("the machine %q there has another key than the one that this image was made for (margay image build --pin)", config.Machine)
	}
	ca, err := x509.ParseCertificate(config.CA)
	if err != nil {
		return err
	}
	if key, ok := ca.PublicKey.(ed25519.PublicKey); !ok || !ed25519.Verify(key, node.Statement(a.Nonce, a.Text), a.Signature) {
		return fmt.Errorf("the machine %q has not signed the configuration that came: a station there pretends to be it, or the service host has another version of Margay than this image", config.Machine)
	}
	return nil
}

// say logs an error, unless it is the last one again.
func (s Seeker) say(said map[string]string, what string, err error) {
	if said[what] != err.Error() {
		said[what] = err.Error()
		s.Log("%s: %v", what, err)
	}
}
