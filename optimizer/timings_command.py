"""`egraft timings show|hash|export|import|merge|prune`."""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from graphs.errors import InvalidInput, InvalidOption, UnreadableFile
from graphs.wording import counted

from .commands import SQLITE, check_database, write_lines
from .number_text import device_words
from .places import check_place

if TYPE_CHECKING:
    from cost_model.timings import Timings

HERE = "here"
LONGEST_KEY = 72  # characters of a key on a line of `show`; `export` has them whole
IN_RECORDS = '"key": '  # in the line of a record, and in no other of an export


def open_database(file: Path | None) -> Timings:
    """The database that the user names, else the one of the cache."""
    from cost_model.timings import Timings

    check_database(file)
    return Timings(None if file is None else str(file))


def _place(file: Path | None) -> Path:
    """Where the database is that the user names, else the one of the cache."""
    from cost_model.timings import default_path

    check_database(file)
    return default_path() if file is None else file


def _require_whole(place: Path) -> None:
    """Looking at a damaged file does not set it aside, as the next run that measures does."""
    from cost_model.timings_file import is_database

    if not is_database(str(place)):
        raise InvalidInput(f"timings {place}", "the database is damaged",
                           "remove it; a run that measures sets it aside and begins a new one")


@contextmanager
def read_database(file: Path | None) -> Iterator[tuple[Timings, str]]:
    """The same to be read, and its name for people: a file that is not there is not made."""
    from cost_model.timings import Timings

    place = _place(file)
    if place.exists():
        _require_whole(place)
        with open_database(file) as timings:
            yield timings, str(place)
        return
    with tempfile.TemporaryDirectory(prefix="egraft-") as folder, Timings(str(Path(folder) / place.name)) as timings:
        yield timings, f"{place} (there is no such file yet)"


def show_command(file: Path | None, target: str | None, key: str | None) -> int:
    """A row for each target, device and kind of record; with `key`, the records whose key holds that text."""
    with read_database(file) as (timings, name):
        everything = list(timings.records())
        records = [record for record in everything if (key is None or key in record.key)
                   and (target is None or record.target == target)]
        if key is not None:
            for record in records:
                print(f"{record.target:18} {record.kind:8} {record.median:12.4g} +- {record.spread:<10.3g} "
                      f"{counted(len(record.samples), 'sample'):12} {record.fingerprint}  {_shortened(record.key)}")
        else:
            counts = Counter((record.target, record.fingerprint, record.kind) for record in records)
            own = _own_digests()
            for (of, digest, kind), count in sorted(counts.items()):
                mark = HERE if digest in own else "foreign"
                print(f"{of:18} {kind:8} {count:6}  {digest} {mark:8} {device_words(timings.fingerprint_text(digest))}")
        damaged = timings.damaged()
        if damaged:
            print(f"{counted(damaged, 'row')} damaged: misses, which `egraft timings prune` removes")
        shown = "" if key is None and target is None else f", {len(records)} of them shown"
        digest = timings.content_hash(everything=True)
        print(f"{name}: {counted(len(everything), 'record')}{shown}, hash of all {digest}")
    return 0


def _shortened(key: str) -> str:
    return key if len(key) <= LONGEST_KEY else f"{key[: LONGEST_KEY - 4]} ..."


def _own_digests() -> set[str]:
    """Fingerprints that are looked up on this machine."""
    from cost_model.fingerprint import numpy_cpu
    from cost_model.targets import all_targets
    from search.fusions.measure import fingerprint

    targets = [each.fingerprint.digest for each in all_targets() if each.available() is None]
    return {numpy_cpu().digest, fingerprint().digest, *targets}


def hash_command(file: Path | None) -> int:
    """SHA-256 of all records, whatever their order."""
    with read_database(file) as (timings, _):
        print(timings.content_hash(everything=True))
    return 0


def export_command(out: Path, file: Path | None) -> int:
    """All records as JSON lines; says how many went where."""
    check_place("the export", out)
    with read_database(file) as (timings, name):
        lines = list(timings.export_lines())
        write_lines(out, lines)
        print(f"{name}: {counted(sum(IN_RECORDS in line for line in lines), 'record')} written to {out}")
    return 0


def import_command(sources: Iterable[Path], file: Path | None) -> int:
    """Add what `export` wrote: all lines of a file or, where one of them is none, nothing of it."""
    with open_database(file) as timings:
        for source in sources:
            _require(source, "import")
            try:
                with source.open(encoding="utf-8") as lines:
                    added = timings.import_lines(lines)
            except UnicodeDecodeError:
                raise InvalidInput(f"timings import {source}", "not a text file",
                                   "give what `egraft timings export` wrote") from None
            except InvalidInput as error:
                raise InvalidInput(f"{source}: {error.where}", error.found, error.fix) from None
            print(f"{source}: {counted(added, 'record')} added")
    return 0


def merge_command(sources: Iterable[Path], file: Path | None) -> int:
    """Add the records of other databases, which are only read."""
    from cost_model.timings import Timings

    with open_database(file) as timings:
        for source in sources:
            _require(source, "merge")
            with source.open("rb") as head:
                if head.read(len(SQLITE)) != SQLITE:
                    raise InvalidInput(f"timings merge {source}", "not a timing database", "give a file of --timings")
            _require_whole(source)
            with Timings(str(source)) as other:
                other.writable = False
                print(f"{source}: {counted(timings.merge(other), 'record')} added")
    return 0


def _require(source: Path, action: str) -> None:
    if not source.is_file():
        raise UnreadableFile(f"timings {action} {source}", "it is no file", "check the path")


def prune_command(file: Path | None, days: float | None, devices: list[str], foreign: bool,
                  max_mib: float | None) -> int:
    """Remove records by age, by device and by size; damaged rows go too."""
    from .remembered import device_of

    place = _place(file)
    if not place.exists():
        raise UnreadableFile(f"timings prune {place}", "there is no such file", "check --timings")
    _require_whole(place)
    with open_database(file) as timings:
        known = {record.fingerprint for record in timings.records()}
        for digest in devices:
            if digest not in known:
                raise InvalidOption(f"--fingerprint {digest}", "the database has no records of this fingerprint",
                                    f"known: {', '.join(sorted(known)) or 'none'}")
        kept: Any = None
        if foreign:
            kept = _own_digests() - set(devices)
        elif devices:
            kept = known - set(devices)
        if days is None and kept is None and max_mib is None:
            raise InvalidOption("timings prune", "nothing says what to remove",
                                "give --days, --fingerprint, --foreign or --max-mib")
        removed = timings.prune(None if days is None else days * 86400.0, kept,
                                None if max_mib is None else int(max_mib * (1 << 20)), device_of)
        results = f", {counted(removed.documents, 'remembered result')} removed" if removed.documents else ""
        print(f"{counted(removed.records, 'record')} removed{results}")
    return 0
