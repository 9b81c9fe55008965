package e2e

import (
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"path/filepath"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// between writes a kubeconfig by which clusters are reached through a handler, which answers requests itself or
// hands them on to the API server.
func between(t testing.TB, handle func(c *cluster, w http.ResponseWriter, r *http.Request, api http.Handler), clusters ...*cluster) (kubeconfig string) {
	t.Helper()
	cfg := clientcmdapi.NewConfig()
	for _, c := range clusters {
		rc := must(c.restConfig())(t)
		transport := must(rest.TransportFor(rc))(t)
		to := must(url.Parse(rc.Host))(t)
		proxy := &httputil.ReverseProxy{
			Transport: transport, FlushInterval: -1, // watches
			ErrorLog: log.New(io.Discard, "", 0), // of watches that a command ends
			Rewrite: func(r *httputil.ProxyRequest) {
				r.SetURL(to)
				r.Out.Header.Del("Accept-Encoding") // the transport asks for it, and unpacks
			},
		}
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { handle(c, w, r, proxy) }))
		t.Cleanup(func() {
			server.CloseClientConnections()
			server.Close()
		})
		cfg.Clusters[c.Name] = &clientcmdapi.Cluster{Server: server.URL}
		cfg.Contexts[c.Name] = &clientcmdapi.Context{Cluster: c.Name}
	}
	kubeconfig = filepath.Join(t.TempDir(), "kubeconfig")
	try(t, clientcmd.WriteToFile(*cfg, kubeconfig))
	return kubeconfig
}

// unwritten is what is fixed of an object, without how often it was written.
func unwritten(u *unstructured.Unstructured) string {
	for _, field := range []string{"generation", "resourceVersion", "managedFields"} {
		unstructured.RemoveNestedField(u.Object, "metadata", field)
	}
	return fixed(u)
}
