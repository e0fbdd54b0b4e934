"""enqueue and aenqueue on the real server."""

from __future__ import annotations

import asyncio
from enum import Enum, IntEnum
from uuid import UUID, uuid4

import psycopg
import pytest
from opentelemetry import trace
from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags, TraceState
from wordloom import Rows

from weft_outbox import Event, InvalidEvents, NotInTransaction, OutboxError
from weft_outbox.psycopg import aenqueue, enqueue


def events(n: int, version: int = 1) -> list[Event]:
    return [Event("book", uuid4(), "upsert", version) for _ in range(n)]


def test_event_is_written_as_weft_expects_it(conn: psycopg.Connection, rows: Rows) -> None:
    entity = uuid4()
    enqueue(conn, [Event("book", entity, "delete", 42, traceparent="00-a-b-01", tracestate="k=v")])
    conn.commit()
    [row] = rows()
    assert (row["entity_type"], row["entity_id"], row["op"], row["event_version"]) == ("book", entity, "delete", 42)
    assert (row["traceparent"], row["tracestate"]) == ("00-a-b-01", "k=v")
    assert (row["status"], row["attempts"], row["next_retry_at"]) == ("pending", 0, None)
    assert row["id"] not in (None, entity)
    assert row["created_at"] is not None and row["updated_at"] is not None


def test_rollback_leaves_nothing(conn: psycopg.Connection, rows: Rows) -> None:
    enqueue(conn, events(3))
    conn.rollback()
    assert rows() == []


def test_savepoint_takes_its_events_with_it(conn: psycopg.Connection, rows: Rows) -> None:
    kept, gone = events(1), events(2)
    with conn.transaction():
        enqueue(conn, kept)
        with conn.transaction(force_rollback=True):
            enqueue(conn, gone)
    assert [r["entity_id"] for r in rows()] == [kept[0].entity_id]


def test_ten_thousand_events_are_one_statement(conn: psycopg.Connection, rows: Rows) -> None:
    batch = events(10_000)
    enqueue(conn, batch)
    written = conn.execute(
        "select count(*), count(distinct xmin::text || cmin::text) from search_outbox_events"
    ).fetchone()
    conn.commit()
    assert written == (10_000, 1)
    assert {r["entity_id"] for r in rows()} == {e.entity_id for e in batch}


def test_no_events_are_no_statement(conn: psycopg.Connection) -> None:
    enqueue(conn, [])
    assert conn.info.transaction_status == psycopg.pq.TransactionStatus.IDLE


def test_invalid_event_sends_nothing(conn: psycopg.Connection) -> None:
    with pytest.raises(InvalidEvents, match="version -1"):
        enqueue(conn, [*events(1), Event("book", uuid4(), "upsert", -1)])
    assert conn.info.transaction_status == psycopg.pq.TransactionStatus.IDLE


def test_hostile_values_travel_as_parameters(conn: psycopg.Connection, rows: Rows) -> None:
    texts = ["'; drop table books; --", 'a"b', "50 %(ids)s", "a:ids", "{a,b}", "NULL", "\\", "📚", " ", "x" * 512]
    enqueue(conn, [Event("it's", t, "upsert", i, traceparent=t[:9]) for i, t in enumerate(texts)], "text_outbox_events")
    conn.commit()
    assert [(r["entity_id"], r["traceparent"]) for r in rows("text_outbox_events")] == [(t, t[:9]) for t in texts]


def test_keys_and_event_ids_are_numbers(conn: psycopg.Connection, rows: Rows) -> None:
    ids = [-(2**63), 0, 2**63 - 1]
    enqueue(conn, [Event("book", i, "upsert", v, id=i) for v, i in enumerate(ids)], "bigint_outbox_events")
    conn.commit()
    assert [(r["id"], r["entity_id"]) for r in rows("bigint_outbox_events")] == [(i, i) for i in ids]


def test_cursor_keeps_its_results(conn: psycopg.Connection, rows: Rows) -> None:
    cursor = conn.execute("select generate_series(1, 3)")
    enqueue(cursor, events(1))
    conn.commit()
    assert cursor.fetchall() == [(1,), (2,), (3,)]
    assert len(rows()) == 1


def test_other_cursor_factories_do_not_matter(db: str, rows: Rows) -> None:
    for factory in (psycopg.RawCursor, psycopg.ClientCursor):
        with psycopg.connect(db, cursor_factory=factory) as conn:
            enqueue(conn, events(1))
    assert len(rows()) == 2


def test_autocommit_outside_a_transaction_is_refused(db: str, rows: Rows) -> None:
    with psycopg.connect(db, autocommit=True) as conn:
        for on in (conn, conn.cursor()):
            with pytest.raises(NotInTransaction, match=r"autocommit mode.*conn\.transaction\(\)"):
                enqueue(on, events(1))
        with conn.transaction():
            enqueue(conn, events(1))
    assert len(rows()) == 1


