"""Write events from sessions of SQLAlchemy 2."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from itertools import chain
from typing import Any

from sqlalchemy import Connection, event, inspect, text
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker
from sqlalchemy.orm import ORMExecuteState, Session, class_mapper, sessionmaker

from .event import Event, NotInTransaction, Op, OutboxError, validate
from .statement import TABLE, Insert, check_table

__all__ = ["Describe", "Outbox", "enqueue"]

Describe = Callable[[Any, Op], Event | None]

_REMEDY = "give the engine or the connection another isolation level than AUTOCOMMIT"


def enqueue(on: Session | Connection, events: Iterable[Event], table: str = TABLE) -> None:
    """Write events into table inside the transaction of a session or connection.

    For changes that no session sees, such as bulk statements. With an AsyncSession:
    ``await session.run_sync(enqueue, events)``. A session is not flushed.
    """
    check_table(table)
    batch = list(events)
    validate(table, batch)
    if batch:
        _send(on.connection() if isinstance(on, Session) else on, Insert(table, batch))


class Outbox:
    """Write one event for each entity that a flush touches, in the transaction of the flush.

    describe says for a mapped class and its subclasses which event an object makes once it was
    written ("upsert") or its row deleted ("delete"); None is no event. It is called after
    the flush, when versions from the server are known, and for deleted objects once before it as
    well, since their rows can be read only then. It must not change objects. The event
    need not be about the object itself: a child's describe can return its parent's event.
    Of several events of one entity in a flush the highest version is written.

    DELETE does not raise a version: add one to it, or the event is not larger than the last.

    Statements pass a session by. Those that insert, update or delete rows of a described class
    (``session.execute(update(Book)…)``) are refused; with
    ``execution_options={"weft_outbox": False}`` the caller writes their events with enqueue.
    Session.bulk_* methods and statements on tables are not seen.
    """

    def __init__(self, describe: Mapping[type[Any], Describe], table: str = TABLE) -> None:
        check_table(table)
        for cls in describe:
            class_mapper(cls, configure=False)  # raises for what is not mapped
        self._describe = dict(describe)
        self._table = table

    def listen(
        self,
        target: sessionmaker[Any] | type[Session] | Session | async_sessionmaker[Any] | AsyncSession,
    ) -> None:
        """Watch every session of target. Listening twice is listening once."""
        on: Any = target
        if isinstance(target, AsyncSession):
            on = target.sync_session
        elif isinstance(target, async_sessionmaker):
            # Without a class of its own the maker shares Session with the whole program.
            base = target.kw.get("sync_session_class") or target.class_.sync_session_class
            on = type(base.__name__, (base,), {})
            target.configure(sync_session_class=on)
        event.listen(on, "before_flush", self._before_flush)
        event.listen(on, "after_flush", self._collect)
        event.listen(on, "after_flush_postexec", self._write)
        event.listen(on, "do_orm_execute", self._refuse_statement)

    def _describer(self, cls: type[Any]) -> Describe | None:
        return next((self._describe[c] for c in cls.__mro__ if c in self._describe), None)

    def _before_flush(self, session: Session, context: object, instances: object) -> None:
        session.info.pop(self, None)  # what a flush that failed has left
        self._collect(session, context)
        for obj in session.deleted:
            if describe := self._describer(type(obj)):
                describe(obj, "delete")  # loads what it reads while the row is there

    def _collect(self, session: Session, context: object) -> None:
        """Note the objects of a flush: before it, when all changes are known, and after it for those
        that other listeners have added."""
        touched = session.info.setdefault(self, {})
        changed = (obj for obj in session.dirty if session.is_modified(obj))
        for obj in chain(session.new, session.deleted, changed):
            if self._describer(type(obj)):
                touched[id(obj)] = obj

    def _write(self, session: Session, context: object) -> None:
        """Write the events. Now an object's state tells its fate, that of an orphan, too."""
        batches: dict[Connection, list[Event]] = {}
        for obj in session.info.pop(self, {}).values():
            state = inspect(obj)
            describe = self._describer(type(obj))
            if describe is None or not (state.persistent or state.deleted):
                continue  # an object that was an orphan before it was inserted
            made = describe(obj, "delete" if state.deleted else "upsert")
            if made is not None:
                connection = session.connection(bind_arguments={"mapper": state.mapper})
                batches.setdefault(connection, []).append(made)
        for connection, events in batches.items():
            validate(self._table, events)
            _send(connection, Insert(self._table, _newest(events)))

    def _refuse_statement(self, state: ORMExecuteState) -> None:
        if not (state.is_insert or state.is_update or state.is_delete):
            return
        mapper = state.bind_mapper
        if mapper and self._describer(mapper.class_) and state.execution_options.get("weft_outbox", True):
            raise OutboxError(
                f"statement on {mapper.class_.__name__}: it would make no events in {self._table}: change objects, "
                'or write the events with enqueue and execute it with execution_options={"weft_outbox": False}'
            )


def _newest(events: Iterable[Event]) -> list[Event]:
    newest: dict[tuple[str, object], Event] = {}
    for e in events:
        known = newest.setdefault((e.entity_type, e.entity_id), e)
        if (e.version, e.op == "delete") > (known.version, known.op == "delete"):
            newest[e.entity_type, e.entity_id] = e
    return list(newest.values())


def _send(connection: Connection, insert: Insert) -> None:
    if getattr(connection.connection.dbapi_connection, "autocommit", False):
        raise NotInTransaction(insert.table, _REMEDY)
    result = connection.execute(text(insert.sql(":{}")), insert.parameters)
    insert.check(result.rowcount)
