package process

import (
	"net"
	"os/exec"
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

func TestNamingFindsAProcessUntilItEnds(t *testing.T) {
	t.Parallel()

	dir := t.TempDir()
	reader := exec.CommandContext(t.Context(), "sh", "-c", "read line", "--work="+dir)
	input, err := reader.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := reader.Start(); err != nil {
		t.Fatal(err)
	}
	if !Naming(dir) {
		t.Error("a running process with the directory in an argument is not found")
	}
	_ = input.Close()
	_ = reader.Wait() // it has read no line
	if Naming(dir) {
		t.Error("a process that has ended is found")
	}
}
