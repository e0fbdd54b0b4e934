"""What is refused before anything is sent, and how it is said."""

from __future__ import annotations

from typing import Any
from uuid import UUID, uuid4

import pytest

from weft_outbox import Event, InvalidEvents
from weft_outbox.event import validate
from weft_outbox.statement import Insert, check_table

GOOD: dict[str, Any] = {"entity_type": "book", "entity_id": UUID(int=7), "op": "upsert", "version": 1}


def faults(*events: Event) -> tuple[str, ...]:
    with pytest.raises(InvalidEvents) as caught:
        validate("t", events)
    return caught.value.faults


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"op": "UPSERT"}, "op 'UPSERT': want upsert or delete"),
        ({"op": None}, "op None: want upsert or delete"),
        ({"entity_type": ""}, "entity type of 0 characters: want 1 to 50"),
        ({"entity_type": "é" * 51}, "entity type of 51 characters: want 1 to 50"),
        ({"entity_type": "a\0b"}, "entity type has a null byte, which Postgres cannot store"),
        ({"entity_type": None}, "entity type is None: want str"),
        ({"entity_id": UUID(int=0)}, "entity id is zero"),
        ({"entity_id": ""}, "entity id is zero"),
        ({"entity_id": None}, "entity id is None: want UUID, int or str"),
        ({"entity_id": True}, "entity id is bool: want UUID, int or str"),
        ({"entity_id": 1.5}, "entity id is float: want UUID, int or str"),
        ({"entity_id": 2**63}, f"entity id {2**63}: want a whole number of 64 bits"),
        ({"entity_id": "é" * 1251}, "entity id of 2502 bytes: want at most 2500"),
        ({"entity_id": "a\0"}, "entity id has a null byte, which Postgres cannot store"),
        ({"entity_id": "\ud800"}, "entity id has half of a surrogate pair, which UTF-8 cannot carry"),
        ({"id": "x"}, "event id is str: want UUID or int"),
        ({"id": -(2**63) - 1}, f"event id {-(2**63) - 1}: want a whole number of 64 bits"),
        ({"id": UUID(int=7)}, "event id equals the entity id: the row needs an id of its own"),
        ({"version": -1}, "version -1: want 0 to 2^63-1, as Elasticsearch does"),
        ({"version": 2**63}, f"version {2**63}: want 0 to 2^63-1, as Elasticsearch does"),
        ({"version": None}, "version is None: want int (is it set before the flush ends?)"),
        ({"version": 1.0}, "version is float: want int (is it set before the flush ends?)"),
        ({"version": True}, "version is bool: want int (is it set before the flush ends?)"),
        ({"traceparent": "é" * 257}, "traceparent of 514 bytes: want at most 512"),
        ({"traceparent": b"00"}, "traceparent is bytes: want str"),
        ({"tracestate": "a\0"}, "tracestate has a null byte, which Postgres cannot store"),
    ],
)
def test_wrong_value_is_refused_with_one_fault(wrong: dict[str, Any], message: str) -> None:
    event = Event(**GOOD | wrong)
    key = f"{event.entity_type}:{event.entity_id}"
    assert faults(event) == (f"event 0 of {key[:100]}: {message}",)


@pytest.mark.parametrize(
    "limit",
    [
        {"entity_type": "é" * 50},
        {"entity_id": "é" * 256},
        {"entity_id": -(2**63)},
        {"entity_id": 0},
        {"entity_id": 7, "id": 7},
        {"version": 0},
        {"version": 2**63 - 1},
        {"traceparent": "x" * 512, "tracestate": ""},
    ],
)
def test_value_at_its_limit_is_taken(limit: dict[str, Any]) -> None:
    validate("t", [Event(**GOOD | limit)])


def test_all_faults_of_all_events_are_told_at_once() -> None:
    told = faults(
        Event("", UUID(int=7), "upsert", -1),
        Event("book", UUID(int=7), "upsert", 1),
        Event("book", 7, "upsert", 1, id=8),
    )
    assert told == (
        "event 0 of :00000000-0000-0000-0000-000000000007: entity type of 0 characters: want 1 to 50; "
        "version -1: want 0 to 2^63-1, as Elasticsearch does",
        "event 2 of book:7: "
        "entity id is of type bigint, that of the first event of type uuid: the column has one type; "
        "event id is of type bigint, that of the first event of type uuid: the column has one type",
    )


def test_text_of_many_faults_is_cut_and_the_list_is_whole() -> None:
    with pytest.raises(InvalidEvents) as caught:
        validate("t", [Event("book", i, "upsert", -1) for i in range(1000)])
    lines = str(caught.value).splitlines()
    assert lines[0].startswith("enqueue into t: event 0 of book:0: version -1")
    assert lines[20:] == ["and 980 more"]
    assert len(caught.value.faults) == 1000


@pytest.mark.parametrize("name", ["", "Events", "a b", "shop.events", 'a"b', "1a", "a;drop", "a\n", "a" * 64])
def test_table_name_that_is_not_plain_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="want a plain lower-case name"):
        check_table(name)


def test_statement_holds_no_values() -> None:
    first, second = (Insert("t", [Event("book", uuid4(), "upsert", v)]).sql("%({})s") for v in (1, 2))
    assert first == second
    assert "book" not in first
