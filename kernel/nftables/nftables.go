// Package nftables gives Linux's packet filter the one rule that a node needs. It speaks netlink
// (include/uapi/linux/netfilter/nf_tables.h), since a node has no program nft.
package nftables

import (
	"encoding/binary"
	"errors"
	"fmt"
	"syscall"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// before is the priority of the chain: ahead of what the host may have (NF_IP_PRI_RAW).
const before = -300

// Verdicts of linux/netfilter.h.
const (
	drop   = 0
	accept = 1
)

// answerWait bounds how long Linux may take to answer, in seconds.
const answerWait = 10

// DropUDP makes the network namespace of the calling process drop datagrams of UDP over IPv4 that
// arrive for a port from a source port of least or above. The rule is applied to whole datagrams: a
// fragmented one has been put together before. It replaces the table of that name. Either all of it
// is in force when DropUDP returns nil, or nothing was changed.
func DropUDP(table string, port, least uint16) error {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_NETFILTER)
	if err != nil {
		return fmt.Errorf("nftables: %w", err)
	}
	defer unix.Close(fd)
	if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Sec: answerWait}); err != nil {
		return fmt.Errorf("nftables: %w", err)
	}
	batch, asked := dropUDP(table, port, least)
	if err := unix.Sendto(fd, batch, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return fmt.Errorf("nftables: %w", err)
	}
	return answers(fd, asked)
}

// answers reads an answer to each of so many messages.
func answers(fd, asked int) error {
	buf := make([]byte, 64<<10)
	for seen := 0; seen < asked; {
		size, _, err := unix.Recvfrom(fd, buf, 0)
		if err != nil {
			return fmt.Errorf("nftables: read the answer: %w", err)
		}
		messages, err := syscall.ParseNetlinkMessage(buf[:size])
		if err != nil {
			return fmt.Errorf("nftables: read the answer: %w", err)
		}
		for _, m := range messages {
			if m.Header.Type != unix.NLMSG_ERROR {
				continue
			}
			if len(m.Data) < 4 {
				return errors.New("nftables: the answer is too short")
			}
			if code := int32(binary.NativeEndian.Uint32(m.Data)); code != 0 {
				return fmt.Errorf("nftables: %w", unix.Errno(-code))
			}
			seen++
		}
	}
	return nil
}

// dropUDP returns the messages, which Linux carries out together, and how many it answers.
func dropUDP(table string, port, least uint16) (batch []byte, asked int) {
	const chain = "input"
	add := func(kind, flags uint16, attrs ...*nl.RtAttr) {
		asked++
		batch = append(batch, encode(unix.NFNL_SUBSYS_NFTABLES<<8|kind, flags|unix.NLM_F_ACK, unix.NFPROTO_IPV4, 0, attrs...)...)
	}
	name := func(kind int, text string) *nl.RtAttr { return nl.NewRtAttr(kind, nl.ZeroTerminated(text)) }
	batch = encode(unix.NFNL_MSG_BATCH_BEGIN, 0, unix.AF_UNSPEC, unix.NFNL_SUBSYS_NFTABLES)
	// To remove a table that there is not is an error, so it is made before.
	add(unix.NFT_MSG_NEWTABLE, unix.NLM_F_CREATE, name(unix.NFTA_TABLE_NAME, table))
	add(unix.NFT_MSG_DELTABLE, 0, name(unix.NFTA_TABLE_NAME, table))
	add(unix.NFT_MSG_NEWTABLE, unix.NLM_F_CREATE, name(unix.NFTA_TABLE_NAME, table))
	priority := int32(before)
	add(unix.NFT_MSG_NEWCHAIN, unix.NLM_F_CREATE, name(unix.NFTA_CHAIN_TABLE, table), name(unix.NFTA_CHAIN_NAME, chain),
		nest(unix.NFTA_CHAIN_HOOK, number(unix.NFTA_HOOK_HOOKNUM, unix.NF_INET_LOCAL_IN), number(unix.NFTA_HOOK_PRIORITY, uint32(priority))),
		number(unix.NFTA_CHAIN_POLICY, accept), name(unix.NFTA_CHAIN_TYPE, "filter"))
	const sourcePort, targetPort = 0, 2 // in the header of UDP
	add(unix.NFT_MSG_NEWRULE, unix.NLM_F_CREATE|unix.NLM_F_APPEND, name(unix.NFTA_RULE_TABLE, table), name(unix.NFTA_RULE_CHAIN, chain),
		nest(unix.NFTA_RULE_EXPRESSIONS,
			expression("meta", number(unix.NFTA_META_KEY, unix.NFT_META_L4PROTO), number(unix.NFTA_META_DREG, unix.NFT_REG_1)),
			compare(unix.NFT_CMP_EQ, []byte{unix.IPPROTO_UDP}),
			load(targetPort), compare(unix.NFT_CMP_EQ, binary.BigEndian.AppendUint16(nil, port)),
			load(sourcePort), compare(unix.NFT_CMP_GTE, binary.BigEndian.AppendUint16(nil, least)),
			expression("immediate", number(unix.NFTA_IMMEDIATE_DREG, unix.NFT_REG_VERDICT),
				nest(unix.NFTA_IMMEDIATE_DATA, nest(unix.NFTA_DATA_VERDICT, number(unix.NFTA_VERDICT_CODE, drop)))),
		))
	return append(batch, encode(unix.NFNL_MSG_BATCH_END, 0, unix.AF_UNSPEC, unix.NFNL_SUBSYS_NFTABLES)...), asked
}

