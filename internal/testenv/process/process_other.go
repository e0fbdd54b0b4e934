//go:build !linux

package process

import (
	"errors"
	"syscall"
)

// Attributes returns those of a child that runs as who: a process group of its own, or without a death
// signal a session. The kernel sends no such signal here.
func Attributes(who *syscall.Credential, deathSignal syscall.Signal) *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setsid: deathSignal == 0, Setpgid: deathSignal != 0, Credential: who}
}

func ephemeralPorts() (first int, ok bool) { return 0, false }

// Network is a network namespace, of which there are none here.
type Network struct{}

// NewNetwork returns an error.
func NewNetwork() (*Network, error) { return nil, errors.ErrUnsupported }

// Path returns nothing.
func (n *Network) Path() string { return "" }

// Run returns an error.
func Run(*Network, ...string) error { return errors.ErrUnsupported }

func (n *Network) enter() error { return nil }
