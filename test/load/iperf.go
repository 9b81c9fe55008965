package load

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os/exec"
	"strconv"
	"strings"
	"time"
)

// iperfPort is that of its server.
const iperfPort = "5201"

// IPerf is Throughput as iperf3 measures it: for a second, after one that does not count.
func IPerf(ctx context.Context, p Path, streams int) (float64, error) {
	ctx, cancel := context.WithTimeout(ctx, 2*patience)
	defer cancel()
	server := exec.CommandContext(ctx, "iperf3", "--server", "--one-off", "--forceflush", "--bind", p.Listen.String(), "--port", iperfPort)
	said, err := server.StdoutPipe()
	if err != nil {
		return 0, err
	}
	if err := p.To(server.Start); err != nil {
		return 0, fmt.Errorf("start iperf3: %w", err)
	}
	bits, err := iperfClient(ctx, p, streams, bufio.NewScanner(said))
	if err != nil {
		cancel() // the server may wait for a client for ever
	}
	if ended := server.Wait(); ended != nil {
		err = errors.Join(err, fmt.Errorf("server of iperf3: %w", ended))
	}
	return bits, err
}

// iperfClient waits until the server says that it listens, and returns the bits per second that it received.
func iperfClient(ctx context.Context, p Path, streams int, server *bufio.Scanner) (float64, error) {
	for listens := false; !listens; listens = strings.HasPrefix(server.Text(), "Server listening") {
		if !server.Scan() {
			return 0, errors.New("iperf3 does not listen")
		}
	}
	var stdout bytes.Buffer
	client := exec.CommandContext(ctx, "iperf3", "--client", p.Address.String(), "--port", iperfPort, "--json",
		"--parallel", strconv.Itoa(streams), "--time", "1", "--omit", "1")
	client.Stdout = &stdout
	client.WaitDelay = time.Second
	if err := p.From(client.Run); err != nil {
		return 0, fmt.Errorf("iperf3 to %s: %w: %s", p.Address, err, stdout.String())
	}
	var result struct {
		End struct {
			Received struct {
				Bits float64 `json:"bits_per_second"`
			} `json:"sum_received"`
		}
	}
	if err := json.Unmarshal(stdout.Bytes(), &result); err != nil {
		return 0, fmt.Errorf("what iperf3 says: %w", err)
	}
	if result.End.Received.Bits == 0 {
		return 0, fmt.Errorf("nothing arrived at %s, says iperf3", p.Address)
	}
	return result.End.Received.Bits, nil
}
