package doctor

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"slices"

	"github.com/samuelhu324-dev/weft/projections/elastic"
)

// privilege is one of Elasticsearch, and what weft does with it.
type privilege struct {
	name     string
	severity Severity // of its lack
	purpose  string
}

// indexPrivileges returns those on the index and on those that a rebuild makes. manage includes monitor and maintenance.
func indexPrivileges() []privilege {
	return []privilege{
		{"read", Error, "weft reads and counts documents"},
		{"index", Error, "weft writes documents"},
		{"delete", Error, "weft deletes documents"},
		{"view_index_metadata", Error, "weft finds the index behind the alias and reads its mapping"},
		{"monitor", Warning, "`weft verify`, and the leader in the background, see whether the index changes while they compare"},
		{"maintenance", Note, "weft refreshes the index before it compares; without it a comparison may overlook documents written since the last refresh"},
		{"manage", Note, "weft creates the index and its alias, and `weft rebuild` replaces it; without it create both beforehand, and weft does not find a leader of another database that writes there"},
	}
}

// searchPrivileges returns those on the alias over the indexes of all shards, through which weft neither reads nor writes.
func searchPrivileges() []privilege {
	return []privilege{
		{"view_index_metadata", Error, "weft sees to it that searches find the documents of each shard once"},
		{"manage", Note, "weft lets the alias that is searched lead to the index of the shard, and `weft rebuild` moves it; without it create both beforehand"},
	}
}

// clusterPrivileges returns those on the cluster.
func clusterPrivileges() []privilege {
	return []privilege{
		{"monitor", Note, "`weft rebuild` waits for the copies of the new index, weft checks the server's version, and the doctor examines nodes and disks"},
	}
}

// question asks for privileges on names.
type question struct {
	names      []string
	privileges []privilege
}

// questions returns what weft has to be allowed for a target.
func (e *examination) questions(t target) []question {
	out := []question{{[]string{t.index, t.index + "-v*"}, indexPrivileges()}}
	if alias := e.Config.Elastic.SearchAlias; alias != "" {
		out = append(out, question{[]string{alias}, searchPrivileges()})
	}
	return out
}

// privileged is what the credentials may do.
type privileged struct {
	Cluster map[string]bool            `json:"cluster"`
	Index   map[string]map[string]bool `json:"index"`
}

// privileges asks the server's security, where it has one, what the credentials may do with the
// cluster and with the names of all targets.
func (e *examination) privileges(ctx context.Context, s *server, targets []target) error {
	var on []any
	for _, t := range targets {
		for _, q := range e.questions(t) {
			on = append(on, map[string]any{"names": q.names, "privileges": named(q.privileges)})
		}
	}
	asked, err := json.Marshal(map[string]any{"cluster": named(clusterPrivileges()), "index": on})
	if err != nil {
		return err
	}
	var has privileged
	err = s.ask(ctx, http.MethodPost, "/_security/user/_has_privileges", asked, &has)
	if err != nil {
		return insecure(err)
	}
	for _, t := range targets {
		for _, q := range e.questions(t) {
			for _, name := range q.names {
				e.lacks(has.Index[name], q.privileges, name, "privilege", func(missing string) string { return e.role(targets, has, t.index, missing) })
			}
		}
	}
	e.lacks(has.Cluster, clusterPrivileges(), s.url.Host, "cluster privilege", func(missing string) string { return e.role(targets, has, "", missing) })
	return nil
}

// insecure makes nothing of the answer of a server without security of Elasticsearch's kind.
func insecure(err error) error {
	if statusOf(err) != 0 || errors.Is(err, elastic.ErrProduct) {
		return nil
	}
	return err
}

// corrected is what to do where the credentials are refused.
func (e *examination) corrected() string {
	switch c := e.Config.Elastic; {
	case c.APIKey != "":
		return "correct elastic.api_key"
	case c.ServiceToken != "":
		return "correct elastic.service_token"
	case c.Username != "":
		return "correct elastic.username and elastic.password"
	default:
		return "correct elastic.username and elastic.password, elastic.api_key or elastic.service_token, or the user in elastic.url"
	}
}

// lacks names each of the privileges that the answer denies.
func (e *examination) lacks(has map[string]bool, privileges []privilege, on, kind string, remedy func(missing string) string) {
	for _, p := range privileges {
		if has, told := has[p.name]; told && !has {
			e.add("elastic.rights", p.severity, on, "the credentials lack the "+kind+" "+p.name+", with which "+p.purpose, remedy(p.name))
		}
	}
}

func named(privileges []privilege) (names []string) {
	for _, p := range privileges {
		names = append(names, p.name)
	}
	return names
}

// held returns the privileges of a role that has what the credentials have, what weft cannot do
// without, and the missing one.
func held(privileges []privilege, missing string, has ...map[string]bool) []string {
	return named(slices.DeleteFunc(privileges, func(p privilege) bool {
		return p.severity == Note && p.name != missing && !slices.ContainsFunc(has, func(has map[string]bool) bool { return has[p.name] })
	}))
}

// role returns what gives the credentials the missing privilege, on an index or, where that is empty,
// on the cluster, and takes none away: the request replaces the whole role, so it has all targets.
func (e *examination) role(targets []target, has privileged, index, missing string) string {
	type entry struct {
		Names      []string `json:"names"`
		Privileges []string `json:"privileges"`
	}
	var role struct {
		Cluster []string `json:"cluster,omitempty"`
		Indices []entry  `json:"indices"`
	}
	of := func(at string) string {
		if at == index {
			return missing
		}
		return ""
	}
	role.Cluster = held(clusterPrivileges(), of(""), has.Cluster)
	for _, t := range targets {
		var on []map[string]bool
		for _, q := range e.questions(t) {
			for _, name := range q.names {
				on = append(on, has.Index[name])
			}
		}
		role.Indices = append(role.Indices, entry{elastic.RoleNames(t.index, e.Config.Elastic.SearchAlias), held(indexPrivileges(), of(t.index), on...)})
	}
	body, err := json.Marshal(role)
	if err != nil {
		return err.Error()
	}
	switch c := e.Config.Elastic; {
	case c.APIKey != "":
		return `POST /_security/api_key {"name":"weft","role_descriptors":{"weft":` + string(body) + `}}; then set elastic.api_key to the new key: one keeps the privileges that it was made with`
	case c.ServiceToken != "":
		return "log in as a user, or with an API key: a service account has the privileges that Elasticsearch gives it. The role: " + string(body)
	default:
		return "PUT /_security/role/weft " + string(body) + "; it replaces the role of that name"
	}
}
