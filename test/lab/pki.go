package lab

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// authority is a certificate authority.
type authority struct {
	certificate *x509.Certificate
	key         *ecdsa.PrivateKey
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
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return authority{}, err
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1),
		Subject:      pkix.Name{CommonName: name},
		NotBefore:    time.Now().Add(-time.Hour),
		NotAfter:     time.Now().Add(validFor),
		IsCA:         true, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return authority{}, fmt.Errorf("create authority %s: %w", name, err)
	}
	certificate, err := x509.ParseCertificate(der)
	return authority{certificate, key}, err
}

func (a authority) pem() (pemPair, error) { return encodePair(a.certificate.Raw, a.key) }

func parseAuthority(p pemPair) (authority, error) {
	block, _ := pem.Decode(p.certificate)
	keyBlock, _ := pem.Decode(p.key)
	if block == nil || keyBlock == nil {
		return authority{}, fmt.Errorf("no PEM")
	}
	certificate, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		return authority{}, err
	}
	key, err := x509.ParseECPrivateKey(keyBlock.Bytes)
	return authority{certificate, key}, err
}

func (a authority) issue(s subject) (pemPair, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return pemPair{}, err
	}
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 120))
	if err != nil {
		return pemPair{}, err
	}
	template := &x509.Certificate{
		SerialNumber: serial,
		Subject:      pkix.Name{CommonName: s.name},
		NotBefore:    time.Now().Add(-time.Hour),
		NotAfter:     time.Now().Add(validFor),
		KeyUsage:     x509.KeyUsageDigitalSignature,
		ExtKeyUsage:  []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth},
		DNSNames:     s.dns,
	}
	if s.group != "" {
		template.Subject.Organization = []string{s.group}
	}
	for _, ip := range s.ips {
		template.IPAddresses = append(template.IPAddresses, net.IP(ip.AsSlice()))
	}
	der, err := x509.CreateCertificate(rand.Reader, template, a.certificate, key.Public(), a.key)
	if err != nil {
		return pemPair{}, fmt.Errorf("issue certificate for %s: %w", s.name, err)
	}
	return encodePair(der, key)
}

func encodePair(der []byte, key *ecdsa.PrivateKey) (pemPair, error) {
	keyDER, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		return pemPair{}, err
	}
	return pemPair{
		certificate: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}),
		key:         pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: keyDER}),
	}, nil
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
	rootPEM   pemPair
	apiServer string // URL, for the components
	admin     pemPair
}

// newIssuer makes a cluster's authority and its administrator.
func newIssuer(apiServer string) (*issuer, error) {
	root, err := newAuthority("lab-ca")
	if err != nil {
		return nil, err
	}
	i := &issuer{root: root, apiServer: apiServer}
	if i.rootPEM, err = root.pem(); err != nil {
		return nil, err
	}
	i.admin, err = root.issue(subject{name: "lab-admin", group: "system:masters"})
	return i, err
}

// save and loadIssuer keep an issuer for nodes that come later.
func (i *issuer) save(dir string) error {
	f := files{}
	f.pair("ca", i.rootPEM)
	f.pair("admin", i.admin)
	return f.write(dir)
}

func loadIssuer(dir, apiServer string) (*issuer, error) {
	i := &issuer{apiServer: apiServer}
	for name, pair := range map[string]*pemPair{"ca": &i.rootPEM, "admin": &i.admin} {
		var err error
		if pair.certificate, err = os.ReadFile(filepath.Join(dir, name+".crt")); err != nil {
			return nil, err
		}
		if pair.key, err = os.ReadFile(filepath.Join(dir, name+".key")); err != nil {
			return nil, err
		}
	}
	var err error
	if i.root, err = parseAuthority(i.rootPEM); err != nil {
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
	f[name+".kubeconfig"] = encodeKubeconfig([]kubeconfigEntry{{
		name: "lab", server: i.apiServer, authority: i.rootPEM.certificate, client: pair,
	}})
	return nil
}

// controlPlane returns what a control plane needs, under the names that
// nodeinit knows.
func (i *issuer) controlPlane(address, service netip.Addr) (files, error) {
	front, err := newAuthority("lab-front-ca")
	if err != nil {
		return nil, err
	}
	f := files{}
	f.pair("ca", i.rootPEM)
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
	frontPEM, err := front.pem()
	if err != nil {
		return nil, err
	}
	f["front-ca.crt"] = frontPEM.certificate
	for name, user := range map[string]string{
		"controller-manager": "system:kube-controller-manager",
		"scheduler":          "system:kube-scheduler",
	} {
		if err := i.kubeconfig(f, name, subject{name: user}); err != nil {
			return nil, err
		}
	}
	// The key that signs service accounts' tokens.
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	private, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		return nil, err
	}
	public, err := x509.MarshalPKIXPublicKey(key.Public())
	if err != nil {
		return nil, err
	}
	f["sa.key"] = pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: private})
	f["sa.pub"] = pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: public})
	return f, nil
}

// worker returns what a worker needs; not the authority's key.
func (i *issuer) worker(node string, address netip.Addr) (files, error) {
	f := files{"ca.crt": i.rootPEM.certificate}
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

// kubeconfigEntry is a cluster, a user and a context of the same name.
type kubeconfigEntry struct {
	name, server string
	authority    []byte
	client       pemPair
}

// encodeKubeconfig writes a kubeconfig whose current context is the first.
func encodeKubeconfig(entries []kubeconfigEntry) []byte {
	var clusters, users, contexts strings.Builder
	data := base64.StdEncoding.EncodeToString
	current := `""`
	for i, e := range entries {
		if i == 0 {
			current = strconv.Quote(e.name)
		}
		fmt.Fprintf(&clusters, "- name: %q\n  cluster:\n    server: %s\n    certificate-authority-data: %s\n",
			e.name, e.server, data(e.authority))
		fmt.Fprintf(&users, "- name: %q\n  user:\n    client-certificate-data: %s\n    client-key-data: %s\n",
			e.name, data(e.client.certificate), data(e.client.key))
		fmt.Fprintf(&contexts, "- name: %q\n  context:\n    cluster: %q\n    user: %q\n", e.name, e.name, e.name)
	}
	return fmt.Appendf(nil, "apiVersion: v1\nkind: Config\ncurrent-context: %s\nclusters:\n%susers:\n%scontexts:\n%s",
		current, &clusters, &users, &contexts)
}
