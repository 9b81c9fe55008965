package nodeinit

import (
	"bytes"
	"io"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/liqonet/liqonet/test/kit"
	"github.com/liqonet/liqonet/test/lab/internal/kubeapi"
)

func TestForward(t *testing.T) {
	server := kit.Must(net.Listen("tcp", "127.0.0.1:0"))(t)
	defer server.Close()
	go func() {
		conn, err := server.Accept()
		if err != nil {
			return
		}
		// It answers when the client has said all it has to say.
		request, _ := io.ReadAll(conn)
		_, _ = conn.Write(bytes.ToUpper(request))
		conn.Close()
	}()
	listener := kit.Must(net.Listen("tcp", "127.0.0.1:0"))(t)
	go forward(listener, server.Addr().String()) // until the test ends

	conn := kit.Must(net.Dial("tcp", listener.Addr().String()))(t)
	defer conn.Close()
	kit.NoError(t, conn.SetDeadline(time.Now().Add(5*time.Second)))
	kit.Must(conn.Write([]byte("hello")))(t)
	kit.NoError(t, conn.(*net.TCPConn).CloseWrite())
	if got, err := io.ReadAll(conn); err != nil || string(got) != "HELLO" {
		t.Errorf("got %q, %v", got, err)
	}
}

func TestNthAddress(t *testing.T) {
	if a, err := nthAddress(netip.MustParsePrefix("10.96.0.0/16"), 10); err != nil || a.String() != "10.96.0.10" {
		t.Errorf("got %s, %v", a, err)
	}
	if _, err := nthAddress(netip.MustParsePrefix("10.96.0.0/29"), 10); err == nil {
		t.Error("no error outside of the prefix")
	}
}

func TestArguments(t *testing.T) {
	cfg := Config{
		Cluster: "a", APIServer: netip.MustParseAddr("172.18.1.2"),
		NodeCIDRMaskSize: 26, ServiceCIDR: netip.MustParsePrefix("10.9.0.0/24"),
		NodeGrace: 20 * time.Minute, Network: Network{NodeCIDR: netip.MustParsePrefix("10.8.0.0/20"), KubeletArgs: []string{"--provider-id=x"}},
	}
	for _, tc := range []struct {
		have []string
		want []string
	}{
		{apiServerArgs(cfg), []string{
			"--advertise-address=172.18.1.2", "--service-cluster-ip-range=10.9.0.0/24",
		}},
		{controllerManagerArgs(cfg), []string{
			"--allocate-node-cidrs=true", "--cluster-cidr=10.8.0.0/20", "--node-cidr-mask-size=26", "--service-cluster-ip-range=10.9.0.0/24", "--node-monitor-grace-period=20m0s",
		}},
		{kubeletArgs(cfg), []string{"--provider-id=x"}},
	} {
		all := strings.Join(tc.have, "\n") + "\n"
		for _, want := range tc.want {
			if !strings.Contains(all, want+"\n") {
				t.Errorf("%s is missing in\n%s", want, all)
			}
		}
	}
	cfg.Network.NodeCIDR = netip.Prefix{} // nodes get none
	if all := strings.Join(controllerManagerArgs(cfg), "\n"); strings.Contains(all, "cluster-cidr=") || strings.Contains(all, "allocate-node-cidrs") {
		t.Errorf("a range for nodes in\n%s", all)
	}
}

// A node's pods have its block where there are blocks, whatever Kubernetes says.
func TestPodsOf(t *testing.T) {
	other := kubeapi.Node{Internal: netip.MustParseAddr("172.18.1.12"), PodCIDR: netip.MustParsePrefix("10.244.1.0/24")}
	kit.Check(t, "pods without blocks", (Network{}).PodsOf(other), other.PodCIDR)
	block := netip.MustParsePrefix("192.168.9.64/26")
	blocks := Network{Blocks: map[netip.Addr]netip.Prefix{other.Internal: block}}
	kit.Check(t, "pods with blocks", blocks.PodsOf(other), block)
	if got := blocks.PodsOf(kubeapi.Node{PodCIDR: other.PodCIDR}); got.IsValid() {
		t.Errorf("got %s of a node whose address is not known", got)
	}
}
