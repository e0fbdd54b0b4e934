"""The one statement that writes events, whatever the driver."""

from __future__ import annotations

import re
from collections.abc import Sequence
from uuid import uuid4

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
            "ids": _bindable([uuid4() if e.id is None else e.id for e in events]),
            "types": [e.entity_type for e in events],
            "entities": _bindable([e.entity_id for e in events]),
            "ops": [e.op for e in events],
            "versions": [e.version for e in events],
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


def _bindable(ids: Sequence[object]) -> Sequence[object]:
    """Return ids as every driver can bind them: a UUID as its text, which the statement casts."""
    return [i if isinstance(i, int) else str(i) for i in ids]
