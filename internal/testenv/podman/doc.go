// Package podman gives a test images and containers in a place of their own, without a
// registry of images: the Containerfile's first image has a stand-in.
package podman
