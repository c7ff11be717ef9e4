"""One service for all tests of a file: starting its worker takes seconds."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient

from server.app import create_app
from tests.server.support import LOCAL


@pytest.fixture(scope="module")
def app(tmp_path_factory: pytest.TempPathFactory) -> FastAPI:
    folder = tmp_path_factory.mktemp("service")
    return create_app(folder / "data", timings=str(folder / "timings.db"), max_upload=1 << 20)


@pytest.fixture(scope="module")
def client(app: FastAPI) -> Iterator[TestClient]:
    with TestClient(app, base_url=LOCAL) as found:
        yield found
