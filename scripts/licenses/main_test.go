package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/liqonet/liqonet/test/kit"
)

// Everything in both programs has a licence that is permitted, on each system that the
// command is built for.
func TestLicensesArePermitted(t *testing.T) {
	var all []source
	for _, system := range []string{"linux", "darwin", "windows"} {
		packages := kit.Must(linked(system, "../../agent", "../../cmd/liqonetctl"))(t)
		all = append(all, packages...)
	}
	text := kit.Must(collect(all))(t)
	kit.CheckContains(t, "licenses", text,
		"the standard library of go1.", "github.com/liqonet/liqonet\n", "Apache License",
		"golang.zx2c4.com/wireguard v0.0.0-", "Permission is hereby granted", // MIT
		"github.com/inconshreveable/mousetrap ", // in programs for Windows only
		"Copyright (c) 2020 The Go Authors.",    // a package's own, below its module's: go-json-experiment in kube-openapi
	)
}

// Packages whose licence is missing, another one or unknown are refused.
func TestOtherLicensesAreRefused(t *testing.T) {
	ours := kit.Must(os.ReadFile("../../LICENSE"))(t)
	const gpl = `This program is free software: you can redistribute it and/or modify it under the terms of the GNU General Public License
		as published by the Free Software Foundation, either version 3 of the License, or (at your option) any later version.`
	for _, tt := range []struct {
		name  string
		files map[string]string
		// want is in the error; there is none if it is empty.
		want string
	}{
		{"permitted", map[string]string{"LICENSE": string(ours), "p/p.go": ""}, ""},
		{"of the package only", map[string]string{"p/COPYING": string(ours)}, ""},
		{"missing", map[string]string{"license.go": "package m", "p/p.go": ""}, "has no license"},
		{"another one", map[string]string{"LICENSE.txt": gpl, "p/p.go": ""}, "GPL-3.0"},
		{"another one next to ours", map[string]string{"LICENSE": string(ours), "LICENSE-GPL": gpl, "p/p.go": ""}, "GPL-3.0"},
		{"another one of the package", map[string]string{"LICENSE": string(ours), "p/LICENCE.md": gpl}, "GPL-3.0"},
		{"unknown", map[string]string{"LICENSE": "Do with this what I have told you by telephone.", "p/p.go": ""}, "only 0%"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			root := t.TempDir()
			for name, text := range tt.files {
				path := filepath.Join(root, name)
				kit.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
				kit.NoError(t, os.WriteFile(path, []byte(text), 0o600))
			}
			_, err := collect([]source{{"example.org/m v1.0.0", root, filepath.Join(root, "p")}})
			if (err == nil) != (tt.want == "") || err != nil && (!strings.Contains(err.Error(), tt.want) || !strings.Contains(err.Error(), "example.org/m v1.0.0")) {
				t.Errorf("got error %v, want %q", err, tt.want)
			}
		})
	}
}