// load reads a port into the first register.
func load(offset uint32) *nl.RtAttr {
	return expression("payload", number(unix.NFTA_PAYLOAD_DREG, unix.NFT_REG_1), number(unix.NFTA_PAYLOAD_BASE, unix.NFT_PAYLOAD_TRANSPORT_HEADER),
		number(unix.NFTA_PAYLOAD_OFFSET, offset), number(unix.NFTA_PAYLOAD_LEN, 2))
}

// compare ends the rule unless the first register compares so with data.
func compare(how uint32, data []byte) *nl.RtAttr {
	return expression("cmp", number(unix.NFTA_CMP_SREG, unix.NFT_REG_1), number(unix.NFTA_CMP_OP, how),
		nest(unix.NFTA_CMP_DATA, nl.NewRtAttr(unix.NFTA_DATA_VALUE, data)))
}

func expression(name string, attrs ...*nl.RtAttr) *nl.RtAttr {
	return nest(unix.NFTA_LIST_ELEM, nl.NewRtAttr(unix.NFTA_EXPR_NAME, nl.ZeroTerminated(name)), nest(unix.NFTA_EXPR_DATA, attrs...))
}

func number(kind int, n uint32) *nl.RtAttr {
	return nl.NewRtAttr(kind, binary.BigEndian.AppendUint32(nil, n))
}

func nest(kind int, attrs ...*nl.RtAttr) *nl.RtAttr {
	outer := nl.NewRtAttr(kind|unix.NLA_F_NESTED, nil)
	for _, a := range attrs {
		outer.AddChild(a)
	}
	return outer
}

// encode returns a message: its header, struct nfgenmsg, and attributes.
func encode(kind, flags uint16, family uint8, resource uint16, attrs ...*nl.RtAttr) []byte {
	body := []byte{family, unix.NFNETLINK_V0}
	body = binary.BigEndian.AppendUint16(body, resource)
	for _, a := range attrs {
		body = append(body, a.Serialize()...)
	}
	b := binary.NativeEndian.AppendUint32(nil, uint32(unix.SizeofNlMsghdr+len(body)))
	b = binary.NativeEndian.AppendUint16(b, kind)
	b = binary.NativeEndian.AppendUint16(b, flags|unix.NLM_F_REQUEST)
	b = append(b, make([]byte, 8)...) // sequence number and port: not used
	return append(b, body...)
}
