package discovery

import "testing"

func TestFlagValue(t *testing.T) {
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"kube-controller-manager", "--cluster-cidr=10.0.0.0/16"}, "10.0.0.0/16"},
		{[]string{"server", "--cluster-cidr", "10.0.0.0/16"}, "10.0.0.0/16"},
		{[]string{"/bin/sh", "-c", "exec kube-proxy --cluster-cidr=10.0.0.0/16 --v=2"}, "10.0.0.0/16"},
		{[]string{"--other-cluster-cidr=10.0.0.0/16"}, ""},
		{[]string{"--cluster-cidr"}, ""},
	} {
		if got := flagValue(c.args, "cluster-cidr"); got != c.want {
			t.Errorf("%v: got %q, want %q", c.args, got, c.want)
		}
	}
}
