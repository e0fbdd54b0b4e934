"""Sessions that update one entity at the same time: versions grow in the order of commits."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from time import monotonic, sleep
from uuid import UUID

import pytest
from sqlalchemy import Engine, text
from sqlalchemy.orm import Session, sessionmaker
from sqlalchemy.orm.exc import StaleDataError
from wordloom import DESCRIBE, Book, Counter, Rows

from weft_outbox.sqlalchemy import Outbox


@pytest.fixture
def maker(engine: Engine) -> sessionmaker[Session]:
    maker = sessionmaker(engine)
    Outbox(DESCRIBE).listen(maker)
    return maker


def wait_for_lock(engine: Engine, waiting: Future[None]) -> None:
    """Wait until a session of this database waits for another's row."""
    query = text(
        "select count(*) from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'"
    )
    deadline = monotonic() + 20
    while True:
        with engine.connect() as conn:
            if conn.scalar(query):
                return
        assert not waiting.done() and monotonic() < deadline, "the second session did not wait"
        sleep(0.01)


def both(engine: Engine, maker: sessionmaker[Session], id: UUID, second: Callable[[], None]) -> None:
    """Change a book, and commit once second waits for its row."""
    with ThreadPoolExecutor(1) as pool, maker() as session:
        book = session.get_one(Book, id)
        book.title = "first"
        session.flush()
        waiting = pool.submit(second)
        try:
            wait_for_lock(engine, waiting)
        finally:
            session.commit()
        waiting.result(20)


def add(maker: sessionmaker[Session]) -> UUID:
    with maker() as session:
        session.add(book := Book(title="new"))
        session.commit()
        return book.id


def test_stale_update_leaves_no_event(engine: Engine, maker: sessionmaker[Session], rows: Rows) -> None:
    id = add(maker)
    with maker() as stale:
        book = stale.get_one(Book, id)

        def second() -> None:
            book.title = "second"
            with pytest.raises(StaleDataError):
                stale.commit()
            stale.rollback()
            book.title = "second, again"
            stale.commit()

        both(engine, maker, id, second)
    assert [(r["event_version"], r["op"]) for r in rows()] == [(1, "upsert"), (2, "upsert"), (3, "upsert")]


def test_locked_row_is_read_after_the_other_commit(engine: Engine, maker: sessionmaker[Session], rows: Rows) -> None:
    id = add(maker)

    def second() -> None:
        with maker() as session:
            book = session.get_one(Book, id, with_for_update=True)
            assert book.title == "first"
            book.title = "second"
            session.commit()

    both(engine, maker, id, second)
    assert [r["event_version"] for r in rows()] == [1, 2, 3]


def test_versions_of_many_writers_have_neither_gap_nor_double(maker: sessionmaker[Session], rows: Rows) -> None:
    with maker() as session:
        session.add(Counter(id=1, version=0))
        session.commit()

    def write(writer: int) -> None:
        for _ in range(25):
            with maker() as session:
                counter = session.get_one(Counter, 1, with_for_update=True)
                counter.version += 1
                session.commit()

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(write, range(4)))
    assert [r["event_version"] for r in rows()] == list(range(101))
