// Package sentinel forwards to package rig, until its last caller names that one.
package sentinel
