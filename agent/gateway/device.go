package gateway

import (
	"context"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/pkg/nat"
	"github.com/liqonet/liqonet/pkg/overlay"
	"github.com/liqonet/liqonet/pkg/tunnel"
)

// receive redirects packets to where they are aggregated. If the kernel does not support that, everything still
// works, but slower.
func (a *agent) receive(ctx context.Context, want desired) {
	ports := []uint16{overlay.Port}
	if tunnel.Backend(a.backend) == tunnel.Userspace {
		ports = append(ports, want.tunnel.ListenPort) // the kernel's WireGuard accepts no aggregated packets
	}
	_, err := nat.ApplyReceive(ctx, nat.Receive{
		Underlay: want.tunnel.Underlay, Entry: tunnel.EntryInterface, Ports: ports,
	})
	if err != nil {
		a.Log.Warn("packets are not aggregated", "error", err)
	}
}

// open opens the tunnel's device, once.
func (a *agent) open(backend v1alpha1.WireGuardBackend) error {
	if a.device != nil && a.backend == backend {
		return nil
	}
	a.close()
	a.want = desired{}
	if a.backend != "" {
		if err := tunnel.Remove(tunnel.InterfaceName); err != nil {
			return err
		}
	}
	device, err := tunnel.Open(tunnel.Backend(backend), tunnel.InterfaceName, func(err error) {
		a.Log.Warn("wireguard", "error", err)
	})
	if err != nil {
		return err
	}
	a.device, a.backend = device, backend
	return nil
}

// close closes the tunnel's device only once, since its file descriptors may soon be reused.
func (a *agent) close() {
	if a.device == nil {
		return
	}
	if err := a.device.Close(); err != nil {
		a.Log.Error("cannot close the tunnel", "error", err)
	}
	a.device = nil
}
