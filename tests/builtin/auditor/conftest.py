"""The command in this process, with a configuration of its own; each way to AUDITOR's data as a test wants it."""

import json
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import anyio
import pytest
from click.testing import CliRunner, Result

from auditord.cli import auditord
from auditord.store import Action, Amended, Amendment, Provenance
from auditord.store.opening import open_store, open_store_for_reading
from auditord.testing.records import EPOCH
from auditord_hookspecs import Record, RecordQuery
from auditord_hookspecs.wire import decode_record, encode_record

PROVENANCE = Provenance(EPOCH, "task:test")


@dataclass(frozen=True)
class Target:
    """Our side: a record store, and the command that fills it.

    Args:
        folder: for state and configuration.
        url: of the store.
    """

    folder: Path
    url: str

    @property
    def config(self) -> Path:
        file = self.folder / "auditord.yml"
        file.write_text(json.dumps({"state_dir": str(self.folder / "state"), "store": {"url": self.url}}))
        return file

    def run(self, *words: object) -> Result:
        """``auditord import auditor``."""
        command = ["import", "auditor", *map(str, words), "--config", str(self.config)]
        ours = {name: None for name in os.environ if name.startswith("AUDITORD_")}  # the tests', not this command's
        return CliRunner(env={"HOME": str(self.folder), **ours}).invoke(auditord, command, prog_name="auditord")

    def stored(self) -> dict[str, Record]:
        async def work() -> dict[str, Record]:
            async with open_store_for_reading(self.url) as store, store.stream(RecordQuery()) as pages:
                records = [decode_record(text) async for page in pages for text in page]
            return {record.record_id: record for record in records}

        return anyio.run(work)

    def add(self, records: Sequence[Record]) -> None:
        """Put records into the store beforehand."""

        async def work() -> None:
            async with open_store(self.url, counted_keys=()) as store:
                for record in records:
                    await store.replace(record, PROVENANCE)

        anyio.run(work)

    def delete(self, record: Record) -> None:
        """Delete a record on purpose."""

        async def work() -> None:
            async with open_store(self.url, counted_keys=()) as store:
                amendment = Amendment(Action.DELETE, encode_record(record), None, "counted twice")
                assert await store.amend([amendment], PROVENANCE) == [Amended.DONE]

        anyio.run(work)

    def history(self, record_id: str) -> list[bytes]:
        """The versions of a record before each change on purpose."""

        async def work() -> list[bytes]:
            async with open_store_for_reading(self.url) as store:
                return [version.document for version in await store.history(record_id)]

        return anyio.run(work)

    def positions(self) -> list[Path]:
        return list((self.folder / "state" / "imports").glob("*.json"))


@pytest.fixture(params=["sqlite", "postgresql"])
def target(request: pytest.FixtureRequest, tmp_path: Path) -> Target:
    """Of each sort."""
    if request.param == "sqlite":
        return Target(tmp_path, f"sqlite://{tmp_path}/records.db")
    new: Callable[[], str] = request.getfixturevalue("new_postgres_url")
    return Target(tmp_path, new())


@pytest.fixture
def sqlite_target(tmp_path: Path) -> Target:
    return Target(tmp_path, f"sqlite://{tmp_path}/records.db")
