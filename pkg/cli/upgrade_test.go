package cli

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/liqonet/liqonet/pkg/peering"
	"github.com/liqonet/liqonet/pkg/plan"
	"github.com/liqonet/liqonet/test/kit"
)

// The output of upgrade for people and programs, and its exit codes.
func TestUpgrade(t *testing.T) {
	kit.NotShort(t)
	startTwo(t)
	command(t, "upgrade", "a").ends(ExitUsage).warns("it is not peered", "kubectl liqonet peer")
	command(t, "peer", "a", "b").ends(ExitOK)
	again := command(t, "upgrade", "a", "b").ends(ExitOK).warns("Reading the clusters ...\n")
	again.is("a line for each cluster", strings.Count(again.stdout, "already has agents of version dev; nothing was changed.") != 2)
	var doc struct {
		Kind     string
		Clusters []peering.Upgraded
	}
	kit.NoError(t, json.Unmarshal([]byte(command(t, "upgrade", "a", "b", "-o", "json").ends(ExitOK).stdout), &doc))
	kit.FatalIf(t, doc.Kind != "UpgradeResult" || len(doc.Clusters) != 2 || doc.Clusters[0].To != "dev" || len(doc.Clusters[0].Changed) != 0, "got %+v", doc)
	command(t, "upgrade", "a", "--agent-image", "image:2", "--dry-run").ends(ExitOK).prints(
		"Plan to upgrade a (id-of-a) from dev to dev; nothing was changed.", "image of the agents   image:2", "gateways of plane 0",
		"there is no other plane", "Note: the peering of a and b has one gateway", "run the command without --dry-run",
	)
	command(t, "upgrade", "a", "a").ends(ExitUsage).warns("the same cluster")
	command(t, "upgrade", "a", "--agent-image", ":").ends(ExitUsage).warns("--agent-image")
	command(t, "upgrade").ends(ExitUsage).warns("requires at least 1 arg")
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
