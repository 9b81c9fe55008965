package nodeinit

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/liqonet/liqonet/test/lab/internal/kubeapi"
)

const containerdSocket = "/run/containerd/containerd.sock"

func pki(name string) string { return filepath.Join(pkiDir, name) }

func etcdArgs() []string {
	return []string{
		"--data-dir=/var/lib/etcd",
		"--listen-client-urls=http://127.0.0.1:2379",
		"--advertise-client-urls=http://127.0.0.1:2379",
		"--listen-peer-urls=http://127.0.0.1:2380",
		"--initial-advertise-peer-urls=http://127.0.0.1:2380",
		"--initial-cluster=default=http://127.0.0.1:2380",
		// A lab does not outlive the machine's power.
		"--unsafe-no-fsync",
		"--log-level=warn",
	}
}

// The audit log has what pods of the namespace liqonet-system ask of the API server.
const (
	auditPolicyFile = nodeDir + "/audit.yaml"
	auditPolicy     = `apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
omitManagedFields: true
rules:
- level: Metadata
  userGroups: ["system:serviceaccounts:liqonet-system"]
- level: None
`
)

func apiServerArgs(cfg Config) []string {
	return []string{
		"--etcd-servers=http://127.0.0.1:2379",
		"--advertise-address=" + cfg.APIServer.String(),
		"--bind-address=0.0.0.0",
		"--secure-port=" + itoa(apiPort),
		"--service-cluster-ip-range=" + cfg.ServiceCIDR.String(),
		"--authorization-mode=Node,RBAC",
		"--enable-admission-plugins=NodeRestriction",
		"--allow-privileged=true",
		"--client-ca-file=" + pki("ca.crt"),
		"--tls-cert-file=" + pki("apiserver.crt"),
		"--tls-private-key-file=" + pki("apiserver.key"),
		"--kubelet-certificate-authority=" + pki("ca.crt"),
		"--kubelet-client-certificate=" + pki("kubelet-client.crt"),
		"--kubelet-client-key=" + pki("kubelet-client.key"),
		"--kubelet-preferred-address-types=InternalIP",
		"--service-account-issuer=https://kubernetes.default.svc.cluster.local",
		"--service-account-key-file=" + pki("sa.key"),
		"--service-account-signing-key-file=" + pki("sa.key"),
		"--requestheader-client-ca-file=" + pki("front-ca.crt"),
		"--requestheader-allowed-names=front-proxy-client",
		"--requestheader-extra-headers-prefix=X-Remote-Extra-",
		"--requestheader-group-headers=X-Remote-Group",
		"--requestheader-username-headers=X-Remote-User",
		"--proxy-client-cert-file=" + pki("front-client.crt"),
		"--proxy-client-key-file=" + pki("front-client.key"),
		// The control plane has no kube-proxy: webhooks are called by the
		// addresses of their pods.
		"--enable-aggregator-routing=true",
		"--audit-policy-file=" + auditPolicyFile,
		"--audit-log-path=" + filepath.Join(logDir, "audit.log"),
		"--profiling=false",
		"--v=1",
	}
}

func controllerManagerArgs(cfg Config) []string {
	kubeconfig := pki("controller-manager.kubeconfig")
	args := []string{
		"--kubeconfig=" + kubeconfig,
		"--authentication-kubeconfig=" + kubeconfig,
		"--authorization-kubeconfig=" + kubeconfig,
		"--leader-elect=false",
		"--use-service-account-credentials=true",
		"--service-account-private-key-file=" + pki("sa.key"),
		"--root-ca-file=" + pki("ca.crt"),
		"--cluster-signing-cert-file=" + pki("ca.crt"),
		"--cluster-signing-key-file=" + pki("ca.key"),
		"--client-ca-file=" + pki("ca.crt"),
		"--service-cluster-ip-range=" + cfg.ServiceCIDR.String(),
		"--cluster-name=" + cfg.Cluster,
		"--kube-api-qps=100",
		"--kube-api-burst=200",
		"--profiling=false",
	}
	if nodes := cfg.Network.NodeCIDR; nodes.IsValid() {
		args = append(args, "--allocate-node-cidrs=true", "--cluster-cidr="+nodes.String(),
			"--node-cidr-mask-size="+itoa(max(cfg.NodeCIDRMaskSize, nodes.Bits())))
	}
	if cfg.NodeGrace > 0 {
		args = append(args, "--node-monitor-grace-period="+cfg.NodeGrace.String())
	}
	return args
}

func schedulerArgs() []string {
	kubeconfig := pki("scheduler.kubeconfig")
	return []string{
		"--kubeconfig=" + kubeconfig,
		"--authentication-kubeconfig=" + kubeconfig,
		"--authorization-kubeconfig=" + kubeconfig,
		"--leader-elect=false",
		"--kube-api-qps=100",
		"--kube-api-burst=200",
		"--profiling=false",
	}
}

