// Package cli is the command line: `kubectl liqonet`, also installed as
// liqonetctl. One file per command: flags in, a plain function of pkg/peering,
// printing out.
//
// Data goes to stdout, everything else to stderr. Nothing prompts. Every error
// has an exit code (see ExitCode) that a script can react to.
package cli
