// Package fuzz runs the fuzz targets of all packages, each for a minute, and checks that each parser of foreign bytes
// has one. The targets are next to the parsers.
package fuzz
