package process

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"

	"golang.org/x/sys/unix"
)

// Network is a network namespace. It lasts as long as it is open or a process is in it, so none
// is left behind by a program that was killed.
type Network struct{ file *os.File }

// NewNetwork makes a network namespace without any connection, which takes root.
func (s *Spawner) NewNetwork() (n *Network, err error) {
	err = s.inside(nil, func() error {
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

// Close lets go of the namespace.
func (n *Network) Close() error { return n.file.Close() }

// Run runs a command to its end in a network; nil is that of this process.
func (s *Spawner) Run(in *Network, argv ...string) error {
	return s.inside(in, func() error {
		out, err := exec.Command(argv[0], argv[1:]...).CombinedOutput()
		if err != nil {
			return fmt.Errorf("%s: %w: %s", strings.Join(argv, " "), err, strings.TrimSpace(string(out)))
		}
		return nil
	})
}

// inside calls do on the thread of the processes, which is in the network for that time.
func (s *Spawner) inside(n *Network, do func() error) error {
	return s.call(func() (err error) {
		home, err := os.Open("/proc/thread-self/ns/net")
		if err != nil {
			return fmt.Errorf("own network: %w", err)
		}
		defer func() { _ = home.Close() }()
		if n != nil {
			if err := unix.Setns(int(n.file.Fd()), unix.CLONE_NEWNET); err != nil {
				return fmt.Errorf("enter network: %w", err)
			}
		}
		err = do()
		if back := unix.Setns(int(home.Fd()), unix.CLONE_NEWNET); back != nil {
			return fmt.Errorf("leave network: %w", errors.Join(back, err))
		}
		return err
	})
}
