package feed

import (
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"reflect"
	"slices"
	"strings"

	"github.com/samber/lo"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/pkg/services"
	"github.com/liqonet/liqonet/pkg/services/feed"
)

// told is what the peer may learn of the exported services.
type told struct {
	// services are what is told, by key.
	services map[string]feed.Told
	// from has all exported services, also those beyond the limits. Unchanged ones are not translated again.
	from map[string]translated
	// peering is the version of the Peering, and nodes are the nodes from which these were made.
	peering string
	nodes   map[netip.Addr]bool
	// omitted are the services beyond the limits, for the log.
	omitted []string
}

// translated is a service with the version of the object from which it was made.
type translated struct {
	feed.Told
	version string
}

func newTold() told { return told{services: map[string]feed.Told{}} }

// update translates the exported services, and reports whether anything has changed. The map of services is replaced, not
// changed: a sender may be reading it.
func (t *told) update(log *slog.Logger, exported []v1alpha1.ExportedService, s State) (changed bool) {
	peering := fmt.Sprintf("%s %d", s.Peering.UID, s.Peering.Generation)
	all := t.peering != peering || !reflect.DeepEqual(t.nodes, s.Nodes)
	before := t.services
	t.peering, t.nodes = peering, s.Nodes
	from, out := map[string]translated{}, map[string]feed.Told{}
	slices.SortFunc(exported, func(a, b v1alpha1.ExportedService) int { return strings.Compare(a.Name, b.Name) })
	endpoints := 0
	var omitted []string
	for i := range exported {
		e := &exported[i]
		if !e.DeletionTimestamp.IsZero() || !services.IsFor(&e.Spec, s.Peering.Name) {
			continue
		}
		version := string(e.UID) + " " + e.ResourceVersion
		this := t.from[e.Name]
		if all || this.version != version {
			record, _ := services.ToPeer(&e.Spec.ServiceRecord, s.Peering, s.Nodes)
			this.Told, this.version = feed.NewTold(record, s.Peering), version
		}
		from[e.Name] = this
		n := lo.SumBy(this.Record.Slices, func(s v1alpha1.RecordSlice) int { return len(s.Endpoints) })
		if len(out) >= v1alpha1.MaxPeerServices || endpoints+n > v1alpha1.MaxPeerEndpoints || this.IsTooLarge {
			omitted = append(omitted, e.Name)
			continue
		}
		endpoints += n
		out[e.Name] = this.Told
	}
	if !slices.Equal(omitted, t.omitted) && len(omitted) > 0 {
		log.Warn("services exceed the limits, and the peer does not learn them", "services", omitted[:min(len(omitted), 5)], "number", len(omitted))
	}
	t.omitted, t.from = omitted, from
	if maps.EqualFunc(before, out, func(a, b feed.Told) bool { return a.Hash == b.Hash }) {
		return false
	}
	t.services = out
	return true
}
