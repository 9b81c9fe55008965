package kube_test

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/liqonet/liqonet/pkg/kube"
	"github.com/liqonet/liqonet/pkg/lock"
	"github.com/liqonet/liqonet/test/kit"
	"github.com/liqonet/liqonet/test/kubetest"
)

// A request survives a short outage of a server that has answered before.
func TestPatient(t *testing.T) {
	const refused, overtaken = 0, -1
	const webhookDown = `{"message": "Internal error occurred: failed calling webhook \"x.example.com\": connection refused"}`
	for name, tc := range map[string]struct {
		path string
		// answers are status codes, one for each request. The last one repeats. The first one answers a request made before
		// the test.
		answers []int
		// want is the final status, after so many attempts; 0 for any number.
		want, attempts int
		// message is the body of all answers. gaveUp is after how long there are no more attempts.
		message string
		gaveUp  time.Duration
	}{
		"it serves":                         {answers: []int{200, 404}, want: 404, attempts: 1},
		"it has not answered before":        {answers: []int{503, 503}, want: 503, attempts: 1},
		"it could not be reached before":    {answers: []int{refused, refused}, want: refused, attempts: 1},
		"it starts again":                   {answers: []int{200, refused, 500, 403, 401, 201}, want: 201, attempts: 5},
		"it is overloaded":                  {answers: []int{200, 429, 200}, want: 200, attempts: 2},
		"a permission is missing":           {answers: []int{200, 403, 200}, want: 403, attempts: 1},
		"what it has not":                   {answers: []int{200, 501, 200}, want: 501, attempts: 1},
		"a watch, which informers restart":  {path: "?watch=true", answers: []int{200, 500, 200}, want: 500, attempts: 1},
		"the command was overtaken":         {answers: []int{200, overtaken, 200}, want: refused, attempts: 1},
		"a server that does not come back":  {answers: []int{200, 500}, want: 500},
		"a server that becomes unreachable": {answers: []int{200, refused}, want: refused},
		"a webhook that starts again":       {message: webhookDown, answers: []int{200, 500, 500, 201}, want: 201, attempts: 3},
		"a webhook that stays down":         {message: webhookDown, answers: []int{200, 500}, want: 500, gaveUp: kube.RefusalTimeout},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				attempts := 0
				client := &http.Client{Transport: kube.RetryTransport(kubetest.RoundTripper(func(r *http.Request) (*http.Response, error) {
					body, err := io.ReadAll(r.Body)
					if err != nil || string(body) != "body" {
						t.Errorf("attempt %d has the body %q, %v", attempts, body, err)
					}
					code := tc.answers[min(attempts, len(tc.answers)-1)]
					switch attempts++; code {
					case refused:
						return nil, errors.New("refused")
					case overtaken:
						return nil, fmt.Errorf("%w by somebody", lock.ErrOvertaken)
					}
					return &http.Response{StatusCode: code, Body: io.NopCloser(strings.NewReader(tc.message))}, nil
				}))}
				request := func() int {
					resp, err := client.Post("http://api.invalid/"+tc.path, "text/plain", strings.NewReader("body"))
					if err != nil {
						return refused
					}
					text, err := io.ReadAll(resp.Body)
					kit.ErrorIf(t, err != nil || string(text) != tc.message, "the answer is %q, %v", text, err)
					_ = resp.Body.Close()
					return resp.StatusCode
				}
				request()
				start := time.Now()
				if got := request(); got != tc.want || tc.attempts > 0 && attempts-1 != tc.attempts {
					t.Errorf("got %d after %d attempts", got, attempts-1)
				}
				atLeast := cmp.Or(tc.gaveUp, kube.RetryTimeout)
				if took := time.Since(start); tc.attempts == 0 && (took < atLeast || took > atLeast+3*time.Second) {
					t.Errorf("it gave up after %s", took)
				}
			})
		})
	}
}
