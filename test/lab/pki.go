package lab

import (
	"cmp"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"time"

	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"k8s.io/client-go/util/cert"
	"k8s.io/client-go/util/keyutil"
)

// authority is a certificate authority.
type authority struct {
	pemPair
	parsed *x509.Certificate
	signer crypto.Signer
}

// pemPair is a certificate with its key, in PEM.
type pemPair struct{ certificate, key []byte }

// subject says whom a certificate is for.
type subject struct {
	name  string
	group string // Kubernetes reads groups from the organization
	dns   []string
	ips   []netip.Addr
}

const validFor = 10 * 365 * 24 * time.Hour

func newAuthority(name string) (authority, error) {
	pair, err := certify(&x509.Certificate{
		Subject: pkix.Name{CommonName: name}, IsCA: true, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
	}, nil)
	if err != nil {
		return authority{}, err
	}
	return parseAuthority(pair)
}

func parseAuthority(p pemPair) (authority, error) {
	pair, err := tls.X509KeyPair(p.certificate, p.key)
	if err != nil {
		return authority{}, err
	}
	return authority{p, pair.Leaf, pair.PrivateKey.(crypto.Signer)}, nil
}

func (a authority) issue(s subject) (pemPair, error) {
	template := &x509.Certificate{
		Subject:     pkix.Name{CommonName: s.name},
		KeyUsage:    x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth},
		DNSNames:    s.dns,
	}
	if s.group != "" {
		template.Subject.Organization = []string{s.group}
	}
	for _, ip := range s.ips {
		template.IPAddresses = append(template.IPAddresses, net.IP(ip.AsSlice()))
	}
	return certify(template, &a)
}

// certify completes a certificate, and signs it by an authority, or by its own key.
func certify(template *x509.Certificate, by *authority) (pemPair, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return pemPair{}, err
	}
	parent, signer := template, crypto.Signer(key)
	if by != nil {
		parent, signer = by.parsed, by.signer
	}
	template.NotBefore, template.NotAfter = time.Now().Add(-time.Hour), time.Now().Add(validFor)
	der, err := x509.CreateCertificate(rand.Reader, template, parent, key.Public(), signer)
	if err != nil {
		return pemPair{}, fmt.Errorf("issue certificate for %s: %w", template.Subject.CommonName, err)
	}
	keyPEM, err := keyutil.MarshalPrivateKeyToPEM(key)
	return pemPair{pem.EncodeToMemory(&pem.Block{Type: cert.CertificateBlockType, Bytes: der}), keyPEM}, err
}

// files are the contents of a directory by name.
type files map[string][]byte

func (f files) pair(name string, p pemPair) {
	f[name+".crt"], f[name+".key"] = p.certificate, p.key
}

// write puts the files into a directory that only root can read.
func (f files) write(dir string) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	for name, content := range f {
		if err := os.WriteFile(filepath.Join(dir, name), content, 0o600); err != nil {
			return err
		}
	}
	return nil
}

// issuer makes the certificates of one cluster.
type issuer struct {
	root      authority
	apiServer string // URL, for the components
	admin     pemPair
}

// newIssuer makes a cluster's authority and its administrator.
func newIssuer(apiServer string) (*issuer, error) {
	root, err := newAuthority("lab-ca")
	if err != nil {
		return nil, err
	}
	admin, err := root.issue(subject{name: "lab-admin", group: "system:masters"})
	return &issuer{root, apiServer, admin}, err
}

// save and loadIssuer keep an issuer for nodes that come later.
func (i *issuer) save(dir string) error {
	f := files{}
	f.pair("ca", i.root.pemPair)
	f.pair("admin", i.admin)
	return f.write(dir)
}

func loadIssuer(dir, apiServer string) (*issuer, error) {
	var root pemPair
	i := &issuer{apiServer: apiServer}
	for name, content := range map[string]*[]byte{
		"ca.crt": &root.certificate, "ca.key": &root.key, "admin.crt": &i.admin.certificate, "admin.key": &i.admin.key,
	} {
		var err error
		if *content, err = os.ReadFile(filepath.Join(dir, name)); err != nil {
			return nil, err
		}
	}
	var err error
	if i.root, err = parseAuthority(root); err != nil {
		return nil, fmt.Errorf("load authority from %s: %w", dir, err)
	}
	return i, nil
}

// kubeconfig adds a kubeconfig of the given subject.
func (i *issuer) kubeconfig(f files, name string, s subject) error {
	pair, err := i.root.issue(s)
	if err != nil {
		return err
	}
	config := clientcmdapi.NewConfig()
	addContext(config, "lab", i.apiServer, i.root.certificate, pair)
	f[name+".kubeconfig"], err = clientcmd.Write(*config)
	return err
}

// controlPlane returns what a control plane needs, under the names that
// nodeinit knows.
func (i *issuer) controlPlane(address, service netip.Addr) (files, error) {
	front, err := newAuthority("lab-front-ca")
	if err != nil {
		return nil, err
	}
	f := files{}
	f.pair("ca", i.root.pemPair)
	f.pair("admin", i.admin)
	for _, c := range []struct {
		file string
		by   authority
		subject
	}{
		{"apiserver", i.root, subject{
			name: "kube-apiserver",
			ips:  []netip.Addr{address, service, netip.AddrFrom4([4]byte{127, 0, 0, 1})},
			dns:  []string{"localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc", "kubernetes.default.svc.cluster.local"},
		}},
		{"kubelet-client", i.root, subject{name: "kube-apiserver-kubelet-client", group: "system:masters"}},
		{"front-client", front, subject{name: "front-proxy-client"}},
	} {
		pair, err := c.by.issue(c.subject)
		if err != nil {
			return nil, err
		}
		f.pair(c.file, pair)
	}
	f["front-ca.crt"] = front.certificate
	for name, user := range map[string]string{
		"controller-manager": "system:kube-controller-manager",
		"scheduler":          "system:kube-scheduler",
	} {
		if err := i.kubeconfig(f, name, subject{name: user}); err != nil {
			return nil, err
		}
	}
	tokens, err := newAuthority("lab-tokens")
	f["sa.key"] = tokens.key // signs service accounts' tokens
	return f, err
}

// worker returns what a worker needs; not the authority's key.
func (i *issuer) worker(node string, address netip.Addr) (files, error) {
	f := files{"ca.crt": i.root.certificate}
	f.pair("admin", i.admin)
	serving, err := i.root.issue(subject{name: "system:node:" + node, dns: []string{node}, ips: []netip.Addr{address}})
	if err != nil {
		return nil, err
	}
	f.pair("kubelet", serving)
	if err := i.kubeconfig(f, "kubelet", subject{name: "system:node:" + node, group: "system:nodes"}); err != nil {
		return nil, err
	}
	if err := i.kubeconfig(f, "proxy", subject{name: "system:kube-proxy"}); err != nil {
		return nil, err
	}
	return f, nil
}

// addContext adds a cluster, a user and a context of the same name to a kubeconfig. The first one is the current one.
func addContext(config *clientcmdapi.Config, name, server string, authority []byte, client pemPair) {
	config.Clusters[name] = &clientcmdapi.Cluster{Server: server, CertificateAuthorityData: authority}
	config.AuthInfos[name] = &clientcmdapi.AuthInfo{ClientCertificateData: client.certificate, ClientKeyData: client.key}
	config.Contexts[name] = &clientcmdapi.Context{Cluster: name, AuthInfo: name}
	config.CurrentContext = cmp.Or(config.CurrentContext, name)
}
