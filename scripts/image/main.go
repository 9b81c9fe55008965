// Command image packs a static binary and other files into a container image, without
// Docker, and prints the reference of the image with its digest. See package image for
// the formats.
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
	if *out == "" || *ref == "" || flag.NArg() == 0 {
		fmt.Fprintln(os.Stderr, "usage: image -o ARCHIVE -ref REFERENCE BINARY [FILE...]")
		os.Exit(2)
	}
	inside := func(file string) string { return "/" + filepath.Base(file) }
	files := map[string]string{}
	for _, file := range flag.Args() {
		files[inside(file)] = file
	}
	digest, err := image.Build(*out, *ref, files, []string{inside(flag.Arg(0))})
	if err != nil {
		fmt.Fprintln(os.Stderr, "image:", err)
		os.Exit(1)
	}
	fmt.Printf("%s: %s@%s\n", *out, *ref, digest)
}
