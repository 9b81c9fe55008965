package feed

import (
	"encoding/json"
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
	// from has the versions of the objects from which these were made, by name. Unchanged ones are not translated again.
	from map[string]string
	// generation and nodes are the rest of what they were made from.
	generation int64
	nodes      map[netip.Addr]bool
	// omitted are the services beyond the limits, for the log.
	omitted []string
}

func newTold() told { return told{services: map[string]feed.Told{}, from: map[string]string{}} }

// update translates the exported services, and reports whether anything has changed. The map of services is replaced, not
// changed: a sender may be reading it.
func (t *told) update(log *slog.Logger, exported []v1alpha1.ExportedService, s State) (changed bool) {
	all := t.generation != s.Peering.Generation || !reflect.DeepEqual(t.nodes, s.Nodes)
	before := t.services
	t.generation, t.nodes = s.Peering.Generation, s.Nodes
	from, out := map[string]string{}, map[string]feed.Told{}
	slices.SortFunc(exported, func(a, b v1alpha1.ExportedService) int { return strings.Compare(a.Name, b.Name) })
	endpoints := 0
	var omitted []string
	for i := range exported {
		e := &exported[i]
		if !e.DeletionTimestamp.IsZero() || !services.IsFor(&e.Spec, s.Peering.Name) {
			continue
		}
		version := string(e.UID) + " " + e.ResourceVersion
		this, known := before[e.Name]
		if all || !known || t.from[e.Name] != version {
			record, _ := services.ToPeer(&e.Spec.ServiceRecord, s.Peering, s.Nodes)
			this = feed.Told{Hash: feed.SentHash(record, s.Peering), Record: record}
		}
		n := lo.SumBy(this.Record.Slices, func(s v1alpha1.RecordSlice) int { return len(s.Endpoints) })
		if len(out) >= v1alpha1.MaxPeerServices || endpoints+n > v1alpha1.MaxPeerEndpoints || tooLarge(this.Record) {
			omitted = append(omitted, e.Name)
			continue
		}
		endpoints += n
		out[e.Name], from[e.Name] = this, version
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

// tooLarge reports whether a record does not fit into a message.
func tooLarge(r *v1alpha1.ServiceRecord) bool {
	raw, _ := json.Marshal(r) // strings, numbers and addresses always encode
	return len(raw) > feed.MaxRecordBytes
}
