"""A hostile neighbour changes the folder between our system calls: no job is lost, no foreign file harmed."""

import os
import re
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import anyio
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec import Struct

from auditord.testing import FakeCollectorContext, make_record
from auditord_builtin.files.collecting import FILES
from auditord_builtin.files.reading import FilesConfig
from auditord_hookspecs import AuditordError, Produced
from auditord_hookspecs.folders import Folder, SharedFolder
from auditord_hookspecs.wire import encode_record

NOW: Final = datetime(2099, 1, 1, tzinfo=UTC)
MARK: Final = ".taken-0123456789abcdef-a.ndjson"
GIVEN_BACK: Final = "a.0123456789abcdef.ndjson"
NAMES: Final = (
    *(MARK, GIVEN_BACK, "a.ndjson") * 4,  # often, since faults need some of them together
    "b.jsonl",
    "a.1.ndjson",
    "june.2026.csv",
    ".taken-2026-june.csv",
    ".taken-",
    ".taken-.",
    f"{MARK[:-9]}..",
    ".a.ndjson.copy",
    ".a.ndjson.part",
    "done",
    "bad\udcff.ndjson",
    "n" * 190 + ".ndjson",
    "n" * 230 + ".ndjson",
)
ACTIONS: Final = (
    *("create",) * 4,
    "rename",
    "rename",
    "append",
    "link",
    "hard link",
    "foreign",
    "fifo",
    "folder",
    "mode",
)


class Act(Struct, frozen=True):
    """An action of the neighbour after a number of our system calls."""

    gap: int
    action: str
    name: str
    other: str


ACTS: Final = st.builds(Act, st.integers(0, 9), *map(st.sampled_from, (ACTIONS, NAMES, NAMES)))


class Neighbour:
    """A user of the folder who replaces or removes none of the files, so that a lost one would be our fault."""

    def __init__(self, drop: Path, foreign: Path, acts: list[Act]) -> None:
        self.drop, self.foreign = drop, foreign
        self.acts = acts[::-1]
        self.wait = self.jobs = 0

    def look(self) -> None:
        """Act if it is time to."""
        self.wait -= 1
        while self.acts and self.wait < 0:
            act = self.acts.pop()
            with suppress(FileExistsError, FileNotFoundError, IsADirectoryError, PermissionError):
                self.act(act, self.drop / act.name, self.drop / act.other)
            self.wait = self.acts[-1].gap if self.acts else 0

    def act(self, act: Act, path: Path, other: Path) -> None:
        match act.action:
            case "create":
                with path.open("x") as file:
                    file.write(self.some_jobs(1_100 if act.gap == 0 else 2, path.suffix))
            case "append" if path.is_file() and not path.is_symlink() and path.stat().st_nlink == 1:
                with path.open("a") as file:
                    file.write(self.some_jobs(1, ".ndjson"))
            case "rename" if not os.path.lexists(other):
                path.rename(other)
            case "link":
                path.symlink_to(self.foreign)
            case "hard link" if path.is_file() and not path.is_symlink():
                other.hardlink_to(path)
            case "foreign":
                path.hardlink_to(self.foreign)
            case "fifo":
                os.mkfifo(path)
            case "folder":
                path.mkdir()
            case "mode" if not path.is_symlink():
                path.chmod(0o600 if act.gap % 2 else 0o666)
            case _:
                pass

    def some_jobs(self, count: int, suffix: str) -> str:
        numbers = range(self.jobs, self.jobs + count)
        self.jobs += count
        if suffix == ".csv":
            return "record_id,start_time\n" + "".join(f"{number},2026-01-01T00:00:00Z\n" for number in numbers)
        return "".join(encode_record(make_record(str(number))).decode() + "\n" for number in numbers)


def _watched(neighbour: Neighbour, monkeypatch: pytest.MonkeyPatch) -> None:
    def watch(owner: type[Folder], name: str) -> None:
        original: Callable[..., Any] = getattr(owner, name)

        def call(folder: Folder, *args: Any) -> Any:
            if isinstance(folder, SharedFolder):
                neighbour.look()
            return original(folder, *args)

        monkeypatch.setattr(owner, name, call)

    for name in ("names", "status", "open_file", "remove", "_rename_new"):
        watch(Folder, name)


@settings(deadline=None, max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(acts=st.lists(ACTS, max_size=30), can_refuse=st.booleans())
@pytest.mark.timeout(300)
def test_no_job_is_lost_and_no_foreign_file_is_touched(
    tmp_path_factory: pytest.TempPathFactory, acts: list[Act], *, can_refuse: bool
) -> None:
    folder = tmp_path_factory.mktemp("site")
    with pytest.MonkeyPatch.context() as monkeypatch:
        if not can_refuse:
            monkeypatch.setattr("auditord_hookspecs.folders._LIBC", _WithoutRenameat2())
        anyio.run(_live_beside, folder, acts, monkeypatch)


class _WithoutRenameat2:
    """The C library of a system without the call, or a file system that does not support it."""


async def _live_beside(folder: Path, acts: list[Act], monkeypatch: pytest.MonkeyPatch) -> None:
    drop, state, foreign = folder / "drop", folder / "state", folder / "foreign"
    drop.mkdir()
    state.mkdir(mode=0o700)
    foreign.write_text("foreign\n")
    neighbour = Neighbour(drop, foreign, acts)
    _watched(neighbour, monkeypatch)
    context = FakeCollectorContext(moment=NOW, folder=state)
    config = FilesConfig(folder=drop)
    collected, error, runs, quiet = dict[str, bytes](), "", 0, 0
    while quiet < 2:  # the second run in which nothing happens has nothing to collect
        quiet += not neighbour.acts
        runs += 1
        assert runs < 200
        context.kept.clear()
        error = ""
        try:
            await context.keep(FILES.collect(config, context))
        except AuditordError as failed:
            error = str(failed)
        for batch in context.kept:
            for item in batch.records:
                record = item.record if isinstance(item, Produced) else item
                assert collected.setdefault(record.record_id, encode_record(record)) == encode_record(record)
        neighbour.look()
    assert foreign.read_text() == "foreign\n"
    texts = {path: path.read_text() for path in drop.iterdir() if path.is_file() and not path.is_symlink()}
    results = [path.read_text() for place in ("done", "failed") for path in (state / place).iterdir()]
    kept = _ids("".join((*texts.values(), *results)))
    assert {str(number) for number in range(neighbour.jobs)} <= collected.keys() | kept
    assert collected.keys() <= kept
    for path in texts:  # each file that is left is one that we leave on purpose, or is reported
        assert path.name.startswith(".") or repr(path.name)[1:-1] in error or path.name in error or len(path.name) > 200
    assert bool(error) == any(not path.name.startswith(".") for path in texts), error


def _ids(text: str) -> set[str]:
    return {found[1] or found[2] for found in re.finditer(r'"record_id":"(\d+)"|^(\d+),', text, re.MULTILINE)}
