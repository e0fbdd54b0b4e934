package stack

import "fmt"

// The owner writes one spec and then requests to the guardian's standard input, and
// reads events from its standard output; all are JSON lines. End of file on the input
// is the owner's death, unless it has detached.

// Server names one of the servers.
type Server string

// The servers of a [Stack]. Postgres and Replica are two places, not two roles: which
// of them is the primary changes with [Stack.Promote] and [Stack.MakeReplica].
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

type operation string

const (
	opCommand operation = "command" // PID is to be killed with the owner; 0 takes it back
	opDetach  operation = "detach"  // outlive the owner, described in StateFile
	opStop    operation = "stop"
	opQuit    operation = "stop immediately"
	opKill    operation = "kill"
	opStart   operation = "start"
	opPromote operation = "promote"
	opReplica operation = "make a replica of" // Server becomes a replica of the other one

	opCutOff    operation = "cut off"
	opReconnect operation = "reconnect"
)

type request struct {
	Op        operation
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