func kubeletArgs(cfg Config) []string {
	args := append([]string{
		"--config=/etc/kubelet.yaml",
		"--kubeconfig=" + pki("kubelet.kubeconfig"),
		"--hostname-override=" + cfg.Node,
		"--node-ip=" + cfg.Address.String(),
		"--root-dir=/var/lib/kubelet",
		"--v=1",
	}, cfg.Network.KubeletArgs...)
	if cfg.OwnPodCIDR.IsValid() {
		// So that the other nodes know it.
		args = append(args, "--node-labels="+kubeapi.PodCIDRLabel+"="+kubeapi.LabelOf(cfg.OwnPodCIDR))
	}
	return args
}

// writeWorkerFiles writes the configuration of a worker's components.
func writeWorkerFiles(cfg Config) error {
	template := ""
	if cfg.Network.CNITemplate != "" && cfg.OwnPodCIDR.IsValid() {
		conf := strings.ReplaceAll(cfg.Network.CNITemplate, "{{.PodCIDR}}", cfg.OwnPodCIDR.String())
		if err := os.WriteFile("/etc/cni/net.d/10-lab.conflist", []byte(conf), 0o644); err != nil {
			return err
		}
	} else if cfg.Network.CNITemplate != "" {
		template = "conf_template = \"/etc/containerd/cni.template\""
	}
	for path, content := range map[string]string{
		"/etc/containerd/cni.template": cfg.Network.CNITemplate,
		"/etc/containerd/config.toml":  fmt.Sprintf(containerdConfig, containerdSocket, PauseImage, template),
		"/etc/kubelet.yaml": fmt.Sprintf(kubeletConfig,
			cfg.CgroupPath, containerdSocket, cfg.DNS, pki("ca.crt"), pki("kubelet.crt"), pki("kubelet.key")),
		"/etc/kube-proxy.yaml": fmt.Sprintf(proxyConfig, cfg.ProxyMode, pki("proxy.kubeconfig"), cfg.Node, cfg.Network.ProxyCIDR),
	} {
		if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
			return err
		}
	}
	return nil
}

// PauseImage is the image of the pods' sandboxes.
const PauseImage = "lab.local/pause:1"

// restrict_oom_score_adj: without CAP_SYS_RESOURCE every sandbox fails
// otherwise, and where there is that capability it does no harm.
const containerdConfig = `version = 3
root = "/var/lib/containerd"
state = "/run/containerd"
[grpc]
  address = %q
[plugins.'io.containerd.cri.v1.images']
  snapshotter = "overlayfs"
  [plugins.'io.containerd.cri.v1.images'.pinned_images]
    sandbox = %q
  # Where tests write down a registry of theirs. The default is a list of two, which is
  # not read.
  [plugins.'io.containerd.cri.v1.images'.registry]
    config_path = "/etc/containerd/certs.d"
[plugins.'io.containerd.cri.v1.runtime']
  restrict_oom_score_adj = true
  [plugins.'io.containerd.cri.v1.runtime'.cni]
    bin_dirs = ["/opt/cni/bin"]
    conf_dir = "/etc/cni/net.d"
    %s
  [plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
    [plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc.options]
      SystemdCgroup = false
`

// Evictions are off: the disk is the host's, and how full it is says nothing
// about the lab.
const kubeletConfig = `apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
failCgroupV1: false
cgroupDriver: cgroupfs
cgroupRoot: %s
containerRuntimeEndpoint: unix://%s
failSwapOn: false
clusterDomain: cluster.local
clusterDNS: [%s]
resolvConf: /etc/resolv.conf
authentication: {anonymous: {enabled: false}, webhook: {enabled: true}, x509: {clientCAFile: %s}}
authorization: {mode: Webhook}
tlsCertFile: %s
tlsPrivateKeyFile: %s
evictionHard: {memory.available: "0%%", nodefs.available: "0%%", nodefs.inodesFree: "0%%", imagefs.available: "0%%"}
imageGCHighThresholdPercent: 100
makeIPTablesUtilChains: true
serializeImagePulls: false
kubeAPIQPS: 100
kubeAPIBurst: 200
`

// The conntrack limits are the host's, and are not changed.
const proxyConfig = `apiVersion: kubeproxy.config.k8s.io/v1alpha1
kind: KubeProxyConfiguration
mode: %s
clientConnection: {kubeconfig: %s}
hostnameOverride: %s
clusterCIDR: %q
conntrack: {maxPerCore: 0, min: 0, tcpEstablishedTimeout: 0s, tcpCloseWaitTimeout: 0s}
`
