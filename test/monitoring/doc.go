// Package monitoring tests what is in docs/monitoring: that Prometheus takes the alerts, that each of them
// fires under a made fault and none in a quiet hour, and that alerts, dashboard and documentation are about
// metrics that agents have.
package monitoring
