"""The snippets of the README run as they are printed."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
from sqlalchemy import Engine
from sqlalchemy.orm import Session, sessionmaker
from wordloom import Book, Rows

README = (Path(__file__).parents[1] / "README.md").read_text()


@pytest.fixture
def run(db: str, engine: Engine, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Return a function that executes the snippet with a text in it, in an application that has a book."""
    with Session(engine) as session:
        session.add(Book(title="Old"))
        session.commit()
    monkeypatch.setenv("DATABASE_URL", db)
    monkeypatch.setitem(sys.modules, "library", SimpleNamespace(Book=Book, sessions=sessionmaker(engine)))

    def execute(with_text: str) -> None:
        [code] = [s for s in re.findall(r"```python\n(.*?)```", README, re.DOTALL) if with_text in s]
        exec(compile(code, "README.md", "exec"), {})

    return execute


def test_snippet_for_psycopg(run: Callable[[str], None], rows: Rows, session: Session) -> None:
    run("psycopg.connect")
    book = session.query(Book).one()
    assert (book.title, book.version) == ("New", 2)
    assert [(r["entity_id"], r["event_version"]) for r in rows()] == [(book.id, 2)]


def test_snippet_for_sqlalchemy(run: Callable[[str], None], rows: Rows, session: Session) -> None:
    run("Outbox({Book")
    book = session.query(Book).filter_by(title="New").one()
    assert [(r["entity_type"], r["entity_id"], r["event_version"]) for r in rows()] == [("book", book.id, 1)]


def test_readme_is_short() -> None:
    assert len(README.split()) <= 250
