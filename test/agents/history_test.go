package agents

import (
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/pkg/history"
	"github.com/liqonet/liqonet/pkg/wire"
	"github.com/liqonet/liqonet/test/kit"
)

// historyTimeout is longer than agents delay the writing of changes.
const historyTimeout = 30 * time.Second

// switched matches the log line of a node's agent about a switch to another plane.
var switched = regexp.MustCompile(`msg="plane in use has changed" .* to=(\d+) `)

// checkHistory checks that agents have recorded the failure of a gateway, and reported it in Events. Which plane nodes
// switch to depends on them: a plane with a fault may already be out of use in the other cluster.
func (c *cluster) checkHistory(t *testing.T) {
	t.Helper()
	kit.Within(t, historyTimeout, "agents of "+c.name+" record changes", func() string {
		var records corev1.ConfigMapList
		var events corev1.EventList
		for _, list := range []client.ObjectList{&records, &events} {
			if err := c.api.Client.List(t.Context(), list); err != nil {
				return err.Error()
			}
		}
		var recorded, reasons []string
		for _, r := range records.Items {
			for _, e := range history.Decode(r.Data) {
				recorded = append(recorded, e.Subject+" "+e.To)
				if e.Reason == "" || e.Peering != c.peer() {
					return fmt.Sprintf("%s: %+v", r.Name, e)
				}
			}
		}
		for _, e := range events.Items {
			reasons = append(reasons, e.Reason)
		}
		var wants []string
		for _, p := range c.agents {
			for _, line := range switched.FindAllStringSubmatch(p.log.String(), -1) {
				wants = append(wants, "plane in use "+line[1])
			}
		}
		if wants == nil {
			return "no node reports a switch to another plane"
		}
		for _, want := range append(wants, "plane starting", "plane up", "peer reached", "Connected True") {
			if !slices.Contains(recorded, want) {
				return fmt.Sprintf("no agent has recorded %q: %q", want, recorded)
			}
		}
		if !slices.ContainsFunc(recorded, func(n string) bool { return n == "plane down" || n == "plane leaving" }) {
			return fmt.Sprintf("no plane has failed: %q", recorded)
		}
		for _, want := range []string{"PlaneUp", "Connected"} {
			if !slices.Contains(reasons, want) {
				return fmt.Sprintf("no Event %s: %q", want, reasons)
			}
		}
		return ""
	})
}

// checkLogLevel changes the log level of running agents, with the annotations that node agents and gateways watch.
func (c *cluster) checkLogLevel(t *testing.T) {
	t.Helper()
	for _, obj := range []client.Object{
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: v1alpha1.Namespace}}, &v1alpha1.Peering{ObjectMeta: metav1.ObjectMeta{Name: c.peer()}},
	} {
		kit.NoError(t, c.api.Client.Patch(t.Context(), obj, client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"annotations":{"`+v1alpha1.AnnotationLogLevel+`":"debug"}}}`))))
	}
	kit.Within(t, historyTimeout, "agents of "+c.name+" log more", func() string {
		for _, p := range c.agents {
			if !strings.Contains(p.log.String(), `level=DEBUG msg="lines are logged from this level on"`) {
				return strings.Join(p.args, " ") + " does not"
			}
		}
		return ""
	})
}

// checkNoSecret searches all logs of agents, and all objects that they have written, for secrets.
func checkNoSecret(t *testing.T, clusters [2]*cluster) {
	t.Helper()
	secrets, texts := map[string][]byte{"token": []byte(plantedToken), "pre-shared key": presharedKey[:]}, map[string]string{}
	for _, c := range clusters {
		secrets["overlay key of "+c.name] = c.key[:]
		for i := range c.keys {
			secrets[fmt.Sprintf("key of gateway %d of %s", i, c.name)] = c.keys[i][:]
			secrets[fmt.Sprintf("overlay key of gateway %d of %s", i, c.name)] = wire.GatewayKey(c.key[:], v1alpha1.GatewayName(c.peer(), int32(i)), 1)
		}
		for _, p := range c.agents {
			texts[strings.Join(p.args, " ")+" of "+c.name] = p.log.String()
		}
		for _, list := range []client.ObjectList{&v1alpha1.PeeringList{}, &v1alpha1.NodeNetworkList{}, &corev1.ConfigMapList{}, &corev1.EventList{}} {
			kit.NoError(t, c.api.Client.List(t.Context(), list))
			raw := kit.Must(json.Marshal(list))(t)
			texts[fmt.Sprintf("%T of %s", list, c.name)] = string(raw)
		}
	}
	for where, text := range texts {
		kit.ErrorIf(t, text == "", "%s is empty", where)
		for name, secret := range secrets {
			for _, form := range []string{
				string(secret), base64.StdEncoding.EncodeToString(secret), base64.URLEncoding.EncodeToString(secret), hex.EncodeToString(secret),
				strings.ToUpper(hex.EncodeToString(secret)), fmt.Sprint(secret),
			} {
				kit.ErrorIf(t, strings.Contains(text, form), "%s reveals the %s", where, name)
			}
		}
	}
}
