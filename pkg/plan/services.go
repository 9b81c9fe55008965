package plan

import (
	"errors"
	"fmt"

	"github.com/samber/lo"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/pkg/failure"
	"github.com/liqonet/liqonet/pkg/manifests"
)

// ServicesFacts are a cluster's facts about services. They are read only if services are or were exchanged.
type ServicesFacts struct {
	// Foreign are the names of the definitions of the Multi-Cluster Services API that others have installed.
	Foreign map[string]bool
	// Refused is why the cluster cannot exchange services, nil if it can.
	Refused error
}

// ServicesOverrides are the user's choices about services, for one cluster. Empty ones keep what was chosen before.
type ServicesOverrides struct {
	// Exchange is ServicesOn or ServicesOff.
	Exchange ServicesExchange
	// ID is the cluster's ID among those that exchange services.
	ID         string
	Import     v1alpha1.ImportPolicy
	Precedence v1alpha1.Precedence
	Endpoints  v1alpha1.EndpointUse
}

// ServicesExchange says whether services are exchanged.
type ServicesExchange string

// The values of ServicesExchange.
const (
	ServicesOn  ServicesExchange = "on"
	ServicesOff ServicesExchange = "off"
)

// ServicesOffer is what decides about the exchange of services.
type ServicesOffer struct {
	// ID is the cluster's ID among those that exchange services.
	ID string `json:"id"`
	// Existing means that services are exchanged with the reader, Requested is what the user requests.
	Existing  bool             `json:"existing,omitempty"`
	Requested ServicesExchange `json:"asked,omitempty"`
}

// servicesOffer returns what the peer may know.
func (f *input) servicesOffer() ServicesOffer {
	o := ServicesOffer{
		ID: f.Overrides.Services.ID, Existing: lo.FromPtr(f.facts.Existing).Spec.Services != nil, Requested: f.Overrides.Services.Exchange,
	}
	if used := lo.FromPtr(f.facts.ledger()).Spec.Services; used != nil && o.ID == "" {
		o.ID = used.ID
	}
	if o.ID == "" {
		o.ID = ObjectName(f.facts.Network.Name)
	}
	return o
}

// chooseServices decides whether services are exchanged, the same for both clusters.
func chooseServices(clusters [2]*Offer) bool {
	exchanged := false
	for _, o := range clusters {
		switch o.Services.Requested {
		case ServicesOff:
			return false
		case ServicesOn:
			exchanged = true
		}
		exchanged = exchanged || o.Services.Existing
	}
	return exchanged
}

// planServices records in the planned ledger what the clusters are called by each other.
func (c *ClusterPlan) planServices(own *input, peer *Offer, exchanged bool) error {
	c.Services = exchanged
	entry := Allocation(c.Ledger, peer.ClusterID)
	if !exchanged {
		if lo.FromPtr(own.facts.Existing).Spec.Services != nil {
			c.Choices = append(c.Choices, statement("services", "not exchanged", "given by services disable"))
		}
		entry.ServicesID = ""
		if own.Overrides.Services != (ServicesOverrides{Exchange: own.Overrides.Services.Exchange}) {
			return own.facts.usageError("change how services are exchanged", "give --services, or use kubectl liqonet services enable", errors.New("services are not exchanged with "+peer.Name))
		}
		return nil
	}
	if err := own.facts.Services.Refused; err != nil {
		return own.facts.usageError("exchange services", "services of only one program can be used: remove the other one first, or leave services disabled", err)
	}
	id := own.servicesOffer().ID
	if err := setServices(c.Ledger, peer.ClusterID, id, peer.Services.ID); err != nil {
		return own.facts.usageError("exchange services", "name the clusters with --cluster-id CLUSTER=ID", err)
	}
	given := own.Overrides.Services
	c.Choices = append(c.Choices,
		statement("ID for services", id, lo.Ternary(given.ID != "", "given by --cluster-id", "after the name of the cluster, or as before")),
		statement("services of "+peer.Name, "imported as "+peer.Services.ID, flagReason(given.Exchange != "", "--services")))
	return nil
}

