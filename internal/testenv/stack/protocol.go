package stack

import "fmt"

// The owner writes one spec and then requests to the guardian's standard input, and
// reads events from its standard output; all are JSON lines. End of file on the input
// is the owner's death, unless it has detached.

// Server names one of the servers.
type Server string

// The servers of a [Stack]. Postgres and Replica are two places, not two roles: which
// of them is the primary changes with [Promote] and [Stack.MakeReplica].
const (
	Postgres Server = "postgres"
	Replica  Server = "replica"
	Elastic  Server = "elastic"
)

// serverLog is the log of a server in its directory.
const serverLog = "server.log"

// title is the name for people.
func (s Server) title() string {
	switch s {
	case Postgres:
		return "PostgreSQL"
	case Replica:
		return "second PostgreSQL"
	case Elastic:
		return "Elasticsearch"
	default:
		return fmt.Sprintf("node %d of Elasticsearch", s.number()+1)
	}
}

// spec is what the guardian starts. An empty home means: not this server.
type spec struct {
	Options
	PostgresHome string
	ElasticHome  string
	OpenSearch   bool // what ElasticHome holds
	JavaHome     string
	Account      *account
	DataRoot     string
	Secured      *securedSpec `json:",omitempty"` // in place of that of Options
}

// Operation is what [Stack.Do] does to a server.
type Operation string

// The operations. Each is over when its effect is there.
const (
	// StopServer ends a server in order.
	StopServer Operation = "stop"
	// StopServerImmediately is PostgreSQL's immediate shutdown: clients are cut off at once
	// and the next start recovers. Elasticsearch has no such thing.
	StopServerImmediately Operation = "stop immediately"
	// KillServer kills a server with SIGKILL.
	KillServer Operation = "kill"
	// StartServer starts a server that was stopped, was killed or ended, with its data and
	// at its old URL, until it answers.
	StartServer Operation = "start"
	// Promote makes a replica a primary that takes writes. Whether the old primary still runs is not
	// asked. Nothing waits for a replica of the new one until [Stack.MakeReplica] makes it.
	Promote Operation = "promote"
	// CutOff lets no byte pass between a node of Elasticsearch and the others until Reconnect; clients
	// reach it as before. It takes [Options.Cables].
	CutOff    Operation = "cut off"
	Reconnect Operation = "reconnect"

	opCommand Operation = "command"           // PID is to be killed with the owner; 0 takes it back
	opDetach  Operation = "detach"            // outlive the owner, described in StateFile
	opReplica Operation = "make a replica of" // Server becomes a replica of the other one
)

type request struct {
	Op        Operation
	Server    Server `json:",omitempty"`
	PID       int    `json:",omitempty"`
	Group     bool   `json:",omitempty"` // PID leads a process group of its own
	StateFile string `json:",omitempty"`

	Replication Replication `json:",omitempty"`
}

type eventKind string

const (
	eventUp     eventKind = "up"     // Server answers at URL
	eventEnded  eventKind = "ended"  // Server ended by itself
	eventReady  eventKind = "ready"  // all that was wanted is up
	eventFailed eventKind = "failed" // nothing is up; the guardian ends
	eventDone   eventKind = "done"   // answers one request of the kinds detach to make a replica of
)

type event struct {
	Kind    eventKind
	Server  Server  `json:",omitempty"`
	URL     string  `json:",omitempty"`
	PID     int     `json:",omitempty"`
	Seconds float64 `json:",omitempty"`
	Dir     string  `json:",omitempty"`
	Error   string  `json:",omitempty"`
}
