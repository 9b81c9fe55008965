package cli

import (
	"strings"

	"github.com/samber/lo"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// flagGroup is the annotation of flags that --help lists below a heading of their own.
const flagGroup = "liqonet_flag_group"

// groupFlags has --help list flags below a heading.
func groupFlags(f *pflag.FlagSet, heading string, names ...string) {
	for _, name := range names {
		_ = f.SetAnnotation(name, flagGroup, []string{heading}) // it fails only for unknown flags
	}
}

// flagGroups describes flags in groups, wrapped to a width. The most common ones, which have no group, come first.
func flagGroups(f *pflag.FlagSet, width int) string {
	var all []*pflag.Flag
	f.VisitAll(func(flag *pflag.Flag) { all = append(all, flag) })
	heading := func(flag *pflag.Flag) string { return lo.FirstOr(flag.Annotations[flagGroup], "Flags") }
	headings := append([]string{"Flags"}, lo.Without(lo.Uniq(lo.Map(all, func(flag *pflag.Flag, _ int) string { return heading(flag) })), "Flags")...)
	return strings.Join(lo.Map(headings, func(title string, _ int) string {
		group := pflag.NewFlagSet("", pflag.ContinueOnError)
		for _, flag := range all {
			if heading(flag) == title {
				group.AddFlag(flag)
			}
		}
		return title + ":\n" + group.FlagUsagesWrapped(width)
	}), "\n")
}

// fileFlag is the flag of a file with values for flags of one command, which precede those of the environment and of the configuration
// file. clustersFlag is a flag that only such a file sets, as the command line has arguments.
const fileFlag, clustersFlag = "filename", "clusters"

func addFile(f *pflag.FlagSet) {
	f.StringP(fileFlag, "f", "", "YAML `FILE` with clusters and values for flags, by their names")
	f.StringSlice(clustersFlag, nil, "")
	_ = f.MarkHidden(clustersFlag) // it fails only for unknown flags
}

func init() { cobra.AddTemplateFunc("flagGroups", flagGroups) }
