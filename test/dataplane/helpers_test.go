package dataplane_test

import (
	"net"
	"net/netip"
	"time"
)

const patience = 10 * time.Second

func mapped(s string) netip.Addr { return netip.MustParseAddr(s) }

func netParse(p netip.Prefix) (net.IP, *net.IPNet, error) { return net.ParseCIDR(p.String()) }
