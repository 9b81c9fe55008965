package gateway

import (
	"context"
	"log/slog"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/pkg/nat"
	"github.com/liqonet/liqonet/pkg/overlay"
	"github.com/liqonet/liqonet/pkg/tunnel"
)

// receive redirects packets to where they are aggregated. If the kernel does not support that, everything still
// works, but slower.
func (a *agent) receive(ctx context.Context, want desired) {
	ports := []uint16{overlay.Port}
	if tunnel.Backend(a.device.backend) == tunnel.Userspace {
		ports = append(ports, want.tunnel.ListenPort) // the kernel's WireGuard accepts no aggregated packets
	}
	_, err := nat.ApplyReceive(ctx, nat.Receive{
		Underlay: want.tunnel.Underlay, Entry: tunnel.EntryInterface, Ports: ports,
	})
	if err != nil {
		a.cfg.Log.Warn("packets are not aggregated", "error", err)
	}
}

// device is the tunnel's device, nil while there is none, and its implementation.
type device struct {
	*tunnel.Device
	backend v1alpha1.WireGuardBackend
}

// open opens the device unless it is open already, and reports whether it is another one now, even after an error.
func (d *device) open(log *slog.Logger, backend v1alpha1.WireGuardBackend) (isNew bool, err error) {
	if d.Device != nil && d.backend == backend {
		return false, nil
	}
	d.close(log)
	if d.backend != "" {
		if err := tunnel.Remove(tunnel.InterfaceName); err != nil {
			return true, err
		}
	}
	opened, err := tunnel.Open(tunnel.Backend(backend), tunnel.InterfaceName, func(err error) {
		log.Warn("wireguard", "error", err)
	})
	if err != nil {
		return true, err
	}
	d.Device, d.backend = opened, backend
	return true, nil
}

// close closes the device only once, since its file descriptors may soon be reused.
func (d *device) close(log *slog.Logger) {
	if d.Device == nil {
		return
	}
	if err := d.Close(); err != nil {
		log.Error("cannot close the tunnel", "error", err)
	}
	d.Device = nil
}
