package process

import (
	"fmt"
	"math/rand/v2"
	"net"
	"strconv"
)

const (
	lowestPort = 10_240
	portTries  = 50
)

// FreePort returns a loopback port that was free a moment ago. It lies below the ports
// the kernel gives out, where possible: one of those may be taken by any outgoing
// connection before the server binds it. The servers are tried again on another port
// if this one is gone.
func FreePort() (int, error) {
	if first, ok := ephemeralPorts(); ok && first > lowestPort+1000 {
		for range portTries {
			port := lowestPort + rand.IntN(first-lowestPort)
			if bindable(port) {
				return port, nil
			}
		}
	}
	listener, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		return 0, err
	}
	defer func() { _ = listener.Close() }()
	return listener.Addr().(*net.TCPAddr).Port, nil
}

// FreePorts sets several to free ports, each to another one.
func FreePorts(ports ...*int) (err error) {
	taken := map[int]bool{0: true}
	for _, port := range ports {
		for *port = 0; taken[*port]; {
			if *port, err = FreePort(); err != nil {
				return fmt.Errorf("free port: %w", err)
			}
		}
		taken[*port] = true
	}
	return nil
}

func bindable(port int) bool {
	listener, err := net.Listen("tcp4", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
	if err != nil {
		return false
	}
	return listener.Close() == nil
}
