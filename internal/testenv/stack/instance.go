package stack

import (
	"context"
	"os"

	"github.com/samuelhu324-dev/weft/internal/testenv/process"
)

// machine is a server of the guardian: a cluster of PostgreSQL, or a node of Elasticsearch. It may be
// started again after its end, and keeps data and ports.
type machine interface {
	start(ctx context.Context) error
	stop() // in order
	quit() // at once, with a chance to take along what it has started
	kill()
	runs() bool
	url() string
	pid() int // of the process that serves
	place() string
}

// instance is what both kinds have in common.
type instance struct {
	spec
	dir     string
	onEnd   func(*process.Process)
	port    int              // 0 until the first start, or until it is known to others
	process *process.Process // nil until the first start
}

// instance makes the directory of a server.
func (g *guardian) instance(server Server) (instance, error) {
	dir, err := g.dir.sub(g.spec.Account, string(server))
	return instance{spec: g.spec, dir: dir, onEnd: g.noteEnd(server)}, err
}

func (i *instance) place() string { return i.dir }
func (i *instance) pid() int      { return i.process.PID() }
func (i *instance) runs() bool    { return i.process.Runs() }

func (i *instance) end(steps ...process.Step) {
	if i.process != nil {
		i.process.Stop(steps...)
	}
}

// write makes a file that belongs to whom the server runs as.
func (i *instance) write(name string, content []byte) error {
	if err := os.WriteFile(name, content, 0o600); err != nil {
		return err
	}
	return i.Account.own(name)
}
