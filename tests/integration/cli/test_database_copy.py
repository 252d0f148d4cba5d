"""``auditord database copy``, as an operator types it."""

import json
from datetime import UTC, datetime
from pathlib import Path

import anyio
import pytest
from click.testing import CliRunner, Result

from auditord.cli import auditord
from auditord.errors import StateInUse
from auditord.spool import own
from auditord.store import Duplicates, Provenance
from auditord.store.copying import CopyRefused
from auditord.store.opening import open_store
from auditord_hookspecs import Record

START = datetime(2026, 1, 1, tzinfo=UTC)


def database(folder: Path, *words: str) -> Result:
    config = folder / "auditord.json"
    config.write_text(json.dumps({"state_dir": str(folder / "state")}))
    return CliRunner().invoke(auditord, ["--config", str(config), "database", *words])


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "state").mkdir()
    anyio.run(_put, f"sqlite://{tmp_path / 'state' / 'records.db'}")
    return tmp_path


async def _put(url: str) -> None:
    async with open_store(url, counted_keys=()) as store:
        for name in ("a", "b"):
            await store.add(Record(name, START, ()), Provenance(START), Duplicates.SAME_RUN)


def test_the_configured_store_is_copied_and_the_digest_is_the_same_both_ways(folder: Path) -> None:
    there = f"sqlite://{folder / 'there.db'}"
    copied = database(folder, "copy", "--to", there)
    assert (copied.exit_code, "2 records are in both stores (2 written now)" in copied.stdout) == (0, True), (
        copied.output
    )
    assert isinstance(database(folder, "copy", "--to", there).exception, CopyRefused)
    (folder / "state" / "records.db").unlink()
    back = database(folder, "copy", "--from", there)
    assert back.stdout == copied.stdout


def test_a_running_daemon_is_in_the_way(folder: Path) -> None:
    with own(folder / "state"):
        refused = database(folder, "copy", "--to", f"sqlite://{folder / 'there.db'}")
    assert isinstance(refused.exception, StateInUse)
    assert not (folder / "there.db").exists()


@pytest.mark.parametrize("ends", [(), ("--from", "sqlite:///a", "--to", "sqlite:///b")])
def test_one_end_is_said(folder: Path, ends: tuple[str, ...]) -> None:
    done = database(folder, "copy", *ends)
    assert (done.exit_code, "either --from or --to" in done.stderr) == (2, True)


def test_a_url_that_is_none(folder: Path) -> None:
    done = database(folder, "copy", "--to", "mysql://host/db")
    assert "neither sqlite:///" in str(done.exception)
