package wire

// The ports of agents that others than these know: of the overlay and the tunnel by UDP, and of the channel between gateways by TCP.
const (
	OverlayPort  = 6094
	TunnelPort   = 51840
	ExchangePort = 6096
)

// Table is our routing table, and the group of our interfaces. Nobody else is known to use the number.
const Table = 27761
