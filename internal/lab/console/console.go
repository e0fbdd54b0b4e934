package console

import (
	"io"
	"time"

	"github.com/samuelhu324-dev/weft/internal/lab/rig"
)

// Console is [rig.Screen].
type Console = rig.Screen

// New calls [rig.NewScreen].
func New(out io.Writer, quiet time.Duration) *Console { return rig.NewScreen(out, quiet) }

// Number calls [rig.Number].
func Number(n int) string { return rig.Number(n) }

// Millis calls [rig.Millis].
func Millis(d time.Duration) string { return rig.Millis(d) }

// WriteResult calls [rig.WriteResult].
func WriteResult(file string, v any) error { return rig.WriteResult(file, v) }
