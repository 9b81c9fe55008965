// Package bench measures how fast packets pass from pod to pod through the
// product, on lab clusters with the real agents. There is a benchmark and
// nothing else: `make bench`. docs/performance.md explains its table.
package bench
