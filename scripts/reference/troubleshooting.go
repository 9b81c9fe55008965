package main

import (
	_ "embed"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"sigs.k8s.io/yaml"

	"github.com/liqonet/liqonet/pkg/doctor"
)

// said is what doctor said of each fault that TestMaladies of test/e2e has made, by the check's name.
//
//go:embed said.json
var said []byte

// remedies say of each check, by its name, what is wrong where it has failed.
//
//go:embed remedies.yaml
var remedies []byte

// remedy is the cause of what a check finds, and what to do about it.
type remedy struct{ Cause, Remedy string }

// saying is what was said of one fault.
type saying struct {
	// Fault is what was made, Seconds how long it lasted until it was named.
	Fault   string `json:"fault"`
	Seconds int    `json:"seconds"`
	// Output is what doctor printed up to the first empty line.
	Output string `json:"output"`
}

const troubleshootingHead = generated + `# Troubleshooting

Start with one command, and name both clusters:

<!-- not run: needs nodes that run pods -->
` + "```sh" + `
kubectl liqonet doctor cluster-a cluster-b
` + "```" + `

The first line of its output names the cause. The lines below show the evidence, and what to do, with a command. Then ` + "`doctor`" + ` lists what
it has checked. You can also run it before you peer, to find out whether peering would work.

- ` + "`-o wide`" + ` lists all checks, and ` + "`-o json`" + ` is for programs. The exit code is 11 if a check has failed.
- For some seconds, ` + "`doctor`" + ` runs pods that inspect the kernel of each node, and then removes them. With ` + "`--objects-only`" + `, it runs no pods, and
  does not see what only kernels show. In a cluster with more than 100 nodes, the pods run on a sample of them, which includes nodes with a
  problem. ` + "`doctor`" + ` says so on stderr before it starts pods.
- If you do not have administrator permissions, checks report what they could not see. This does not count as a failure.
- ` + "`--fix`" + ` removes leftovers of liqonet, completes rollouts of its agents, and creates its objects again as ` + "`peer`" + ` does. It changes nothing else.

` + "`kubectl liqonet status`" + ` shows at any time whether packets pass. With ` + "`--history`" + `, it shows what has changed, and when. If this does not help,
follow the path of a packet [hop by hop](hop-by-hop.md). That page also lists the messages of ` + "`peer`" + ` and ` + "`unpeer`" + `, and explains how to clean
a node by hand.

This page describes each check. Where it shows output, the fault was injected into clusters of the lab, and ` + "`doctor`" + ` printed the output. Clusters
and nodes are those of the lab.

`

// troubleshootingPage tells of each check: the symptom, the cause, the command, the remedy.
func troubleshootingPage() (string, error) {
	sayings := map[string]saying{}
	if err := json.Unmarshal(said, &sayings); err != nil {
		return "", fmt.Errorf("said.json: %w", err)
	}
	texts := map[string]remedy{}
	if err := yaml.UnmarshalStrict(remedies, &texts); err != nil {
		return "", fmt.Errorf("remedies.yaml: %w", err)
	}
	var b, list strings.Builder
	category := ""
	for _, c := range doctor.Catalogue {
		if c.Category != category {
			category = c.Category
			fmt.Fprintf(&list, "\n**%s**\n\n", category)
		}
		fmt.Fprintf(&list, "- [%s](#%s): %s\n", c.Name, c.Name, c.Description)
		fmt.Fprintf(&b, "\n## %s\n\nThis check passes if %s.\n", c.Name, c.Description)
		if s, made := sayings[c.Name]; made {
			fmt.Fprintf(&b, "\nInjected fault: %s. `doctor` named it after %d s:\n\n```console\n$ kubectl liqonet doctor gamma delta\n%s\n```\n", s.Fault, s.Seconds, strings.TrimSpace(s.Output))
		}
		text := texts[c.Name]
		if text.Cause == "" || text.Remedy == "" {
			return "", fmt.Errorf("remedies.yaml: %s has no cause or no remedy", c.Name)
		}
		fmt.Fprintf(&b, "\n- **Cause**: %s\n- **Remedy**: %s\n", text.Cause, text.Remedy)
		if follows := explainedBy(c.Name); len(follows) > 0 {
			fmt.Fprintf(&b, "- Explains findings of: %s\n", strings.Join(follows, ", "))
		}
	}
	return troubleshootingHead + strings.TrimSpace(list.String()) + "\n" + b.String(), nil
}

// explainedBy names the checks whose findings may follow from that one's: all of a subject as one.
func explainedBy(check string) (out []string) {
	subject := func(name string) string { return name[:strings.LastIndex(name, "-")+1] + "*" }
	of, explained := map[string]int{}, map[string]int{}
	depends := func(c doctor.Check) bool { return c.Name != check && slices.Contains(c.DependsOn, check) }
	for _, c := range doctor.Catalogue {
		of[subject(c.Name)]++
		if depends(c) || c.Name == check {
			explained[subject(c.Name)]++
		}
	}
	for _, c := range doctor.Catalogue {
		name := c.Name
		if all := subject(name); explained[all] == of[all] && of[all] > 1 {
			name = all
		}
		if name = "`" + name + "`"; depends(c) && !slices.Contains(out, name) {
			out = append(out, name)
		}
	}
	return out
}
