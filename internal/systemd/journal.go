package systemd

import (
	"io"
	"os"

	"github.com/coreos/go-systemd/v22/journal"
)

// ToJournal reports whether w is the standard error of the process and the manager has
// connected it to the journal.
func ToJournal(w io.Writer) bool {
	if w != os.Stderr {
		return false
	}
	is, err := journal.StderrIsJournalStream()
	return is && err == nil
}
