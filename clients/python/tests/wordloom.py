"""An application like Wordloom: books with blocks, versioned by SQLAlchemy or by the server."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any
from uuid import UUID, uuid4

from sqlalchemy import BigInteger, ForeignKey, Sequence, Text, func
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column, relationship

from weft_outbox import Event, Op
from weft_outbox.sqlalchemy import Describe

Row = dict[str, Any]
Rows = Callable[..., list[Row]]


class Base(DeclarativeBase):
    pass


class Book(Base):
    __tablename__ = "books"
    id: Mapped[UUID] = mapped_column(primary_key=True, default=uuid4)
    title: Mapped[str]
    version: Mapped[int] = mapped_column(BigInteger)
    kind: Mapped[str] = mapped_column(default="book")
    blocks: Mapped[list[Block]] = relationship(back_populates="book", cascade="all, delete-orphan")
    __mapper_args__ = {"version_id_col": version, "polymorphic_on": "kind", "polymorphic_identity": "book"}


class Atlas(Book):
    __mapper_args__ = {"polymorphic_identity": "atlas"}


class Block(Base):
    __tablename__ = "blocks"
    id: Mapped[UUID] = mapped_column(primary_key=True, default=uuid4)
    book_id: Mapped[UUID] = mapped_column(ForeignKey("books.id"))
    text: Mapped[str] = mapped_column(Text)
    book: Mapped[Book] = relationship(back_populates="blocks")


class Counter(Base):
    """A row whose version the application raises itself, under a lock."""

    __tablename__ = "counters"
    id: Mapped[int] = mapped_column(BigInteger, primary_key=True)
    version: Mapped[int] = mapped_column(BigInteger)


class Shelf(Base):
    """A row whose version the server draws: it is known after the flush only."""

    __tablename__ = "shelves"
    id: Mapped[str] = mapped_column(Text, primary_key=True)
    name: Mapped[str]
    version: Mapped[int] = mapped_column(BigInteger, Sequence("shelf_version"), onupdate=func.nextval("shelf_version"))


class SearchIndex(Base):
    """Wordloom's table, which weft reads to make documents; bin/weft migrate has made it."""

    __tablename__ = "search_index"
    id: Mapped[UUID] = mapped_column(primary_key=True, default=uuid4)
    entity_type: Mapped[str]
    entity_id: Mapped[UUID]
    text: Mapped[str]
    created_at: Mapped[datetime] = mapped_column(default=func.now())
    updated_at: Mapped[datetime] = mapped_column(default=func.now(), onupdate=func.now())
    event_version: Mapped[int] = mapped_column(BigInteger)
    __mapper_args__ = {"version_id_col": event_version}


def book_event(book: Book, op: Op) -> Event:
    return Event("book", book.id, op, book.version + (op == "delete"))


def block_event(block: Block, op: Op) -> Event | None:
    """A block is part of its book's document; a book that is gone or has changed tells by itself."""
    return Event("book", block.book_id, "upsert", block.book.version) if block.book else None


def shelf_event(shelf: Shelf, op: Op) -> Event:
    return Event("shelf", shelf.id, op, shelf.version + (op == "delete"))


def counter_event(counter: Counter, op: Op) -> Event:
    return Event("counter", UUID(int=counter.id), op, counter.version + (op == "delete"))


def search_event(row: SearchIndex, op: Op) -> Event:
    return Event(row.entity_type, row.entity_id, op, row.event_version + (op == "delete"))


DESCRIBE: dict[type[Any], Describe] = {
    Book: book_event,
    Block: block_event,
    Counter: counter_event,
    SearchIndex: search_event,
}
