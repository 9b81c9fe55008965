package e2e

import (
	"context"
	"fmt"
	"sync"
	"syscall"
	"testing"
	"time"
)

// partial is what is removed by hand, or dies, before unpeer.
type partial struct {
	name string
	// inA and inB are what kubectl does in each cluster between peer and unpeer.
	inA, inB [][]string
}

// Whatever was removed by hand, or died, before unpeer: it removes the rest.
func TestUnpeerPartialState(t *testing.T) {
	a, b := fx.alpha, fx.beta
	states := []partial{
		{
			"agents killed, Peering deleted",
			[][]string{{"-n", "liqonet-system", "delete", "pods", "--all", "--force", "--grace-period=0", "--wait=false"}},
			[][]string{{"delete", "peerings", "--all"}},
		},
		{
			"permissions and namespace deleted, account and definitions deleted",
			[][]string{
				{"delete", "clusterroles,clusterrolebindings,validatingadmissionpolicies,validatingadmissionpolicybindings", "-l", "app.kubernetes.io/managed-by=liqonet"},
				{"delete", "namespace", "liqonet-system"},
			},
			[][]string{
				{"-n", "liqonet-system", "delete", "serviceaccounts", "--all"},
				{"delete", "customresourcedefinitions", "-l", "app.kubernetes.io/managed-by=liqonet", "--wait=false"},
			},
		},
		{
			"one cluster has nothing any more",
			nil,
			[][]string{
				{"delete", "peerings", "--all"},
				{"patch", "clusternetwork", "cluster", "--type=merge", "-p", `{"metadata":{"finalizers":null}}`},
				{"delete", "clusternetworks", "--all"},
			},
		},
	}
	for _, i := range sample(random(t), len(states), 1) {
		test := states[i]
		t.Run(test.name, func(t *testing.T) {
			ctx := begin(t)
			mustLiqonet(t, ctx, "peer", a.Name, b.Name)
			damage(t, ctx, a, test.inA)
			damage(t, ctx, b, test.inB)
			mustLiqonet(t, ctx, "unpeer", a.Name, b.Name, "--timeout=30s")
			checkNothingLeft(t, ctx)
		})
	}
}

func damage(t *testing.T, ctx context.Context, c *cluster, commands [][]string) {
	t.Helper()
	for _, args := range commands {
		c.kubectl(t, ctx, args...)
	}
}

const (
	// collectedWithin is how long all that belongs to a Peering may stay when somebody has deleted that.
	collectedWithin = time.Minute
	// noticedWithin is how long the other side may call the tunnel connected.
	noticedWithin = 30 * time.Second
)

// Somebody deletes a Peering with kubectl, while packets pass: as soon as the first peering of the cluster works, when the collector may not
// have seen our kinds yet, or later. That side ends, and the next command uses what the ledger keeps, or releases it.
func TestPeeringDeletedByHand(t *testing.T) {
	a, b := fx.gamma, fx.delta
	endings := []string{"peer", "unpeer", "doctor --fix", "unpeer, with the peer dead"}
	for _, i := range sample(random(t), 2*len(endings), 1) {
		isKnown, ending := i%2 == 0, endings[i/2]
		t.Run(fmt.Sprintf("the collector knows our kinds: %t, then %s", isKnown, ending), func(t *testing.T) {
			ctx := begin(t)
			mustLiqonet(t, ctx, "peer", a.Name, b.Name, "--planes", "2")
			fs := sendEightWays(t, ctx, a, b)
			if isKnown {
				// It has, when it removes what names a Peering that there is not.
				damage(t, ctx, a, [][]string{{"-n", "liqonet-system", "create", "configmap", "orphan"}, {
					"-n", "liqonet-system", "patch", "configmap", "orphan", "--type=merge", "-p",
					`{"metadata":{"ownerReferences":[{"apiVersion":"liqonet.io/v1alpha1","kind":"Peering","name":"none","uid":"00000000-0000-4000-8000-000000000000"}]}}`,
				}})
				eventually(t, ctx, collectedWithin, "the collector sees Peerings", func() string {
					return jsonPath(t, ctx, a, `{.metadata.name}`, "-n", "liqonet-system", "get", "configmap", "orphan", "--ignore-not-found")
				})
			}
			const kept = `{.spec.peers[*]['name', 'index', 'externalCIDR']}`
			ledger := jsonPath(t, ctx, a, kept, "get", "clusternetwork", "cluster")
			agents := jsonPath(t, ctx, a, `{.metadata.uid}`, "-n", "liqonet-system", "get", "daemonset", "liqonet-node")
			signal := func(syscall.Signal) {}
			if ending == "unpeer, with the peer dead" {
				all := []int{processOf(t, b.Name+"-cp", "kube-apiserver")}
				for _, agent := range append(b.agents(t, "gateway"), b.agents(t, "node")...) {
					all = append(all, agent.pid)
				}
				signal = func(s syscall.Signal) {
					for _, pid := range all {
						report(t, syscall.Kill(pid, s))
					}
				}
				signal(syscall.SIGSTOP)
			}
			revive := sync.OnceFunc(func() { signal(syscall.SIGCONT) })
			t.Cleanup(revive)
			a.kubectl(t, ctx, "delete", "peering", b.Name, "--wait=false")
			begun := time.Now()
			if ending != "unpeer, with the peer dead" {
				eventually(t, ctx, noticedWithin, b.Name+" calls the tunnel disconnected", func() string {
					now := jsonPath(t, ctx, b, `{.items[*].status.conditions[?(@.type=="Connected")].status}`, "get", "peerings")
					return unless(now == "False", "Connected is %s", now)
				})
				t.Logf("%s has noticed after %s", b.Name, time.Since(begun))
			}
			eventually(t, ctx, collectedWithin-time.Since(begun), "all of the peering goes", func() string {
				left, err := a.Run(ctx, "", "get", "deployments,replicasets,pods,services,secrets,leases,configmaps,poddisruptionbudgets,serviceaccounts,roles,rolebindings,clusterroles,clusterrolebindings",
					"-A", "-l", "liqonet.io/peering="+b.Name, "-o", "name")
				if err != nil {
					return err.Error()
				}
				return left + jsonPath(t, ctx, a, `{.items[*].status.gateways[*].peeringName}`, "get", "nodenetworks")
			})
			t.Logf("all of it has gone after %s", time.Since(begun))
			now := jsonPath(t, ctx, a, kept, "get", "clusternetwork", "cluster")
			expect(t, now == ledger, "the ledger has %s, want %s", now, ledger)
			if now := jsonPath(t, ctx, a, `{.metadata.uid}`, "-n", "liqonet-system", "get", "daemonset", "liqonet-node"); now != agents {
				t.Error("the node agents are others")
			}
			liqonet(t, ctx, "", "status", a.Name).ends(t, 7, "Peering "+b.Name+" was deleted by hand")
			switch ending {
			case "unpeer, with the peer dead":
				liqonet(t, ctx, "", "unpeer", a.Name, b.Name).ends(t, 8)
				revive()
			case "peer", "doctor --fix":
				if ending == "peer" {
					mustLiqonet(t, ctx, "peer", a.Name, b.Name, "--planes", "2")
				} else {
					liqonet(t, ctx, "", "doctor", a.Name, b.Name).ends(t, 11, "Peering "+b.Name+" was deleted by hand")
					mustLiqonet(t, ctx, "doctor", a.Name, b.Name, "--fix")
				}
				fs.answering(t, ctx, callTimeout)
				checkBothPlanes(t, ctx, a, b)
			}
			unpeered(t, ctx, a, b)
		})
	}
}
