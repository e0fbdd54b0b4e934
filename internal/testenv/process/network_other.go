//go:build !linux

package process

import "errors"

// Network is a network namespace, of which there are none here.
type Network struct{}

// NewNetwork returns an error.
func NewNetwork() (*Network, error) { return nil, errors.ErrUnsupported }

// Path returns nothing.
func (n *Network) Path() string { return "" }

// Run returns an error.
func Run(*Network, ...string) error { return errors.ErrUnsupported }

func (n *Network) enter() error { return nil }
