//go:build !linux

package stack

import (
	"errors"
	"time"
)

// No server is started here (postgresArtifact refuses), so what follows only has to compile.

func adoptOrphans() error { return errors.ErrUnsupported }

func killChildren(time.Duration) {}

func descendants(int) []int { return nil }

func startTime(int) uint64 { return 0 }

func parentIsGoRun() bool { return false }

func syncFilesystem(string) error { return nil }

func removeSharedMemory(int) {}
