package process

import (
	"net"
	"strconv"
	"testing"
)

func TestFreePortIsBindable(t *testing.T) {
	t.Parallel()

	port, err := FreePort()
	if err != nil {
		t.Fatalf("free port: %v", err)
	}
	listener, err := net.Listen("tcp4", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
	if err != nil {
		t.Fatalf("bind it: %v", err)
	}
	defer func() { _ = listener.Close() }()
	if bindable(port) {
		t.Error("taken port: got bindable, want not")
	}
}
