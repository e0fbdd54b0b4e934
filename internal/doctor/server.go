package doctor

import (
	"context"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/samuelhu324-dev/weft/internal/postgres"
)

// oldestPostgres is the first release whose server ends an idle session by itself.
const oldestPostgres = 140000

func (e *examination) version(ctx context.Context) error {
	var number int
	var text string
	err := e.Pool.QueryRow(ctx, "select current_setting('server_version_num')::int, current_setting('server_version')").Scan(&number, &text)
	if err == nil {
		e.versionIs(number, text)
	}
	return err
}

func (e *examination) versionIs(number int, text string) {
	if number < oldestPostgres {
		e.add("postgres.version", Error, "PostgreSQL "+text, "the server does not know idle_session_timeout: a frozen leader keeps its lock for ever", "upgrade to PostgreSQL 14 or newer")
	}
}

// readOnly finds what lets no session of the role begin a term: a replica, or settings with which the lock session
// is refused.
func (e *examination) readOnly(ctx context.Context) error {
	where := postgres.Address(&e.Pool.Config().ConnConfig.Config)
	var recovery bool
	if err := e.Pool.QueryRow(ctx, "select pg_is_in_recovery()").Scan(&recovery); err != nil {
		return err
	}
	if recovery {
		e.add("postgres.read_only", Error, where, "the server is a replica: it takes no lease",
			"let DATABASE_URL lead to the primary, as with target_session_attrs=read-write")
		return nil
	}
	rows, err := e.Pool.Query(ctx, `
select name, source, quote_ident(session_user), quote_ident(current_database()) from pg_settings
where (name, setting) in (('default_transaction_read_only', 'on'), ('session_replication_role', 'replica'))`)
	if err != nil {
		return err
	}
	var name, source, role, database string
	_, err = pgx.ForEachRow(rows, []any{&name, &source, &role, &database}, func() error {
		e.settingIs(where, name, source, role, database)
		return nil
	})
	return err
}

// settingIs names who set what lets nobody lead, by the source in pg_settings. A role's
// setting would beat the server's, and let weft write where the server's keeps writers out.
func (e *examination) settingIs(where, name, source, role, database string) {
	check, text, unless, server := "postgres.read_only", name+" is on for %s", "; unless it is to keep writers out",
		"ask who set it before you change it: it may keep writers out of an old server or off a full disk"
	if name == "session_replication_role" {
		check, text, unless, server = "postgres.triggers", name+" is replica for %s: triggers do not fire, so nobody can lead, and changes of tables make no events", ";",
			"alter system set "+name+" = origin; select pg_reload_conf(); where it is on the command line, start the server without it"
	}
	var on, remedy string
	switch source {
	case "database user":
		on = "role " + role + " in database " + database
	case "user":
		on = "role " + role
	case "database":
		on = "database " + database
	case "global":
		on = "role all"
	case "client":
		on, remedy = "this connection", "take it out of DATABASE_URL and PGOPTIONS"
	default:
		on, remedy = "the server ("+source+")", server
	}
	if remedy == "" {
		remedy = "alter " + on + " reset " + name + unless
	}
	e.add(check, Error, where, fmt.Sprintf(text, on), remedy)
}

// pooler asks one connection several times which backend answers. A pooler gives out a
// process id of its own for cancellations; in transaction mode the backends change, too.
func (e *examination) pooler(ctx context.Context) error {
	conn, err := e.Pool.Acquire(ctx)
	if err != nil {
		return err
	}
	defer conn.Release()
	announced := conn.Conn().PgConn().PID()
	var pids []uint32
	for range 5 {
		var pid uint32
		if err := conn.QueryRow(ctx, "select pg_backend_pid()").Scan(&pid); err != nil {
			return err
		}
		pids = append(pids, pid)
	}
	e.poolerAt(postgres.Address(&e.Pool.Config().ConnConfig.Config), announced, pids)
	return nil
}

