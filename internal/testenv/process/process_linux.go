package process

import (
	"context"
	"fmt"
	"os"
	"runtime"
	"syscall"

	"github.com/prometheus/procfs"
	"golang.org/x/sys/unix"
)

// Attributes returns those of a child that runs as who. With a death signal, which the kernel sends it
// when its parent dies, it gets a process group of its own, so that the terminal's Ctrl-C goes to the
// parent alone. Without one (0) it gets a session of its own, and outlives its parent.
func Attributes(who *syscall.Credential, deathSignal syscall.Signal) *syscall.SysProcAttr {
	outlives := deathSignal == 0
	return &syscall.SysProcAttr{Setsid: outlives, Setpgid: !outlives, Credential: who, Pdeathsig: deathSignal}
}

// ephemeralPorts is the first port that the kernel may give to outgoing connections.
func ephemeralPorts() (first int, ok bool) {
	proc, err := procfs.NewDefaultFS()
	if err != nil {
		return 0, false
	}
	bounds, err := proc.SysctlInts("net.ipv4.ip_local_port_range")
	if err != nil || len(bounds) == 0 {
		return 0, false
	}
	return bounds[0], true
}

// Network is a network namespace. It lasts as long as this value or a process in it, so none
// is left behind by a program that was killed.
type Network struct{ file *os.File }

// NewNetwork makes a network namespace without any connection, which takes root.
func NewNetwork() (n *Network, err error) {
	err = onThread(func() error {
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			return fmt.Errorf("network namespace: %w", err)
		}
		file, err := os.Open("/proc/thread-self/ns/net")
		n = &Network{file}
		return err
	})
	return n, err
}

// Path names the namespace to other programs while this process lives.
func (n *Network) Path() string { return fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), n.file.Fd()) }

// Run runs a command to its end in a network; nil is that of this process.
func Run(in *Network, argv ...string) error {
	return onThread(func() error {
		if err := in.enter(); err != nil {
			return err
		}
		_, err := Tool{}.Run(context.Background(), argv...)
		return err
	})
}

// onThread calls do on a thread that ends afterwards.
func onThread(do func() error) error {
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // never unlocked
		done <- do()
	}()
	return <-done
}

// enter brings the calling thread into the network, unless that is nil.
func (n *Network) enter() error {
	if n == nil {
		return nil
	}
	if err := unix.Setns(int(n.file.Fd()), unix.CLONE_NEWNET); err != nil {
		return fmt.Errorf("enter network: %w", err)
	}
	return nil
}
