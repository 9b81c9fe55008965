package feed

import (
	"fmt"
	"log/slog"
	"net/netip"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/pkg/services/feed"
	"github.com/liqonet/liqonet/test/kit"
)

// exportedOf returns an exported service with endpoints at consecutive addresses.
func exportedOf(name, version string, endpoints int) v1alpha1.ExportedService {
	return v1alpha1.ExportedService{ObjectMeta: metav1.ObjectMeta{Name: name, ResourceVersion: version}, Spec: v1alpha1.ExportedServiceSpec{ServiceRecord: *recordWith("10.244.0.1", endpoints)}}
}

// recordWith returns a record with endpoints at consecutive addresses.
func recordWith(first string, endpoints int) *v1alpha1.ServiceRecord {
	r := recordOf(first)
	r.Slices = nil
	address := netip.MustParseAddr(first)
	for i := range endpoints {
		if i%v1alpha1.MaxSliceEndpoints == 0 {
			r.Slices = append(r.Slices, v1alpha1.RecordSlice{ID: fmt.Sprint("s", len(r.Slices))})
		}
		s := &r.Slices[len(r.Slices)-1]
		s.Endpoints = append(s.Endpoints, v1alpha1.RecordEndpoint{Address: v1alpha1.IP{Addr: address}, Ready: true})
		address = address.Next()
	}
	return r
}

func TestWhatIsTold(t *testing.T) {
	log, s := slog.New(slog.DiscardHandler), State{Peering: side("61", "62")}
	told := newTold()
	address := func(name string) string {
		r := told.services[name].Record
		if r == nil || len(r.Slices) == 0 || len(r.Slices[0].Endpoints) == 0 {
			return "none"
		}
		return r.Slices[0].Endpoints[0].Address.String()
	}
	web, db, others := exportedOf("shop.web", "1", 1), exportedOf("shop.db", "1", 1), exportedOf("shop.others", "1", 1)
	others.Spec.Peers = []string{"another"}
	all := func() []v1alpha1.ExportedService { return []v1alpha1.ExportedService{web, db, others} }
	kit.ErrorIf(t, !told.update(log, all(), s), "nothing has changed at first")
	kit.Check(t, "addresses", address("shop.web")+" "+address("shop.db")+" "+address("shop.others"), "10.61.0.1 10.61.0.1 none")
	was := told.services["shop.web"].Record
	kit.ErrorIf(t, told.update(log, all(), s), "something has changed without a reason")
	kit.ErrorIf(t, told.services["shop.web"].Record != was, "an unchanged service was translated again")

	web = exportedOf("shop.web", "2", 1)
	web.Spec.Slices[0].Endpoints[0].Address = v1alpha1.IP{Addr: netip.MustParseAddr("10.244.0.9")}
	before := told.services
	kit.ErrorIf(t, !told.update(log, all(), s), "a change is not seen")
	kit.Check(t, "changed", address("shop.web"), "10.61.0.9")
	kit.ErrorIf(t, before["shop.web"].Record != was, "a map that a sender may read was changed")

	s.Nodes = map[netip.Addr]bool{netip.MustParseAddr("10.244.0.9"): true}
	kit.ErrorIf(t, !told.update(log, all(), s), "a new node is not seen")
	kit.Check(t, "on a node", address("shop.web"), "none")
	s.Peering, s.Nodes = side("63", "62"), nil
	s.Peering.Generation = 2
	kit.ErrorIf(t, !told.update(log, all(), s), "another range is not seen")
	kit.Check(t, "in another range", address("shop.web"), "10.63.0.9")

	db.DeletionTimestamp = new(metav1.Now())
	kit.ErrorIf(t, !told.update(log, all(), s), "a deletion is not seen")
	kit.Check(t, "number", len(told.services), 1)
}

func TestLimitsOfWhatIsTold(t *testing.T) {
	log, s := slog.New(slog.DiscardHandler), State{Peering: side("61", "62")}
	var many, large []v1alpha1.ExportedService
	for i := range v1alpha1.MaxPeerServices + 10 {
		many = append(many, exportedOf(fmt.Sprintf("shop.s%05d", i), "1", 0))
	}
	for i := range v1alpha1.MaxPeerEndpoints/v1alpha1.MaxRecordEndpoints + 2 {
		large = append(large, exportedOf(fmt.Sprintf("shop.s%05d", i), "1", v1alpha1.MaxRecordEndpoints))
	}
	told := newTold()
	kit.ErrorIf(t, !told.update(log, many, s), "nothing is told")
	kit.Check(t, "services", len(told.services), v1alpha1.MaxPeerServices)
	kit.Check(t, "omitted", len(told.omitted), 10)
	_, first := told.services["shop.s00000"]
	kit.ErrorIf(t, !first, "the first service by its name is left out")
	kit.ErrorIf(t, !told.update(log, many[20:], s), "nothing has changed")
	kit.Check(t, "services after some are gone", len(told.services), v1alpha1.MaxPeerServices-10)

	told = newTold()
	kit.ErrorIf(t, !told.update(log, large, s), "nothing is told")
	kit.Check(t, "services with many endpoints", len(told.services), v1alpha1.MaxPeerEndpoints/v1alpha1.MaxRecordEndpoints)

	told = newTold()
	huge := exportedOf("shop.huge", "1", 0)
	huge.Spec.Annotations = map[string]string{"a": string(make([]byte, feed.MaxRecordBytes))}
	kit.ErrorIf(t, told.update(log, []v1alpha1.ExportedService{huge}, s), "a service that does not fit into a message is told")
}
