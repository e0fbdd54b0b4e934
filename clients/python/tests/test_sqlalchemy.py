"""The session hook on the real server."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from uuid import UUID, uuid4

import pytest
from sqlalchemy import Engine, delete, event, insert, make_url, text, update
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker, create_async_engine
from sqlalchemy.orm import Session, defer, scoped_session, sessionmaker
from wordloom import DESCRIBE, Atlas, Block, Book, Counter, Rows, Shelf, book_event, shelf_event

from weft_outbox import Event, InvalidEvents, NotInTransaction, Op, OutboxError
from weft_outbox.sqlalchemy import Outbox, enqueue

Told = list[tuple[UUID, str, int]]


@pytest.fixture
def session(session: Session) -> Iterator[Session]:
    Outbox(DESCRIBE).listen(session)
    yield session


def told(rows: Rows) -> Told:
    return [(r["entity_id"], r["op"], r["event_version"]) for r in rows()]


def test_each_flush_writes_one_event_of_a_touched_entity(session: Session, rows: Rows) -> None:
    book, other = Book(title="a"), Book(title="other")
    session.add_all([book, other])
    session.commit()
    book.title = "b"
    session.flush()
    book.title = "c"
    session.commit()
    session.delete(book)
    session.commit()
    assert told(rows)[2:] == [(book.id, "upsert", 2), (book.id, "upsert", 3), (book.id, "delete", 4)]
    assert sorted(told(rows)[:2]) == sorted([(book.id, "upsert", 1), (other.id, "upsert", 1)])


def test_object_without_a_change_makes_no_event(session: Session, rows: Rows) -> None:
    book = Book(title="a")
    session.add(book)
    session.commit()
    book.title = book.title
    session.add(Atlas(title="makes the flush happen"))
    session.commit()
    assert [e for e in told(rows) if e[0] == book.id] == [(book.id, "upsert", 1)]


def test_rollback_leaves_nothing(session: Session, rows: Rows) -> None:
    session.add(Book(title="a"))
    session.flush()
    session.rollback()
    session.add(kept := Book(title="b"))
    session.commit()
    assert told(rows) == [(kept.id, "upsert", 1)]


def test_savepoint_takes_its_events_with_it(session: Session, rows: Rows) -> None:
    session.add(book := Book(title="a"))
    session.flush()
    nested = session.begin_nested()
    book.title = "b"
    session.add(Book(title="gone"))
    session.flush()
    nested.rollback()
    with session.begin_nested():
        book.title = "c"
    session.commit()
    assert told(rows) == [(book.id, "upsert", 1), (book.id, "upsert", 2)]


def test_flush_that_fails_leaves_nothing_for_the_next(session: Session, rows: Rows) -> None:
    session.add(book := Book(title="a"))
    session.commit()
    book.title = "b"
    session.add(Block(text="its book is missing", book_id=uuid4()))
    with pytest.raises(IntegrityError):
        session.flush()
    session.rollback()
    session.add(other := Book(title="c"))
    session.commit()
    assert sorted(told(rows)) == sorted([(book.id, "upsert", 1), (other.id, "upsert", 1)])


def test_deleted_object_is_read_before_its_row_is_gone(session: Session, rows: Rows) -> None:
    session.add(Counter(id=1, version=5))
    session.commit()
    session.expunge_all()
    session.delete(session.get_one(Counter, 1, options=[defer(Counter.version)]))
    session.commit()
    assert told(rows) == [(UUID(int=1), "upsert", 5), (UUID(int=1), "delete", 6)]


def test_children_tell_of_their_parent_once(session: Session, rows: Rows) -> None:
    book = Book(title="a", blocks=[Block(text=str(i)) for i in range(5)])
    session.add(book)
    session.commit()
    for block in book.blocks:
        block.text += "!"
    book.title += "!"  # raises the version, under the lock of the row
    session.commit()
    assert told(rows) == [(book.id, "upsert", 1), (book.id, "upsert", 2)]
    session.delete(book.blocks[0])
    session.delete(book)
    session.commit()
    assert told(rows)[2:] == [(book.id, "delete", 3)]


def test_deleted_child_tells_of_a_parent_that_was_not_loaded(session: Session, engine: Engine, rows: Rows) -> None:
    with Session(engine) as plain:
        plain.add(book := Book(title="a", blocks=[Block(text="x")]))
        plain.commit()
        id, block_id = book.id, book.blocks[0].id
    session.delete(session.get_one(Block, block_id))
    session.commit()
    assert told(rows) == [(id, "upsert", 1)]


def test_orphan_is_a_deleted_object(session: Session, rows: Rows) -> None:
    seen: list[tuple[str, Op]] = []

    def describe(block: Block, op: Op) -> Event:
        seen.append((block.text, op))
        return Event("block", block.id, op, 7)

    Outbox({Block: describe}).listen(session)
    book = Book(title="a", blocks=[Block(text="x"), Block(text="y")])
    session.add(book)
    session.commit()
    orphan = book.blocks.pop(0)
    seen.clear()
    session.commit()
    assert seen == [("x", "delete")]
    assert (orphan.id, "delete", 7) in told(rows)
    assert {r["entity_id"] for r in rows() if r["entity_type"] == "block"} == {orphan.id, book.blocks[0].id}


def test_version_of_the_server_is_read_after_the_flush(session: Session, rows: Rows) -> None:
    Outbox({Shelf: shelf_event}, table="text_outbox_events").listen(session)
    session.add(shelf := Shelf(id="a/b'c", name="a"))
    session.commit()
    shelf.name = "b"
    session.commit()
    versions = [r["event_version"] for r in rows("text_outbox_events")]
    assert versions == [shelf.version - 1, shelf.version]
    assert {r["entity_id"] for r in rows("text_outbox_events")} == {"a/b'c"}


def test_version_that_the_server_adds_up_is_read_after_the_flush(session: Session, rows: Rows) -> None:
    session.add(counter := Counter(id=1, version=5))
    session.commit()
    counter.version = Counter.version + 1
    session.commit()
    assert [e[2] for e in told(rows)] == [5, 6]


def test_describe_is_for_subclasses_and_may_say_none(session: Session, engine: Engine, rows: Rows) -> None:
    with Session(engine) as plain:
        Outbox({Book: lambda b, op: None if b.title == "draft" else book_event(b, op)}).listen(plain)
        plain.add_all([Book(title="draft"), atlas := Atlas(title="a")])
        plain.commit()
        assert told(rows) == [(atlas.id, "upsert", 1)]


def test_later_listener_has_the_last_word(session: Session, rows: Rows) -> None:
    @event.listens_for(session, "before_flush")
    def replace(session: Session, context: object, instances: object) -> None:
        for obj in list(session.new):
            if isinstance(obj, Book):
                session.expunge(obj)
                session.add(Atlas(id=UUID(int=9), title=obj.title))

    session.add(Book(title="a"))
    session.commit()
    assert told(rows) == [(UUID(int=9), "upsert", 1)]


def test_event_goes_to_the_database_of_its_entity(engine: Engine, rows: Rows) -> None:
    with Session(binds={Book: engine}) as session:
        Outbox(DESCRIBE).listen(session)
        session.add(Book(title="a"))
        session.commit()
    assert len(rows()) == 1


def test_invalid_event_fails_the_flush(engine: Engine, rows: Rows) -> None:
    with Session(engine) as session:
        Outbox({Book: lambda b, op: Event("", b.id, op, -1)}).listen(session)
        session.add_all([Book(title="a"), Book(title="b")])
        with pytest.raises(InvalidEvents, match="entity type of 0 characters") as caught:
            session.commit()
        assert len(caught.value.faults) == 2
        session.rollback()
        assert session.query(Book).count() == 0
    assert rows() == []


@pytest.mark.parametrize(
    "statement",
    [
        update(Book).values(title="x"),
        delete(Book),
        insert(Book).values(id=uuid4(), title="x", version=1),
        update(Atlas).values(title="x"),
    ],
    ids=["update", "delete", "insert", "subclass"],
)
def test_statement_on_a_described_class_is_refused(session: Session, statement: object) -> None:
    with pytest.raises(OutboxError, match=r"statement on (Book|Atlas): .*search_outbox_events: change objects, or"):
        session.execute(statement)  # type: ignore[call-overload]


def test_statement_whose_events_the_caller_writes_is_taken(session: Session, rows: Rows) -> None:
    session.add(book := Book(title="a"))
    session.flush()
    statement = update(Book).values(version=Book.version + 1).returning(Book.id, Book.version)
    changed = session.execute(statement, execution_options={"weft_outbox": False}).all()
    enqueue(session, [Event("book", id, "upsert", version) for id, version in changed])
    enqueue(session.connection(), [])
    session.commit()
    assert told(rows) == [(book.id, "upsert", 1), (book.id, "upsert", 2)]


def test_listening_twice_writes_once(engine: Engine, rows: Rows) -> None:
    class Own(Session):
        pass

    outbox = Outbox(DESCRIBE)
    maker = sessionmaker(engine)
    for target in (Own, maker, maker):
        outbox.listen(target)
    for open_session in (lambda: Own(engine), maker, scoped_session(maker)):
        with open_session() as session:
            session.add(Book(title="a"))
            session.commit()
    with Session(engine) as unheard:
        unheard.add(Book(title="a"))
        unheard.commit()
    assert len(rows()) == 3


def test_autocommit_is_refused(engine: Engine, rows: Rows) -> None:
    autocommit = Session(engine.execution_options(isolation_level="AUTOCOMMIT"))
    with autocommit, pytest.raises(NotInTransaction, match="another isolation level than AUTOCOMMIT"):
        enqueue(autocommit, [Event("book", uuid4(), "upsert", 1)])
    assert rows() == []


def test_rows_that_a_trigger_swallows_are_noticed(session: Session) -> None:
    session.execute(
        text("create function pg_temp.swallow() returns trigger language plpgsql as 'begin return null; end'")
    )
    session.execute(
        text(
            "create trigger swallow before insert on search_outbox_events "
            "for each row execute function pg_temp.swallow()"
        )
    )
    session.add(Book(title="a"))
    with pytest.raises(OutboxError, match="0 of 1 rows written: look for a trigger or a rule"):
        session.flush()
    session.rollback()


def test_class_that_is_not_mapped_is_refused() -> None:
    with pytest.raises(Exception, match="is not mapped"):
        Outbox({int: book_event})
    with pytest.raises(ValueError, match="want a plain lower-case name"):
        Outbox(DESCRIBE, table="Outbox")


def test_flush_of_many_objects_is_one_insert(session: Session, rows: Rows) -> None:
    session.add_all(Book(title=str(i)) for i in range(2000))
    session.flush()
    sent = session.scalar(text("select count(distinct cmin::text) from search_outbox_events"))
    session.commit()
    assert (sent, len(rows())) == (1, 2000)


@pytest.mark.parametrize("driver", ["psycopg", "asyncpg"])
def test_asynchronous_sessions_do_the_same(db: str, rows: Rows, driver: str) -> None:
    url = make_url(db)
    if driver == "asyncpg" and "sslmode" in url.query:
        url = url.update_query_dict({"ssl": url.query["sslmode"]}).difference_update_query(["sslmode"])

    async def run() -> Told:
        engine = create_async_engine(url.set(drivername=f"postgresql+{driver}"))
        maker, outbox = async_sessionmaker(engine, expire_on_commit=False), Outbox(DESCRIBE)
        outbox.listen(maker)
        outbox.listen(maker)
        async with maker() as session:
            session.add(book := Book(title="a"))
            await session.commit()
            savepoint = await session.begin_nested()
            session.add(Book(title="gone"))
            await session.flush()
            await savepoint.rollback()
            book.title = "b"
            await session.commit()
            await session.run_sync(enqueue, [Event("book", book.id, "delete", 9, traceparent="00-a-b-01")])
            await session.commit()
        async with AsyncSession(engine, expire_on_commit=False) as one:
            one.add(Book(title="not heard"))
            await one.commit()
            outbox.listen(one)
            one.add(other := Book(title="heard"))
            await one.commit()
        await engine.dispose()
        return [(book.id, "upsert", 1), (book.id, "upsert", 2), (book.id, "delete", 9), (other.id, "upsert", 1)]

    want = asyncio.run(run())
    assert sorted(told(rows)) == sorted(want)
