"""The one statement that writes events, whatever the driver."""

from __future__ import annotations

import re
from collections.abc import Sequence
from uuid import UUID, uuid4

from .event import Event, OutboxError, kind_of
from .trace import current

TABLE = "search_outbox_events"

_COLUMNS = "id, entity_type, entity_id, op, event_version, traceparent, tracestate"


def check_table(table: str) -> None:
    """Raise ValueError for a name that cannot stand in the statement."""
    if not re.fullmatch(r"[a-z_][a-z0-9_]{0,62}", table):
        raise ValueError(f"table {table!r}: want a plain lower-case name")


class Insert:
    """The insert of valid events, at least one."""

    def __init__(self, table: str, events: Sequence[Event]) -> None:
        span = current()
        traces = [span if e.traceparent is None else (e.traceparent, e.tracestate or "") for e in events]
        self.table = table
        self.count = len(events)
        self.parameters = {
            "ids": [_bindable(uuid4() if e.id is None else e.id) for e in events],
            "types": [_bindable(e.entity_type) for e in events],
            "entities": [_bindable(e.entity_id) for e in events],
            "ops": [_bindable(e.op) for e in events],
            "versions": [_bindable(e.version) for e in events],
            "traceparents": [parent for parent, _ in traces],
            "tracestates": [state for _, state in traces],
        }
        row, entity = kind_of(events[0].id) or "uuid", kind_of(events[0].entity_id)
        self._types = (row, "text", entity, "text", "bigint", "text", "text")

    def sql(self, bind: str) -> str:
        """Return the statement; bind is how the driver spells a parameter, with {} for its name."""
        arrays = ", ".join(
            f"cast({bind.format(p)} as {t}[])" for p, t in zip(self.parameters, self._types, strict=True)
        )
        values = _COLUMNS.replace("traceparent, tracestate", "nullif(traceparent, ''), nullif(tracestate, '')")
        return (
            f"insert into {self.table} ({_COLUMNS}, created_at, updated_at) "
            f"select {values}, clock_timestamp(), clock_timestamp() from unnest({arrays}) as t({_COLUMNS})"
        )

    def check(self, written: int) -> None:
        """Raise OutboxError unless every event became a row."""
        if written != self.count:
            raise OutboxError(
                f"enqueue into {self.table}: {written} of {self.count} rows written: "
                "look for a trigger or a rule on the table"
            )


def _bindable(value: UUID | int | str) -> int | str:
    """Return a value as every driver can bind it: a UUID as its text, which the statement casts, and that of a
    subclass, such as a member of an enum, as a plain one, since an array has one type."""
    if isinstance(value, UUID):
        return str(value)
    return int(value) if isinstance(value, int) else str.__str__(value)
