package cli

import (
	"encoding/json"
	"errors"
	"path/filepath"
	"strings"
	"testing"

	"github.com/liqonet/liqonet/pkg/kube"
	"github.com/liqonet/liqonet/pkg/peering"
	"github.com/liqonet/liqonet/pkg/plan"
	"github.com/liqonet/liqonet/test/fakeapi"
	"github.com/liqonet/liqonet/test/kit"
)

// The output of upgrade for people and programs, and its exit codes.
func TestUpgrade(t *testing.T) {
	kit.NotShort(t)
	home := isolate(t)
	var contexts []string
	for i, name := range []string{"a", "b"} {
		s := kit.Must(fakeapi.New(fakeapi.Objects("id-of-"+name, name+"-1", []string{"172.18.0.11", "172.19.0.11"}[i], "10.244.0.0/16")...))(t)
		defer s.Close()
		contexts = append(contexts, name+"="+s.URL)
	}
	file := kubeconfig(t, filepath.Join(home, "config"), contexts...)
	upgrade := func(args ...string) (int, string, string) {
		return run(t, append([]string{"upgrade", "--kubeconfig", file}, args...)...)
	}
	if code, _, stderr := upgrade("a"); code != ExitUsage || !strings.Contains(stderr, "it is not peered") || !strings.Contains(stderr, "kubectl liqonet peer") {
		t.Errorf("without agents: exit code %d, %s", code, stderr)
	}
	command(t, "peer", "a", "b", "--kubeconfig", file).ends(ExitOK)
	if code, stdout, stderr := upgrade("a", "b"); code != ExitOK || strings.Count(stdout, "already has agents of version dev; nothing was changed.") != 2 || !strings.HasPrefix(stderr, "Reading the clusters ...\n") {
		t.Errorf("again: exit code %d, %s%s", code, stdout, stderr)
	}
	code, stdout, stderr := upgrade("a", "b", "-o", "json")
	var doc struct {
		Kind     string
		Clusters []peering.Upgraded
	}
	if err := json.Unmarshal([]byte(stdout), &doc); code != ExitOK || err != nil || doc.Kind != "UpgradeResult" || len(doc.Clusters) != 2 || doc.Clusters[0].To != "dev" || len(doc.Clusters[0].Changed) != 0 {
		t.Errorf("exit code %d, %v\n%s%s", code, err, stdout, stderr)
	}
	code, stdout, stderr = upgrade("a", "--agent-image", "image:2", "--dry-run")
	for _, want := range []string{"Plan to upgrade a (id-of-a) from dev to dev; nothing was changed.", "image of the agents   image:2", "gateways of plane 0", "there is no other plane", "Note: the peering of a and b has one gateway", "run the command without --dry-run"} {
		kit.ErrorIf(t, code != ExitOK || !strings.Contains(stdout, want), "exit code %d, without %q:\n%s%s", code, want, stdout, stderr)
	}
	for _, tt := range []struct{ args, want string }{
		{"a a", "the same cluster"},
		{"a --agent-image :", "--agent-image"},
		{"", "requires at least 1 arg"},
	} {
		code, _, stderr := upgrade(strings.Fields(tt.args)...)
		kit.ErrorIf(t, code != ExitUsage || !strings.Contains(stderr, tt.want), "%s: exit code %d, %s", tt.args, code, stderr)
	}
}

// The error of several clusters lists those that failed.
func TestUpgradeFailures(t *testing.T) {
	bad := &kube.Error{Kind: kube.NotReady, Cluster: "a", Op: "upgrade", Err: errors.New("no")}
	for name, tt := range map[string]struct {
		upgraded []peering.Upgraded
		code     int
		says     string
	}{
		"none of two": {[]peering.Upgraded{{Cluster: "a"}, {Cluster: "b"}}, ExitOK, ""},
		"one of one":  {[]peering.Upgraded{{Cluster: "a", Err: bad}}, ExitNotReady, `cluster "a": upgrade: no`},
		"one of two":  {[]peering.Upgraded{{Cluster: "a", Err: bad}, {Cluster: "b"}}, ExitPartial, "1 of 2 clusters failed\n  a: "},
		"all of two":  {[]peering.Upgraded{{Cluster: "a", Err: bad}, {Cluster: "b", Err: bad}}, ExitNotReady, "2 of 2 clusters failed"},
	} {
		err := failuresOf("clusters", tt.upgraded, func(u peering.Upgraded) (string, error) { return u.Cluster, u.Err })
		code := ExitCode(t.Context(), err)
		kit.ErrorIf(t, code != tt.code || err != nil && !strings.Contains(err.Error(), tt.says), "%s: exit code %d, %v", name, code, err)
	}
}

func TestPrintUpgrades(t *testing.T) {
	plans := &plan.Upgrades{Clusters: []*plan.Upgrade{{
		Cluster: "cluster-a", ClusterID: "1d", From: "v0.1.0", To: "v0.2.0",
		Choices: []plan.Statement{{Subject: "version", Value: plan.Known("v0.2.0"), Reason: "this command's"}},
		Steps:   []plan.Statement{{Subject: "node agents", Value: plan.Known("w1; w2"), Reason: "one first"}},
		Objects: []plan.ObjectPlan{
			{Action: plan.Keep, APIVersion: "v1", Kind: "Namespace", Name: "liqonet-system", Reason: "for the agents"},
			{Action: plan.Change, APIVersion: "apps/v1", Kind: "DaemonSet", Namespace: "liqonet-system", Name: "liqonet-node", Reason: "a node agent"},
		},
		Notes: []string{"something\x1b is kept"},
	}}}
	for format, file := range map[string]string{"table": "upgrade.txt", "name": "upgrade-name.txt", "yaml": "upgrade.yaml"} {
		var out strings.Builder
		o := outputOf(t, format)
		kit.NoError(t, printUpgrades(o, &out, plans))
		golden(t, file, out.String())
	}
	plans.Clusters[0].Objects = plans.Clusters[0].Objects[:1]
	var out strings.Builder
	err := printUpgrades(outputOf(t, "table"), &out, plans)
	kit.ErrorIf(t, err != nil || !strings.Contains(out.String(), "nothing would be changed"), "%v\n%s", err, out.String())
}
