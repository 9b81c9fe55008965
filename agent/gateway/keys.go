package gateway

import (
	"fmt"
	"os"

	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"
)

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
