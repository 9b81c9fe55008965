package connect

import (
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/client-go/rest"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/liqonet/liqonet/test/kit"
)

// Entries of a kubeconfig share a failure of their plugin only if they run it in the same way.
func TestPluginsAreToldApart(t *testing.T) {
	keyOf := func(change func(cfg *rest.Config)) string {
		t.Helper()
		cfg := &rest.Config{Host: "https://one.example.com", ExecProvider: &clientcmdapi.ExecConfig{
			Command: "login", Args: []string{"--account", "a"}, Env: []clientcmdapi.ExecEnvVar{{Name: "REGION", Value: "a"}},
			APIVersion: "client.authentication.k8s.io/v1", InteractiveMode: clientcmdapi.NeverExecInteractiveMode,
		}}
		change(cfg)
		p, err := pluginOf(cfg)
		kit.NoError(t, err)
		kit.FatalIf(t, p == nil, "it has no plugin")
		return p.key
	}
	clusterInfo := func(host string) func(cfg *rest.Config) {
		return func(cfg *rest.Config) { cfg.Host, cfg.ExecProvider.ProvideClusterInfo = host, true }
	}
	as := keyOf(func(*rest.Config) {})
	kit.Check(t, "another cluster of the same account", keyOf(func(cfg *rest.Config) { cfg.Host = "https://two.example.com" }), as)
	for what, other := range map[string]string{
		"command":     keyOf(func(cfg *rest.Config) { cfg.ExecProvider.Command = "logon" }),
		"arguments":   keyOf(func(cfg *rest.Config) { cfg.ExecProvider.Args[1] = "b" }),
		"environment": keyOf(func(cfg *rest.Config) { cfg.ExecProvider.Env[0].Value = "b" }),
		"cluster":     keyOf(clusterInfo("https://one.example.com")),
	} {
		kit.ErrorIf(t, other == as, "plugins that differ in their %s are taken for the same", what)
	}
	kit.ErrorIf(t, keyOf(clusterInfo("https://one.example.com")) == keyOf(clusterInfo("https://two.example.com")), "a plugin that learns its cluster has one failure for all")
}

// Valid credentials are read within milliseconds. That is no reason to stop drawing progress.
func TestAuthenticating(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &Source{}
		kit.ErrorIf(t, s.IsAuthenticating(), "no plugin runs, and it says so")
		s.running.Store(new(time.Now()))
		time.Sleep(9 * time.Millisecond)
		kit.ErrorIf(t, s.IsAuthenticating(), "a plugin that has run for 9 ms may be asking")
		time.Sleep(2 * time.Millisecond)
		kit.ErrorIf(t, !s.IsAuthenticating(), "a plugin that has run for 11 ms is not asking")
		s.running.Store(nil)
		kit.ErrorIf(t, s.IsAuthenticating(), "a plugin that has ended may be asking")
	})
}
