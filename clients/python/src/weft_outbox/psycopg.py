"""Write events on a connection of psycopg 3."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import nullcontext
from typing import Any

from psycopg import AsyncConnection, AsyncCursor, Connection, Cursor
from psycopg.pq import PipelineStatus, TransactionStatus

from .event import Event, NotInTransaction, validate
from .statement import TABLE, Insert, check_table

__all__ = ["aenqueue", "enqueue"]

_REMEDY = "open one with conn.transaction() around the change and the event"


def enqueue(on: Connection[Any] | Cursor[Any], events: Iterable[Event], table: str = TABLE) -> None:
    """Write events into table inside the transaction of a connection, or of a cursor's connection.

    Both the changes and the events are committed, or neither. Invalid events are refused
    with InvalidEvents before anything is sent; errors of the server are psycopg's. The
    results of a cursor that is handed in stay as they are.
    """
    conn = on.connection if isinstance(on, Cursor) else on
    insert = _prepare(table, events)
    if insert is None:
        return
    # A nested pipeline waits for what was sent before it, and for this insert: only then
    # are the state of the transaction and the number of rows known.
    with conn.pipeline() if _pipelined(conn) else nullcontext():
        _check_transaction(conn, table)
        cursor = Cursor(conn)  # not the connection's factory, whose placeholders may differ
        cursor.execute(insert.sql("%({})s").encode(), insert.parameters)
    insert.check(cursor.rowcount)
    cursor.close()


async def aenqueue(on: AsyncConnection[Any] | AsyncCursor[Any], events: Iterable[Event], table: str = TABLE) -> None:
    """Do what enqueue does, on an asynchronous connection."""
    conn = on.connection if isinstance(on, AsyncCursor) else on
    insert = _prepare(table, events)
    if insert is None:
        return
    async with conn.pipeline() if _pipelined(conn) else nullcontext():
        _check_transaction(conn, table)
        cursor = AsyncCursor(conn)
        await cursor.execute(insert.sql("%({})s").encode(), insert.parameters)
    insert.check(cursor.rowcount)
    await cursor.close()


def _prepare(table: str, events: Iterable[Event]) -> Insert | None:
    check_table(table)
    batch = list(events)
    validate(table, batch)
    return Insert(table, batch) if batch else None


def _pipelined(conn: Connection[Any] | AsyncConnection[Any]) -> bool:
    return conn.info.pipeline_status != PipelineStatus.OFF


def _check_transaction(conn: Connection[Any] | AsyncConnection[Any], table: str) -> None:
    if conn.autocommit and conn.info.transaction_status == TransactionStatus.IDLE:
        raise NotInTransaction(table, _REMEDY)
