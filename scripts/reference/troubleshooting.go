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

Its first line names the cause. The lines below it have what shows that, and what to do; they end in a command. Then it lists what it has looked at. It works before
peering, too, and says whether peering would work.

- ` + "`-o wide`" + ` lists all checks, ` + "`-o json`" + ` is for programs. The exit code is 11 if a check has failed.
- Pods look at the kernel of each node for some seconds. They are removed in the end. With ` + "`--objects-only`" + ` there are none, and what only kernels tell is not seen.
- Without the rights of an administrator, checks say what they could not see. That is no failure.
- ` + "`--fix`" + ` removes leftovers of ours, and makes our objects again as ` + "`peer`" + ` does it. It changes nothing else.

` + "`kubectl liqonet status`" + ` shows at any time whether packets pass; ` + "`--history`" + ` what has changed, and when. Where neither says enough, go along the path of a packet,
[hop by hop](hop-by-hop.md). That page has the messages of ` + "`peer`" + ` and ` + "`unpeer`" + `, too, and how to clean a node by hand.

Below is each check. What is shown of a fault is what ` + "`doctor`" + ` has said of it when it was made on clusters of the lab. Clusters and nodes are those of the lab.

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
	for _, c := range doctor.Catalogue() {
		if c.Category != category {
			category = c.Category
			fmt.Fprintf(&list, "\n**%s**\n\n", category)
		}
		fmt.Fprintf(&list, "- [%s](#%s): %s\n", c.Name, c.Name, c.About)
		fmt.Fprintf(&b, "\n## %s\n\nAll is well if %s.\n", c.Name, c.About)
		if s, made := sayings[c.Name]; made {
			fmt.Fprintf(&b, "\nMade: %s. It was named after %d s:\n\n```console\n$ kubectl liqonet doctor gamma delta\n%s\n```\n", s.Fault, s.Seconds, strings.TrimSpace(s.Output))
		}
		text := texts[c.Name]
		if text.Cause == "" || text.Remedy == "" {
			return "", fmt.Errorf("remedies.yaml: %s has no cause or no remedy", c.Name)
		}
		fmt.Fprintf(&b, "\n- **Cause**: %s\n- **Remedy**: %s\n", text.Cause, text.Remedy)
		if follows := explainedBy(c.Name); len(follows) > 0 {
			fmt.Fprintf(&b, "- It explains what these find: %s\n", strings.Join(follows, ", "))
		}
	}
	return troubleshootingHead + strings.TrimSpace(list.String()) + "\n" + b.String(), nil
}

// explainedBy names the checks whose findings may follow from that one's: all of a subject as one.
func explainedBy(check string) (out []string) {
	subject := func(name string) string { return name[:strings.LastIndex(name, "-")+1] + "*" }
	of, explained := map[string]int{}, map[string]int{}
	depends := func(c doctor.Check) bool { return c.Name != check && slices.Contains(c.DependsOn, check) }
	for _, c := range doctor.Catalogue() {
		of[subject(c.Name)]++
		if depends(c) || c.Name == check {
			explained[subject(c.Name)]++
		}
	}
	for _, c := range doctor.Catalogue() {
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