def test_pipeline_is_waited_for(db: str, rows: Rows) -> None:
    with psycopg.connect(db, autocommit=True) as conn, conn.pipeline():
        with pytest.raises(NotInTransaction):
            enqueue(conn, events(1))
        with conn.transaction():
            enqueue(conn, events(1))
        conn.execute("alter table search_outbox_events add constraint none check (event_version < 5) not valid")
        with pytest.raises(psycopg.errors.CheckViolation), conn.transaction():
            enqueue(conn, events(1, version=5))
        conn.execute("alter table search_outbox_events drop constraint none")
    assert len(rows()) == 1


def test_rows_that_a_trigger_swallows_are_noticed(conn: psycopg.Connection) -> None:
    conn.execute(
        "create function pg_temp.swallow() returns trigger language plpgsql as "
        "$$ begin return case when new.event_version = 2 then null else new end; end $$"
    )
    conn.execute(
        "create trigger swallow before insert on search_outbox_events for each row execute function pg_temp.swallow()"
    )
    with pytest.raises(OutboxError, match="2 of 3 rows written: look for a trigger or a rule"):
        enqueue(conn, [*events(2), *events(1, version=2)])
    conn.rollback()


def test_errors_of_the_server_are_those_of_psycopg(conn: psycopg.Connection) -> None:
    with pytest.raises(psycopg.errors.UndefinedTable):
        enqueue(conn, events(1), "no_such_table")
    conn.rollback()
    with pytest.raises(psycopg.errors.DatatypeMismatch, match="entity_id"):
        enqueue(conn, [Event("book", 7, "upsert", 1)])
    conn.rollback()
    same = uuid4()
    with pytest.raises(psycopg.errors.UniqueViolation):
        enqueue(conn, [Event("book", uuid4(), "upsert", 1, id=same) for _ in range(2)])


def test_event_continues_the_current_span_unless_it_brings_its_own(conn: psycopg.Connection, rows: Rows) -> None:
    enqueue(conn, [Event("book", uuid4(), "upsert", 0)])
    span = SpanContext(0xA1, 0xB2, is_remote=False, trace_flags=TraceFlags(1), trace_state=TraceState([("k", "v")]))
    with trace.use_span(NonRecordingSpan(span)):
        for version, own in enumerate((None, "", "mine"), 1):
            enqueue(conn, [Event("book", uuid4(), "upsert", version, traceparent=own)])
        mixed = [
            Event("book", uuid4(), "upsert", 4),
            Event("book", uuid4(), "upsert", 5, traceparent="mine", tracestate="s=t"),
        ]
        enqueue(conn, mixed)
    conn.commit()
    current = (f"00-{0xA1:032x}-{0xB2:016x}-01", "k=v")
    none = (None, None)
    assert [(r["traceparent"], r["tracestate"]) for r in rows()] == [
        none, current, none, ("mine", None), current, ("mine", "s=t"),
    ]  # fmt: skip


def test_asynchronous_connection_does_the_same(db: str, rows: Rows) -> None:
    batch = events(3)

    async def run() -> None:
        async with await psycopg.AsyncConnection.connect(db) as conn:
            await aenqueue(conn, batch[:1])
            await aenqueue(conn.cursor(), batch[1:2])
            await aenqueue(conn, [])
            async with conn.transaction(force_rollback=True):
                await aenqueue(conn, events(1))
            await conn.commit()
            await aenqueue(conn, events(1))
            await conn.rollback()
        async with await psycopg.AsyncConnection.connect(db, autocommit=True) as conn:
            with pytest.raises(NotInTransaction):
                await aenqueue(conn, events(1))
            async with conn.pipeline(), conn.transaction():
                await aenqueue(conn, batch[2:])

    asyncio.run(run())
    assert {r["entity_id"] for r in rows()} == {e.entity_id for e in batch}


def test_members_of_enums_are_their_values(conn: psycopg.Connection, rows: Rows) -> None:
    class Kind(str, Enum):
        BOOK = "book"

    class Number(IntEnum):
        SEVEN = 7

    enqueue(conn, [Event(Kind.BOOK, Kind.BOOK, "upsert", 1), Event("book", "other", "upsert", 2)], "text_outbox_events")
    conn.commit()
    written = [(r["entity_type"], r["entity_id"]) for r in rows("text_outbox_events")]
    assert written == [("book", "book"), ("book", "other")]

    seven = Event("book", Number.SEVEN, "upsert", Number.SEVEN, id=Number.SEVEN)
    enqueue(conn, [seven, Event("book", 8, "upsert", 8, id=8)], "bigint_outbox_events")
    conn.commit()
    numbers = [(r["id"], r["entity_id"], r["event_version"]) for r in rows("bigint_outbox_events")]
    assert numbers == [(7, 7, 7), (8, 8, 8)]


def test_uuid_of_a_subclass_is_a_uuid(conn: psycopg.Connection, rows: Rows) -> None:
    class Other(UUID):
        """asyncpg returns such."""

    enqueue(conn, [Event("book", Other(int=5), "upsert", 1), Event("book", UUID(int=6), "upsert", 1)])
    conn.commit()
    assert {r["entity_id"] for r in rows()} == {UUID(int=5), UUID(int=6)}
