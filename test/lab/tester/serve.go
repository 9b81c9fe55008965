package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"time"
)

// serve answers until the context ends. Each protocol says first what it saw:
// TCP by a line of JSON and then an echo, UDP by a line of JSON followed by the
// payload, HTTP by a line of JSON.
func serve(ctx context.Context, args []string) error {
	flags := flag.NewFlagSet("serve", flag.ContinueOnError)
	tcpAddr := flags.String("tcp", ":9000", "address of the TCP server")
	udpAddr := flags.String("udp", ":9000", "address of the UDP server")
	httpAddr := flags.String("http", ":8080", "address of the HTTP server")
	if err := flags.Parse(args); err != nil {
		return err
	}
	hostname, err := os.Hostname()
	if err != nil {
		return err
	}
	failed := make(chan error, 3)
	listener, err := net.Listen("tcp", *tcpAddr)
	if err != nil {
		return err
	}
	defer listener.Close()
	go func() { failed <- serveTCP(listener, hostname) }()
	conn, err := net.ListenPacket("udp", *udpAddr)
	if err != nil {
		return err
	}
	defer conn.Close()
	// On a busy machine this process may get no time for a while; then packets
	// wait, and are not lost here. The kernel gives as much as it allows.
	if err := conn.(*net.UDPConn).SetReadBuffer(receiveBuffer); err != nil {
		return err
	}
	go func() { failed <- serveUDP(conn, hostname) }()
	server := &http.Server{Addr: *httpAddr, Handler: handler(hostname), ReadHeaderTimeout: 10 * time.Second}
	defer server.Close()
	go func() { failed <- server.ListenAndServe() }()
	fmt.Printf("serving tcp %s, udp %s, http %s\n", *tcpAddr, *udpAddr, *httpAddr)
	select {
	case <-ctx.Done():
		return nil
	case err := <-failed:
		return err
	}
}

// receiveBuffer has room for a thousand small packets, of which each takes the
// kernel 2 KiB and more.
const receiveBuffer = 4 << 20

func line(hostname string, source net.Addr) []byte {
	// Two strings always encode.
	b, _ := json.Marshal(seen{Hostname: hostname, Source: source.String()})
	return append(b, '\n')
}

func serveTCP(listener net.Listener, hostname string) error {
	for {
		conn, err := listener.Accept()
		if err != nil {
			return err
		}
		go func() {
			defer conn.Close()
			if _, err := conn.Write(line(hostname, conn.RemoteAddr())); err != nil {
				return // the client is gone
			}
			_, _ = io.Copy(conn, conn)
		}()
	}
}

func serveUDP(conn net.PacketConn, hostname string) error {
	// On a host with several addresses the answer must leave from the one that
	// was asked; an unconnected socket on the wildcard address does that in a
	// pod, which has one.
	buf := make([]byte, 1<<16)
	for {
		n, from, err := conn.ReadFrom(buf)
		if err != nil {
			if errors.Is(err, net.ErrClosed) {
				return err
			}
			continue // an ICMP error for an earlier answer
		}
		answer := bytes.NewBuffer(line(hostname, from))
		answer.Write(buf[:n])
		if answer.Len() > maxUDP {
			answer.Truncate(maxUDP)
		}
		_, _ = conn.WriteTo(answer.Bytes(), from)
	}
}

// maxUDP is the largest payload of UDP over IPv4.
const maxUDP = 65507

func handler(hostname string) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		b, _ := json.Marshal(seen{Hostname: hostname, Source: r.RemoteAddr})
		fmt.Fprintf(w, "%s\n", b)
	})
}
