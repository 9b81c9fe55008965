// Command image packs a static binary into a container image, as a
// docker-archive, without Docker.
package main

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"

	"github.com/liqonet/liqonet/test/lab/image"
)

func main() {
	out := flag.String("o", "", "archive to write")
	ref := flag.String("ref", "", "reference of the image")
	flag.Parse()
	if *out == "" || *ref == "" || flag.NArg() != 1 {
		fmt.Fprintln(os.Stderr, "usage: image -o ARCHIVE -ref REFERENCE BINARY")
		os.Exit(2)
	}
	inside := "/" + filepath.Base(flag.Arg(0))
	if err := image.Build(*out, *ref, map[string]string{inside: flag.Arg(0)}, []string{inside}); err != nil {
		fmt.Fprintln(os.Stderr, "image:", err)
		os.Exit(1)
	}
}
