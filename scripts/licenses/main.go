// Command licenses writes the licences of all that is linked into programs, each text
// once, below the names of the modules that it is of.
//
//	licenses -o FILE PACKAGE...
//
// It fails if a package has no licence, or one that is not permitted.
package main

import (
	"flag"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/google/licensecheck"
)

func main() {
	out := flag.String("o", "", "file to write")
	flag.Parse()
	if *out == "" || flag.NArg() == 0 {
		fmt.Fprintln(os.Stderr, "usage: licenses -o FILE PACKAGE...")
		os.Exit(2)
	}
	packages, err := linked("", flag.Args()...)
	if err == nil {
		var text string
		if text, err = collect(packages); err == nil {
			err = os.WriteFile(*out, []byte(text), 0o644)
		}
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "licenses:", err)
		os.Exit(1)
	}
}

// source is where a package comes from.
type source struct {
	// module is its path and version.
	module string
	// root is the module's directory, dir that of the package.
	root, dir string
}

// linked are all packages that programs for an operating system are made of; an empty
// name is this one. The standard library is the one that Go's own directory has.
func linked(system string, programs ...string) ([]source, error) {
	cmd := exec.Command("go", append([]string{
		"list", "-deps", "-f", "{{with .Module}}{{.Path}} {{.Version}}\t{{.Dir}}\t{{$.Dir}}{{end}}",
	}, programs...)...)
	if cmd.Stderr = os.Stderr; system != "" {
		cmd.Env = append(os.Environ(), "GOOS="+system)
	}
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("list the packages of %s: %w", strings.Join(programs, ", "), err)
	}
	env, err := exec.Command("go", "env", "GOROOT", "GOVERSION").Output()
	if err != nil {
		return nil, fmt.Errorf("ask for Go's directory: %w", err)
	}
	root, version, _ := strings.Cut(strings.TrimSpace(string(env)), "\n")
	sources := []source{{"the standard library of " + version, root, root}}
	for line := range strings.Lines(string(out)) {
		if f := strings.Split(strings.TrimSpace(line), "\t"); len(f) == 3 {
			sources = append(sources, source{strings.TrimSpace(f[0]), f[1], f[2]})
		}
	}
	return sources, nil
}

var (
	isLicense = regexp.MustCompile(`(?i)^(licen[cs]e|copying)([.-]|$)`)
	isNotice  = regexp.MustCompile(`(?i)^notice([.-]|$)`)
)

// others are the extensions of files of such names that are code, or of the licences of
// documents, which are not linked.
var others = []string{".go", ".docs"}

// permitted are the licences that ask for no more than that their texts are passed on, by
// SPDX identifiers.
var permitted = []string{"Apache-2.0", "BSD-2-Clause", "BSD-3-Clause", "ISC", "MIT"}

// collect returns the licences and notices of packages.
func collect(packages []source) (string, error) {
	read := map[string]directory{}
	owners := map[string]map[string]bool{} // of each text
	for _, p := range packages {
		licensed := false
		for dir := p.dir; ; dir = filepath.Dir(dir) {
			d, ok := read[dir]
			if !ok {
				var err error
				if d, err = readDirectory(dir); err != nil {
					return "", fmt.Errorf("%s: %w", p.module, err)
				}
				read[dir] = d
			}
			licensed = licensed || d.licensed
			for _, text := range d.texts {
				if owners[text] == nil {
					owners[text] = map[string]bool{}
				}
				owners[text][p.module] = true
			}
			if dir == p.root || dir == filepath.Dir(dir) {
				break
			}
		}
		if !licensed {
			return "", fmt.Errorf("%s: %s has no license", p.module, p.dir)
		}
	}
	var parts []string
	for text, modules := range owners {
		parts = append(parts, strings.Join(slices.Sorted(maps.Keys(modules)), "\n")+"\n\n"+text+"\n")
	}
	slices.Sort(parts)
	return strings.Join(parts, "\n"+strings.Repeat("-", 80)+"\n\n"), nil
}

// directory is what one says about licences.
type directory struct {
	// texts are licences, if it is licensed, and notices.
	texts    []string
	licensed bool
}

func readDirectory(dir string) (d directory, err error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return d, err
	}
	for _, e := range entries {
		license := isLicense.MatchString(e.Name())
		if !license && !isNotice.MatchString(e.Name()) || !e.Type().IsRegular() || slices.Contains(others, filepath.Ext(e.Name())) {
			continue
		}
		path := filepath.Join(dir, e.Name())
		text, err := os.ReadFile(path)
		if err != nil {
			return d, err
		}
		if license {
			if err := check(text); err != nil {
				return d, fmt.Errorf("%s: %w", path, err)
			}
			d.licensed = true
		}
		d.texts = append(d.texts, strings.TrimSpace(string(text)))
	}
	return d, nil
}

// known is how much of a text has to be that of licences, in percent. The rest are names
// of copyright holders.
const known = 75

// check returns an error for a text with a licence that is not permitted, or not known.
func check(text []byte) error {
	found := licensecheck.Scan(text)
	for _, m := range found.Match {
		if !slices.Contains(permitted, m.ID) {
			return fmt.Errorf("license %s is not one of %s", m.ID, strings.Join(permitted, ", "))
		}
	}
	if found.Percent < known {
		return fmt.Errorf("only %.0f%% of it is the text of a license that is known", found.Percent)
	}
	return nil
}
