"""What is said of files that are no models."""

from __future__ import annotations

from pathlib import Path

import pytest

from graphs import load
from graphs.errors import EgraftError, InvalidModel, ParseError, UnreadableFile
from graphs.sniffing import SNIFFED, form_of, text_instead, why_no_model

MARKDOWN = b"# Title\n\ntitle is a program (see https://example.org).\n"
PAGE = b"\n<!DOCTYPE html>\n<html><head><title>404</title></head></html>\n"
POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a2146\nsize 12345\n"


@pytest.mark.parametrize(("content", "words"), [(MARKDOWN, "begins '# Title'"), (PAGE, "begins '<!DOCTYPE html>'"),
                                                (POINTER, "git lfs pull"), ("Ψ: 1".encode() * 30, "...'")])
@pytest.mark.parametrize("name", ["m.onnx", "README", "notes.md"])
def test_text_in_the_place_of_a_model_is_called_text(tmp_path: Path, content: bytes, words: str, name: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(InvalidModel) as caught:
        load(tmp_path / name)
    assert words in caught.value.found and "no ONNX model" in caught.value.found and name in caught.value.where
    assert words in str(why_no_model(tmp_path / name))  # a service refuses it by the same words
    with pytest.raises(InvalidModel, match="no ONNX model"):
        load(content)


def test_a_cut_character_at_the_end_of_what_is_looked_at_is_no_reason() -> None:
    assert text_instead(("x" * (SNIFFED - 1) + "Ψ").encode()[:SNIFFED]) is not None


@pytest.mark.parametrize("content", [b"", b"\x08\x07\x12\x00", b"abc\x00def", bytes(range(128, 160)), b" \n\n "])
def test_what_is_no_text_is_not_called_text(content: bytes) -> None:
    assert text_instead(content) is None


@pytest.mark.parametrize("content", [MARKDOWN, b"", b"# a remark and nothing else\n", b"graphic"])
def test_notes_are_no_graph_in_the_text_form(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "notes.txt").write_bytes(content)
    with pytest.raises(ParseError, match="begins with `graph`") as caught:
        load(tmp_path / "notes.txt")
    assert caught.value.where == str(tmp_path / "notes.txt")


@pytest.mark.parametrize(("start", "form"), [
    (b"# a\n#b\n graph \"g\" opset 17 () -> (y) {}", "text"), (b"\xef\xbb\xbfgraph(", "text"),
    (b"graph opset", "text"),
    (b"\xef\xbb\xbf {", "json"),
    (b"#" + b"c" * SNIFFED, "text"), (MARKDOWN, "onnx"), (b"graphs", "onnx"), (b"", "onnx"),
])  # fmt: skip
def test_the_form_of_a_file_without_a_telling_suffix(start: bytes, form: str) -> None:
    assert form_of(start[:SNIFFED]) == form


def test_a_file_that_is_not_there_has_a_code_of_its_own(tmp_path: Path) -> None:
    for name in ("m.onnx", "m.json", "m.txt", "m"):
        with pytest.raises(EgraftError, match="No such file") as caught:
            load(tmp_path / name)
        assert type(caught.value) is UnreadableFile and caught.value.problem()["code"] == "unreadable-file"
