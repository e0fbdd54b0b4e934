"""From a session to a document, through bin/weft run and a real Elasticsearch."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from time import monotonic, sleep
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen
from uuid import uuid4

import pytest
from conftest import WEFT, env
from sqlalchemy import Engine
from sqlalchemy.orm import sessionmaker
from wordloom import DESCRIBE, SearchIndex

from weft_outbox.sqlalchemy import Outbox


@pytest.fixture
def index(db: str, tmp_path: Path) -> Iterator[str]:
    """Run weft on an index of its own and return the index's URL."""
    elastic, name = env("ELASTIC_URL").rstrip("/"), f"weft-test-python-{uuid4().hex[:12]}"
    settings = {"DATABASE_URL": db, "ELASTIC_INDEX": name, "OUTBOX_METRICS_PORT": "0"}
    with (tmp_path / "weft.log").open("w+") as log:
        process = subprocess.Popen([WEFT, "run"], env=os.environ | settings, stdout=log, stderr=log)
        try:
            yield f"{elastic}/{name}"
        finally:
            process.terminate()
            try:
                code = process.wait(30)
            finally:
                process.kill()  # does nothing to one that has ended
            log.seek(0)
            last = log.read()[-2000:]
            call(f"{elastic}/{name}-v1", "DELETE")
    assert code == 0, last


def call(url: str, method: str = "GET") -> dict[str, Any]:
    """Return the answer: also that nothing is there, or no shard of the index yet."""
    try:
        with urlopen(Request(url, method=method), timeout=10) as answer:
            return dict(json.load(answer))
    except HTTPError as refused:
        with refused:
            assert refused.code in (404, 503), refused.read()[:500]
            return dict(json.load(refused))


def await_document(url: str, version: int | None) -> dict[str, Any]:
    """Wait until the document has a version, or with None is gone."""
    deadline = monotonic() + 30
    while True:
        found = call(url)
        if found.get("_version") == version if version else found.get("found") is False:
            return found
        assert monotonic() < deadline, f"no version {version} in time, but {found}"
        sleep(0.05)


def test_change_arrives_as_document(engine: Engine, index: str) -> None:
    maker = sessionmaker(engine)
    Outbox(DESCRIBE).listen(maker)
    with maker() as session:
        row = SearchIndex(entity_type="book", entity_id=uuid4(), text="first")
        session.add(row)
        session.commit()
        document = f"{index}/_doc/book:{row.entity_id}"
        assert await_document(document, 1)["_source"]["text"] == "first"
        row.text = "second"
        session.commit()
        assert await_document(document, 2)["_source"]["text"] == "second"
        session.delete(row)
        session.commit()
        await_document(document, None)