// setServices writes the IDs of both clusters into a ledger. It returns an error if they are not unique, or if a used one would change.
func setServices(cn *v1alpha1.ClusterNetwork, peerID, ownServicesID, peerServicesID string) error {
	if used := cn.Spec.Services; used != nil && used.ID != ownServicesID && usesServices(cn, peerID) {
		return fmt.Errorf("the cluster exchanges services with others as %q, which cannot change while it does", used.ID)
	}
	for _, e := range cn.Spec.Peers {
		if e.ClusterID != peerID && e.ServicesID != "" && (e.ServicesID == peerServicesID || e.ServicesID == ownServicesID) {
			return fmt.Errorf("the peer %s has the ID %q already", e.Name, e.ServicesID)
		}
	}
	if ownServicesID == peerServicesID {
		return fmt.Errorf("both clusters have the ID %q", ownServicesID)
	}
	entry := Allocation(cn, peerID)
	if entry == nil {
		return errors.New("the ledger no longer has an entry for the peer: the clusters are being unpeered")
	}
	cn.Spec.Services, entry.ServicesID = &v1alpha1.ClusterServices{ID: ownServicesID}, peerServicesID
	return nil
}

// usesServices reports whether a cluster exchanges services with others than a peer.
func usesServices(cn *v1alpha1.ClusterNetwork, except string) bool {
	return lo.ContainsBy(cn.Spec.Peers, func(e v1alpha1.PeerAllocation) bool { return e.ClusterID != except && e.ServicesID != "" })
}

// AllocateServices writes the planned IDs for services into the ledger, which other commands may have changed since.
func AllocateServices(cn *v1alpha1.ClusterNetwork, planned *ClusterPlan, peerID string) error {
	entry := Allocation(cn, peerID)
	if entry == nil {
		return nil // Allocate has returned an error
	}
	if !planned.Services {
		entry.ServicesID = ""
		return nil
	}
	err := setServices(cn, peerID, planned.Ledger.Spec.Services.ID, Allocation(planned.Ledger, peerID).ServicesID)
	if err != nil {
		return &failure.Error{Kind: failure.Usage, Cluster: planned.Cluster, Op: "exchange services", Err: err}
	}
	return nil
}

// peeringServices returns how services are exchanged, as the Peering has it, nil if they are not.
func (d *draft) peeringServices() *v1alpha1.PeeringServices {
	if !d.services {
		return nil
	}
	before, given := lo.FromPtr(lo.FromPtr(d.input.facts.Existing).Spec.Services), d.input.Overrides.Services
	return &v1alpha1.PeeringServices{
		RemoteID:   d.peer.Services.ID,
		Import:     lo.CoalesceOrEmpty(given.Import, before.Import, v1alpha1.ImportAll),
		Precedence: lo.CoalesceOrEmpty(given.Precedence, before.Precedence, v1alpha1.PrecedenceAge),
		Endpoints:  lo.CoalesceOrEmpty(given.Endpoints, before.Endpoints, v1alpha1.EndpointsEqual),
	}
}

// addServices lists the objects for the exchange of services. Definitions of others stay as they are.
func (l *list) addServices(a *NodeAgents, foreign map[string]bool) {
	for _, crd := range manifests.ServicesCRDs() {
		l.add(CRDs, "", "the API between gateways and the controller of services", crd)
	}
	for _, crd := range manifests.MultiClusterCRDs() {
		if !foreign[crd.Name] {
			l.add(CRDs, "", "the Multi-Cluster Services API, which has exports and imports", crd)
		}
	}
	account, workload := manifests.Services(a.Agents)
	l.add(ServicesAccounts, "", "account, permissions and policies of the controller of services", account...)
	l.add(ServicesWorkload, "", "the controller of exported and imported services", workload...)
}
