"""Problem documents name the fields of requests, not the options of the command line."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from fastapi.testclient import TestClient

from graphs.errors import EgraftError, FrozenMiss, InvalidModel, InvalidOption
from server.app import create_app
from tests.server.support import LOCAL, onnx_bytes, tiny


@pytest.fixture(scope="module")
def idle(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    with TestClient(create_app(tmp_path_factory.mktemp("idle"), workers=0), base_url=LOCAL) as found:
        yield found


@pytest.mark.parametrize(("field", "value"), [
    ("threads", "4000"), ("threads", "0"), ("effort", "heroic"), ("dim", "batch"), ("fix_dim", "n=0"),
    ("memory_limit", "much"), ("buckets", "n"), ("fix_dim", "n=1,n=2"),
])  # fmt: skip
def test_where_is_the_field_of_the_request(idle: TestClient, field: str, value: str) -> None:
    found = idle.post("/v1/jobs", content=onnx_bytes(), params={field: value}).json()
    assert found["code"] == "invalid-option"
    assert found["where"] in (field, f"{field}s")  # the table of `dim` is `dims`: both are taken
    assert not re.search(r"(?<!\w)--[a-z]", " ".join(str(found[key]) for key in ("where", "found", "fix", "detail")))
    again = idle.post("/v1/jobs", content=onnx_bytes(), params={found["where"]: value}).json()
    assert again["where"] == found["where"], "the name that the error gives is one that the request may have"


def test_text_without_a_name_is_called_text(idle: TestClient) -> None:
    found = idle.post("/v1/jobs", content=b"# Title\n\ntitle is a program.\n").json()
    assert found["code"] == "invalid-model" and "text and no ONNX model: it begins '# Title'" in found["found"]
    remark = idle.post("/v1/jobs", content=b"# a graph\n" + str(tiny()).encode()).json()
    assert remark["state"] == "queued" and remark["name"] == "model.txt"


@pytest.mark.parametrize(("error", "where", "found", "fix"), [
    (InvalidOption("--fix-dim seq=3", "no such name", "known: n"), "fix_dim", "seq=3: no such name", "known: n"),
    (InvalidOption("--target", "it runs nothing", "see egraft optimize --help"), "target", "it runs nothing",
     "see /docs"),
    (FrozenMiss("MatMul x--y", "no record", "run once without --frozen"), "MatMul x--y", "no record",
     "run once without frozen"),
    (InvalidModel("node '--x y'", "a-b", "c -- d"), "node '--x y'", "a-b", "c -- d"),
])  # fmt: skip
def test_words_of_the_command_line(error: EgraftError, where: str, found: str, fix: str) -> None:
    document = error.problem()
    assert (document["where"], document["found"], document["fix"]) == (where, found, fix)
    assert document["detail"] == f"{found}; {fix}"
