"""A host with records and a lake, on which commands are run."""

import json
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

import anyio
from click.testing import CliRunner, Result

from auditord.cli import auditord
from auditord.store import Duplicates, Provenance
from auditord.store.opening import open_store
from auditord_hookspecs import Component, Record

START = datetime(2021, 1, 15, 12, tzinfo=UTC)
SITES = ("KIT", "a/b c", None)


def job(number: int) -> Record:
    start, site = START + timedelta(days=number), SITES[number % 3]
    meta: dict[str, tuple[str, ...]] | None = None if site is None else {"site_id": (site,), "user_id": ("u",)}
    return Record(f"job-{number}", start, (Component("Cores", number, ()),), start + timedelta(hours=2), meta)


RECORDS = [job(number) for number in range(90)]
CORES = sum(range(90))


async def fill(url: str, records: Sequence[Record]) -> None:
    async with open_store(url, counted_keys=()) as store:
        await store.add_all(records, Provenance(START), Duplicates.SAME_RUN, atomic=True)


class Host:
    """A host without a running daemon, whose record store is an SQLite file if nothing else is said."""

    def __init__(
        self, folder: Path, records: Sequence[Record] = RECORDS, store: str | None = None, **section: object
    ) -> None:
        self.folder = folder
        self.config = folder / "auditord.json"
        self._lake = {"enabled": True, "name": "kit", "keep_months": 6, **section}
        self.use(f"sqlite://{folder / 'records.db'}" if store is None else store)
        self.add(*records)

    def configure(self, **section: object) -> None:
        """Change options of the lake."""
        self._lake |= section
        self.use(self._store)

    def use(self, store: str) -> None:
        """Have another record store from now on."""
        self._store = store
        sections = {"state_dir": str(self.folder), "store": {"url": store}, "lake": self._lake}
        self.config.write_text(json.dumps(sections))

    def add(self, *records: Record) -> None:
        anyio.run(fill, self._store, records)

    def run(self, *arguments: str, fails: bool = False) -> Result:
        done = CliRunner().invoke(auditord, [*arguments, "--config", str(self.config)])
        assert (done.exit_code != 0) is fails, done.output
        return done


def ids(lines: str) -> Sequence[str]:
    return [json.loads(line)["record_id"] for line in lines.splitlines()]