func (e *examination) poolerAt(where string, announced uint32, pids []uint32) {
	const remedy = "let DATABASE_URL lead to PostgreSQL itself"
	switch {
	case len(slices.Compact(slices.Clone(pids))) > 1:
		e.add("postgres.pooler", Error, where, "a pooler in transaction mode stands in the way: the statements of one connection went to several backends, and a session's lock would be lost", remedy+", or use a pool in session mode")
	case !slices.Contains(pids, announced):
		e.add("postgres.pooler", Warning, where, "a pooler or proxy stands in the way: it may end the lock session when it is idle, or move it to another backend", remedy)
	}
}

// timeoutSettings lists what the role, the database or the server sets for the sessions of this role, of
// several settings of a name the one that counts.
const timeoutSettings = `
select distinct on (name) level, name, value, alone from (
  select case when s.setrole <> 0 and s.setdatabase <> 0 then 1 when s.setrole <> 0 then 2 when s.setdatabase <> 0 then 3 else 4 end,
         case when s.setrole = 0 and s.setdatabase = 0 then 'role all' when s.setrole = 0 then 'database ' || quote_ident(d.datname)
              when s.setdatabase = 0 then 'role ' || quote_ident(session_user)
              else 'role ' || quote_ident(session_user) || ' in database ' || quote_ident(d.datname) end,
         split_part(c, '=', 1), split_part(c, '=', 2), s.setrole <> 0
  from pg_db_role_setting s
  left join pg_database d on d.oid = s.setdatabase
  cross join unnest(s.setconfig) c
  where (s.setrole = 0 or s.setrole = (select oid from pg_roles where rolname = session_user)) and (s.setdatabase = 0 or d.datname = current_database())
  union all
  select 5, 'system', name, setting || coalesce(unit, ''), false from pg_settings where source = 'configuration file'
) s (rank, level, name, value, alone)
order by name, rank`

// endingTimeout ends transactions. What weft sets in its place is a parameter of a session's start, which a pooler may
// swallow; an idle_session_timeout it sets anew by a statement.
const endingTimeout = "idle_in_transaction_session_timeout"

// shortestTimeout is what a session of weft may need.
const shortestTimeout = 30 * time.Second

func (e *examination) timeouts(ctx context.Context) error {
	rows, err := e.Pool.Query(ctx, timeoutSettings)
	if err != nil {
		return err
	}
	var on, name, value string
	var alone bool // it is of this role and no other
	_, err = pgx.ForEachRow(rows, []any{&on, &name, &value, &alone}, func() error {
		limit, err := parseTimeout(value)
		if name != endingTimeout || err == nil && (limit <= 0 || limit >= shortestTimeout) {
			return nil
		}
		remedy := "alter " + on + " reset " + name + ";"
		if !alone { // others may need it
			remedy = "alter role " + pgx.Identifier{e.Pool.Config().ConnConfig.User}.Sanitize() + " set " + name + " = 0;"
		}
		e.add("postgres.timeouts", Warning, on, fmt.Sprintf("%s is %s: it ends transactions of weft behind a pooler that swallows weft's own setting", name, value), remedy)
		return nil
	})
	return err
}

// parseTimeout reads a setting of milliseconds, with or without a unit.
func parseTimeout(value string) (time.Duration, error) {
	value = strings.Trim(value, `"' `)
	if strings.Trim(value, "0123456789") == "" {
		value += "ms"
	}
	value = strings.NewReplacer("min", "m", "d", "0000h").Replace(strings.ReplaceAll(value, " ", "")) // 10,000 hours are long enough
	return time.ParseDuration(value)
}

func (e *examination) clock(ctx context.Context) error {
	v, err := postgres.ReadVitals(ctx, e.Pool)
	if err == nil {
		e.clockIs(v)
	}
	return err
}

func (e *examination) clockIs(v postgres.Vitals) {
	if d := v.ClockSkew.Abs() - v.Uncertain; d > e.skew {
		e.add("postgres.clock", Warning, postgres.Address(&e.Pool.Config().ConnConfig.Config),
			fmt.Sprintf("the database's clock and this host's differ by %.1f seconds: times in the log and in the tables do not fit", v.ClockSkew.Abs().Seconds()),
			"have both hosts follow NTP: `timedatectl set-ntp true`")
	}
}

