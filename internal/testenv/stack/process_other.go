//go:build !linux

package stack

import "errors"

// No server is started here (postgresArtifact refuses), so this only has to compile.

// EndWithGoRun does nothing here.
func EndWithGoRun() {}

func adoptOrphans() error { return errors.ErrUnsupported }

func syncFilesystem(string) error { return nil }

func inMemory() []string { return nil }

func removeSharedMemory(int) {}
