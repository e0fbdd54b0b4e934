"""Events of an outbox, and the rules that they obey before anything is sent."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Literal
from uuid import UUID

Op = Literal["upsert", "delete"]

MAX_TYPE = 50  # characters of an entity type
MAX_ID = 2500  # bytes of a text id, which an index of PostgreSQL must hold
MAX_TRACE = 512  # bytes of a traceparent
_INT64 = 2**63
_SHOWN = 20  # faults in the text of an InvalidEvents


@dataclass(frozen=True, slots=True)
class Event:
    """An event to be written.

    entity_type and entity_id name the entity. All ids of one table are of the kind of
    their column: UUID, int for bigint, str for text. version is larger than that of every
    earlier event of the entity.
    """

    entity_type: str
    entity_id: UUID | int | str
    op: Op
    version: int
    _: KW_ONLY
    id: UUID | int | None = None  # of the row, never of the entity; None is a random UUID
    traceparent: str | None = None  # None is the current span's, "" is none
    tracestate: str | None = None  # goes with traceparent


class OutboxError(Exception):
    """An event cannot be written as it has to be; roll the transaction back."""


class InvalidEvents(OutboxError, ValueError):
    """Events break the rules. Nothing was sent; faults has all that is wrong."""

    def __init__(self, table: str, faults: Sequence[str]) -> None:
        self.faults = tuple(faults)
        lines = list(faults[:_SHOWN])
        if len(faults) > _SHOWN:
            lines.append(f"and {len(faults) - _SHOWN} more")
        super().__init__(f"enqueue into {table}: " + "\n".join(lines))


class NotInTransaction(OutboxError):
    """The connection commits each statement on its own, so the event would be parted from its change."""

    def __init__(self, table: str, remedy: str) -> None:
        super().__init__(f"enqueue into {table}: the connection is in autocommit mode, outside a transaction: {remedy}")


def kind_of(value: object) -> str | None:
    """Return the column type for an id, or None when there is none."""
    if isinstance(value, UUID):
        return "uuid"
    if isinstance(value, int) and not isinstance(value, bool):
        return "bigint"
    return "text" if isinstance(value, str) else None


def validate(table: str, events: Sequence[Event]) -> None:
    """Raise InvalidEvents with every fault of every event."""
    faults: list[str] = []
    for i, event in enumerate(events):
        own = [*_faults(event), *_stray_kinds(event, events[0])]
        if own:
            key = f"{event.entity_type}:{event.entity_id}"
            faults.append(f"event {i} of {key:.100}: " + "; ".join(own))
    if faults:
        raise InvalidEvents(table, faults)


def _faults(event: Event) -> Iterator[str]:
    if event.op not in ("upsert", "delete"):
        yield f"op {event.op!r}: want upsert or delete"
    yield from _text("entity type", event.entity_type)
    if isinstance(event.entity_type, str) and not 1 <= len(event.entity_type) <= MAX_TYPE:
        yield f"entity type of {len(event.entity_type)} characters: want 1 to {MAX_TYPE}"
    if event.entity_id == "" or event.entity_id == UUID(int=0):
        yield "entity id is zero"
    yield from _id("entity id", event.entity_id, "UUID, int or str")
    if event.id is not None:
        yield from _id("event id", event.id, "UUID or int")
        if isinstance(event.id, UUID) and event.id == event.entity_id:
            yield "event id equals the entity id: the row needs an id of its own"
    if kind_of(event.version) != "bigint":
        yield f"version is {_name(event.version)}: want int (is it set before the flush ends?)"
    elif not 0 <= event.version < _INT64:
        yield f"version {event.version}: want 0 to 2^63-1, as Elasticsearch does"
    if event.traceparent is not None:
        yield from _text("traceparent", event.traceparent, MAX_TRACE)
    if event.tracestate is not None:
        yield from _text("tracestate", event.tracestate)


def _id(what: str, value: object, want: str) -> Iterator[str]:
    kind = kind_of(value)
    if kind is None or (kind == "text" and "str" not in want):
        yield f"{what} is {_name(value)}: want {want}"
    elif kind == "text":
        yield from _text(what, value, MAX_ID)
    elif isinstance(value, int) and not -_INT64 <= value < _INT64:
        yield f"{what} {value}: want a whole number of 64 bits"


def _text(what: str, value: object, most: int | None = None) -> Iterator[str]:
    if not isinstance(value, str):
        yield f"{what} is {_name(value)}: want str"
        return
    if "\0" in value:
        yield f"{what} has a null byte, which Postgres cannot store"
    try:
        size = len(value.encode())
    except UnicodeEncodeError:
        yield f"{what} has half of a surrogate pair, which UTF-8 cannot carry"
        return
    if most is not None and size > most:
        yield f"{what} of {size} bytes: want at most {most}"


def _stray_kinds(event: Event, first: Event) -> Iterator[str]:
    for what, own, other in (
        ("entity id", kind_of(event.entity_id), kind_of(first.entity_id)),
        ("event id", kind_of(event.id) or "uuid", kind_of(first.id) or "uuid"),
    ):
        if own and other and own != other:
            yield f"{what} is of type {own}, that of the first event of type {other}: the column has one type"


def _name(value: object) -> str:
    return "None" if value is None else type(value).__name__
