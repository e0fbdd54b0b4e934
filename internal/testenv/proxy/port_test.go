package proxy

import (
	"errors"
	"net"
	"syscall"
	"testing"
)

// A port that was kept refuses connections, is given to nobody, and can be listened on again.
func TestKeptPort(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := l.Addr().String()
	client, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	served, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	_ = served.Close() // it goes on as one that ended lately
	_ = client.Close()
	_ = l.Close()
	release, err := keepPort(address)
	if err != nil {
		t.Fatal(err)
	}
	if c, err := net.Dial("tcp", address); !errors.Is(err, syscall.ECONNREFUSED) {
		if err == nil {
			_ = c.Close()
		}
		t.Errorf("connect: got %v, want that it is refused", err)
	}
	if l, err := net.Listen("tcp", address); err == nil {
		_ = l.Close()
		t.Error("listen while it is kept: got no error")
	}
	release()
	if l, err = net.Listen("tcp", address); err != nil {
		t.Fatal(err)
	}
	_ = l.Close()
}
