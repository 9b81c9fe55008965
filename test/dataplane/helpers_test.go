package dataplane_test

import (
	"net/netip"
	"time"
)

const patience = 10 * time.Second

func mapped(s string) netip.Addr { return netip.MustParseAddr(s) }
