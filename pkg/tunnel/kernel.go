package tunnel

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/vishvananda/netlink"
	"golang.zx2c4.com/wireguard/wgctrl"

	"github.com/liqonet/liqonet/pkg/link"
)

var _ Device = (*kernelDevice)(nil)

// kernelDevice is an interface of the kernel's own WireGuard.
type kernelDevice struct {
	name string
	conn *link.Conn
	wg   *wgctrl.Client

	mu      sync.Mutex
	applied *Config
}

func openKernel(name string) (Device, error) {
	conn, err := link.Open()
	if err != nil {
		return nil, err
	}
	if err := ensureKernelLink(conn, name); err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	// After the interface was made: wgctrl only sees a loaded module.
	wg, err := wgctrl.New()
	if err != nil {
		return nil, errors.Join(fmt.Errorf("open WireGuard: %w", err), conn.Close())
	}
	return &kernelDevice{name: name, conn: conn, wg: wg}, nil
}

func ensureKernelLink(conn *link.Conn, name string) error {
	links, err := conn.List()
	if err != nil {
		return err
	}
	if l := links[name]; l != nil {
		if l.Kind() != kindWireGuard || (l.Alias != "" && l.Alias != link.Alias) {
			return fmt.Errorf("open tunnel %q: there is an interface that is not ours (kind %q, alias %q)", name, l.Kind(), l.Alias)
		}
		return nil
	}
	attrs := netlink.NewLinkAttrs()
	attrs.Name = name
	if err := conn.Handle.LinkAdd(&netlink.Wireguard{LinkAttrs: attrs}); err != nil {
		return fmt.Errorf("open tunnel %q: %w", name, err)
	}
	return nil
}

func (d *kernelDevice) Configure(ctx context.Context, c Config) (changed bool, err error) {
	if err := c.validate(d.name); err != nil {
		return false, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := ctx.Err(); err != nil {
		return false, err
	}
	// Somebody may have deleted it.
	if err := ensureKernelLink(d.conn, d.name); err != nil {
		return false, err
	}
	have, err := d.wg.Device(d.name)
	if err != nil {
		return false, fmt.Errorf("read tunnel %q: %w", d.name, err)
	}
	if diff := difference(*have, c, d.applied); diff != nil {
		if err := d.wg.ConfigureDevice(d.name, *diff); err != nil {
			return false, fmt.Errorf("configure tunnel %q: %w", d.name, err)
		}
		changed = true
	}
	d.applied = &c
	linkChanged, err := ensureLink(d.conn, d.name, c)
	return changed || linkChanged, err
}

func (d *kernelDevice) Stats() (Stats, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.applied == nil {
		return Stats{}, nil
	}
	have, err := d.wg.Device(d.name)
	if err != nil {
		return Stats{}, fmt.Errorf("read tunnel %q: %w", d.name, err)
	}
	return statsOf(*have, d.applied), nil
}

func (d *kernelDevice) Reset(ctx context.Context) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := ctx.Err(); err != nil {
		return err
	}
	if d.applied == nil {
		return fmt.Errorf("reset tunnel %q: %w", d.name, ErrNotConfigured)
	}
	have, err := d.wg.Device(d.name)
	if err != nil {
		return fmt.Errorf("read tunnel %q: %w", d.name, err)
	}
	if err := d.wg.ConfigureDevice(d.name, resetPeer(*have, *d.applied)); err != nil {
		return fmt.Errorf("reset tunnel %q: %w", d.name, err)
	}
	return nil
}

func (d *kernelDevice) Close() error {
	return errors.Join(d.wg.Close(), d.conn.Close())
}
