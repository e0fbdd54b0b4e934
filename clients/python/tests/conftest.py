"""A database of its own with weft's tables, made by bin/weft, and the application's beside them."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import psycopg
import pytest
from psycopg import sql
from psycopg.rows import dict_row
from sqlalchemy import URL, Engine, create_engine, make_url
from sqlalchemy.orm import Session
from wordloom import Base, Row, Rows

ROOT = Path(__file__).parents[3]
WEFT = ROOT / "bin" / "weft"


def env(name: str) -> str:
    """Return a variable that the tests cannot do without."""
    value = os.environ.get(name)
    if not value:
        pytest.exit(f"{name} is not set: run make test-python, or make stack-up first", returncode=2)
    return value


@pytest.fixture(scope="session")
def database() -> Iterator[str]:
    """Make a database with all migrations and return its URL."""
    if not WEFT.exists():
        pytest.exit(f"{WEFT} is missing: run make build", returncode=2)
    server = make_url(env("DATABASE_URL").replace("postgres://", "postgresql://", 1))
    name = f"weft_test_python_{uuid4().hex[:12]}"
    url = server.set(database=name).render_as_string(hide_password=False)
    with psycopg.connect(server.render_as_string(hide_password=False), autocommit=True) as admin:
        admin.execute(sql.SQL("create database {}").format(sql.Identifier(name)))
        try:
            weft("migrate", "up", DATABASE_URL=url)
            with psycopg.connect(url) as conn:
                for kind in ("bigint", "text"):
                    table = sql.Identifier(f"{kind}_outbox_events")
                    conn.execute(sql.SQL("create table {} (like search_outbox_events including all)").format(table))
                    conn.execute(
                        sql.SQL("alter table {} alter entity_id type {} using null").format(table, sql.SQL(kind))
                    )
                conn.execute("alter table bigint_outbox_events alter id drop default, alter id type bigint using null")
            engine = create_engine(psycopg_url(url))
            Base.metadata.create_all(engine)
            engine.dispose()
            yield url
        finally:
            admin.execute(sql.SQL("drop database {} with (force)").format(sql.Identifier(name)))


def weft(*args: str, **settings: str) -> None:
    """Run weft and wait for it."""
    done = subprocess.run([WEFT, *args], env=os.environ | settings, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, f"weft {' '.join(args)}: exit {done.returncode}\n{done.stderr[-2000:]}"


def psycopg_url(url: str) -> URL:
    return make_url(url).set(drivername="postgresql+psycopg")


@pytest.fixture
def db(database: str) -> str:
    """Return the URL of the database, its tables empty."""
    with psycopg.connect(database) as conn:
        conn.execute(
            "truncate search_outbox_events, bigint_outbox_events, text_outbox_events, search_index, "
            "blocks, books, shelves, counters"
        )
    return database


@pytest.fixture
def rows(db: str) -> Rows:
    """Return a function that reads the events that are committed, lowest version first."""

    def read(table: str = "search_outbox_events") -> list[Row]:
        with psycopg.connect(db, row_factory=dict_row) as conn:
            query = sql.SQL("select * from {} order by event_version, entity_type, id").format(sql.Identifier(table))
            return conn.execute(query).fetchall()

    return read


@pytest.fixture
def conn(db: str) -> Iterator[psycopg.Connection]:
    with psycopg.connect(db) as conn:
        yield conn


@pytest.fixture
def engine(db: str) -> Iterator[Engine]:
    engine = create_engine(psycopg_url(db))
    yield engine
    engine.dispose()


@pytest.fixture
def session(engine: Engine) -> Iterator[Session]:
    with Session(engine) as session:
        yield session