func (e *examination) connections(ctx context.Context) error {
	var used, limit int
	// What kind another role's session is, only some may see; those that count have a role and a database.
	err := e.Pool.QueryRow(ctx, `
select (select count(*) from pg_stat_activity where coalesce(backend_type, 'client backend') = 'client backend' and usesysid is not null and datid is not null),
       current_setting('max_connections')::int - current_setting('superuser_reserved_connections')::int - coalesce(current_setting('reserved_connections', true)::int, 0)`).Scan(&used, &limit)
	if err == nil {
		e.connectionsAre(used, limit)
	}
	return err
}

func (e *examination) connectionsAre(used, limit int) {
	if left := limit - used; left < e.limits.connections {
		e.add("postgres.connections", Warning, "max_connections", fmt.Sprintf("%d of %d connections are in use: a standby that takes over may get none", used, limit),
			fmt.Sprintf("alter system set max_connections = %d; and restart the server, or end what does not need its connection", 2*limit))
	}
}

// idRange is how many transactions a database may be behind before Postgres refuses writes.
const idRange = math.MaxInt32 - 3_000_000

func (e *examination) ids(ctx context.Context) error {
	var database string
	var age int64
	var perSecond float64
	err := e.Pool.QueryRow(ctx, `
select quote_ident(d.datname), age(d.datfrozenxid)::bigint,
       (select sum(xact_commit + xact_rollback) / greatest(extract(epoch from now() - min(coalesce(stats_reset, pg_postmaster_start_time()))), 1) from pg_stat_database)::float8
from pg_database d where d.datname = current_database()`).Scan(&database, &age, &perSecond)
	if err == nil {
		e.idsAre(database, age, perSecond)
	}
	return err
}

func (e *examination) idsAre(database string, age int64, perSecond float64) {
	left := time.Duration(math.MaxInt64)
	if s := float64(idRange-age) / max(perSecond, 1e-6); s < math.MaxInt64/1e9 {
		left = time.Duration(s * 1e9)
	}
	if age < e.xids {
		return
	}
	severity := Warning
	if age > e.xids/2*3 {
		severity = Error
	}
	e.add("postgres.ids", severity, "database "+database, fmt.Sprintf("the oldest transaction id is %d transactions old; at %.0f a second Postgres stops taking writes in %s", age, perSecond, ago(left)),
		"vacuum (freeze, verbose); as its owner, after fixing what vacuum.held_back names")
}

func (e *examination) sequences(ctx context.Context) error {
	rows, err := e.Pool.Query(ctx, `
select quote_ident(sequencename), coalesce(last_value, 0), max_value from pg_sequences
where schemaname = current_schema() and increment_by > 0 and not cycle`)
	if err != nil {
		return err
	}
	var name string
	var last, limit int64
	_, err = pgx.ForEachRow(rows, []any{&name, &last, &limit}, func() error {
		if used := float64(last) / float64(limit); used > e.sequence {
			e.add("postgres.sequence", Warning, name, fmt.Sprintf("%.0f %% of its numbers are given out: %d are left, and then inserts fail", 100*used, limit-last),
				"alter sequence "+name+" as bigint; with alter table … alter column … type bigint, if the column is an integer")
		}
		return nil
	})
	return err
}

// postgresCertificate looks at the certificates of the connection: the server's, and ours.
func (e *examination) postgresCertificate(ctx context.Context) error {
	conn, err := e.Pool.Acquire(ctx)
	if err != nil {
		return err
	}
	defer conn.Release()
	e.expiringOf("postgres.certificate", postgres.Address(&e.Pool.Config().ConnConfig.Config), peers(conn.Conn().PgConn().Conn()))
	if own := e.Pool.Config().ConnConfig.TLSConfig; own != nil {
		for _, pair := range own.Certificates {
			e.expiringRaw("postgres.certificate", "client certificate for PostgreSQL", pair.Certificate)
		}
	}
	return nil
}
