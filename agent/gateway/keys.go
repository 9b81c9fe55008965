package gateway

import (
	"cmp"
	"fmt"
	"os"
	"path/filepath"

	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/pkg/overlay"
)

// readLocal reads the keys of the gateway's own part of the desired state.
func readLocal(cfg Config) (l local, err error) {
	key, keyErr := readKey(filepath.Join(cfg.KeyDir, v1alpha1.KeyFilePrivate))
	preshared, presharedErr := readKey(cfg.PresharedKey)
	overlayKeys, overlayErr := overlay.ReadKeys(cfg.OverlayKeys)
	return local{
		plane: int32(cfg.Plane), key: key, preshared: preshared, overlayKeys: overlayKeys, node: cfg.NodeName,
	}, cmp.Or(keyErr, presharedErr, overlayErr)
}

// readKey reads a key from a file. It returns the zero value if file is empty.
func readKey(file string) (wgtypes.Key, error) {
	if file == "" {
		return wgtypes.Key{}, nil
	}
	raw, err := os.ReadFile(file)
	if err != nil {
		return wgtypes.Key{}, fmt.Errorf("read a key: %w", err)
	}
	key, err := wgtypes.NewKey(raw)
	if err != nil {
		return wgtypes.Key{}, fmt.Errorf("file %s is not a WireGuard key", file)
	}
	return key, nil
}
