package process

import (
	"context"
	"errors"
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

// A first try that ends is in the error, and no surprise.
func TestEndBeforeAServerIsReadyIsNoEndByItself(t *testing.T) {
	t.Parallel()

	dir, ends := t.TempDir(), make(chan int, 3)
	tries := 0
	p, err := StartReady(t.Context(), func() (Server, error) {
		tries++
		script := "exit 1"
		if tries == 2 {
			script = "exec sleep 60"
		}
		return Server{Name: "sh", Dir: dir, Log: dir + "/log", Argv: []string{"/bin/sh", "-c", script}, OnEnd: func(p *Process) { ends <- p.PID() }}, nil
	}, func(context.Context) error {
		if tries == 1 {
			return errors.New("not yet")
		}
		return nil
	}, func(try int, _ string) bool { return try == 1 })
	if err != nil {
		t.Fatal(err)
	}
	p.Stop()
	if got := <-ends; got != p.PID() || len(ends) > 0 {
		t.Errorf("the end of process %d was told first, and of %d more, want that of %d alone", got, len(ends), p.PID())
	}
}
