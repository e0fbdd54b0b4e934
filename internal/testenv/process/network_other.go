//go:build !linux

package process

import "errors"

// Network is a network namespace, of which there are none here.
type Network struct{}

// NewNetwork returns an error.
func (s *Spawner) NewNetwork() (*Network, error) { return nil, errors.ErrUnsupported }

// Path returns nothing.
func (n *Network) Path() string { return "" }

// Close does nothing.
func (n *Network) Close() error { return nil }

// Run returns an error.
func (s *Spawner) Run(*Network, ...string) error { return errors.ErrUnsupported }

func (s *Spawner) inside(*Network, func() error) error { return errors.ErrUnsupported }
