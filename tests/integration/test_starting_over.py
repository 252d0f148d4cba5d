"""``restore --without-backup``: what is missing is made anew, and sources are read from the beginning."""

import json
import sys
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import anyio
import psycopg
import pytest
from click.testing import CliRunner

from auditord.backup.reach import SourceReach
from auditord.backup.restoring import RestoreRefused
from auditord.cli import auditord
from auditord.store.opening import open_store
from auditord.testing.daemon import running_daemon
from auditord_hookspecs import Reach, RecordQuery
from auditord_hookspecs.wire import decode_record, format_time

HOUR: Final = timedelta(hours=1)
FIRST: Final = datetime.now(UTC).replace(microsecond=0) - HOUR
SACCT: Final = Path(__file__).parents[1] / "many_jobs_sacct.py"
JOBS: Final = 40
"""So many jobs ended in the last hour."""


class Site:
    """A collector of a source that lists its jobs again, its store and its spool."""

    def __init__(self, folder: Path, url: str | None) -> None:
        self.folder, self.state = folder, folder / "state"
        self.url = url or f"sqlite://{self.state / 'records.db'}"
        sacct = [sys.executable, "-S", str(SACCT), str(JOBS), f"{FIRST.timestamp():.0f}", "3000"]
        self.collector: dict[str, Any] = {"kind": "slurm", "sacct": sacct, "meta": [], "interval": "1h", "lag": "0s"}
        self.collector["earliest_datetime"] = FIRST.isoformat()

    def run(self) -> list[str]:
        """The ids in the store after a daemon has run the collector."""
        sections = {"store": {"url": self.url}, "collectors": {"slurm": self.collector}}
        with running_daemon(self.folder, sections) as daemon:
            assert daemon.finish_run("slurm").error is None
        return anyio.run(self._stored)

    async def _stored(self) -> list[str]:
        async with open_store(self.url, counted_keys=()) as store, store.stream(RecordQuery()) as pages:
            return [decode_record(document).record_id async for page in pages for document in page]

    def start_over(self, code: int = 0) -> Any:  # Any: click's result
        """End of the command; the configuration is written as a daemon would read it."""
        document = {"state_dir": str(self.state), "store": {"url": self.url}, "collectors": {"slurm": self.collector}}
        file = self.folder / "auditord.yml"
        file.write_text(json.dumps(document))
        words = ["--config", str(file), "restore", "--without-backup"]
        ended = CliRunner().invoke(auditord, words)
        assert ended.exit_code == code, ended.output + repr(ended.exception)
        return ended

    def lose_store(self) -> None:
        if self.url.startswith("postgresql"):
            with psycopg.connect(self.url, autocommit=True) as connection:
                connection.execute("DROP SCHEMA auditord CASCADE")
        for path in self.state.glob("records.db*"):
            path.unlink()

    def lose_spool(self) -> None:
        for path in self.state.glob("spool.db*"):
            path.unlink()


@pytest.fixture(params=["sqlite", "postgresql"])
def site(request: pytest.FixtureRequest, tmp_path: Path) -> Site:
    return Site(tmp_path, None if request.param == "sqlite" else request.getfixturevalue("postgres_url"))


ALL: Final = sorted(f"slurm-{number}" for number in range(1, JOBS + 1))


@pytest.mark.parametrize(
    ("lose", "said"),
    [(Site.lose_store, "the record store was missing"), (Site.lose_spool, "the spool was missing")],
    ids=["store", "spool"],
)
def test_what_the_source_knows_comes_back_once(site: Site, lose: Callable[[Site], None], said: str) -> None:
    assert sorted(site.run()) == ALL
    lose(site)
    assert said in site.start_over().output
    assert sorted(site.run()) == ALL


def test_a_collector_that_would_begin_later_is_named_with_its_beginning(tmp_path: Path) -> None:
    site = Site(tmp_path, None)
    assert sorted(site.run()) == ALL
    del site.collector["earliest_datetime"]
    site.lose_store()
    refused = site.start_over(code=1)
    assert isinstance(refused.exception, RestoreRefused)
    assert f"collectors.slurm.earliest_datetime: {format_time(FIRST)}" in str(refused.exception)
    assert not (site.state / "records.db").exists()
    site.collector["earliest_datetime"] = FIRST.isoformat()
    site.start_over()
    assert sorted(site.run()) == ALL


def test_without_the_spool_the_last_record_says_how_far_it_had_come(tmp_path: Path) -> None:
    site = Site(tmp_path, None)
    site.run()
    del site.collector["earliest_datetime"]
    site.lose_spool()
    refused = site.start_over(code=1)
    assert "collectors.slurm.earliest_datetime: 2" in str(refused.exception)
    assert not (site.state / "spool.db").exists()


def test_a_pair_is_left_alone_and_so_is_nothing_at_all(tmp_path: Path) -> None:
    site = Site(tmp_path, None)
    site.state.mkdir()
    assert "record store and spool.db are both missing" in str(site.start_over(code=1).exception)
    site.run()
    assert "belong together" in str(site.start_over(code=1).exception)


NOW: Final = datetime(2026, 11, 22, tzinfo=UTC)


@pytest.mark.parametrize(
    ("reach", "warning"),
    [
        (SourceReach("a", Reach()), None),
        (SourceReach("a", Reach(remembers=NOW - HOUR)), None),
        (
            SourceReach("a", Reach(remembers=NOW + HOUR)),
            "a: its source no longer has jobs that ended before 2026",
        ),
        (SourceReach("a"), "a: its source cannot be read a second time"),
        (SourceReach("a", fault="sacct is away"), "a: its source does not answer"),
    ],
)
def test_what_cannot_be_collected_again_is_named(reach: SourceReach, warning: str | None) -> None:
    found = reach.warning(NOW)
    assert found == warning if warning is None else str(found).startswith(warning)
    assert reach.earliest_to_configure(NOW) is None


@pytest.mark.parametrize("words", [["--without-backup", "--force"], ["--without-backup", "."]])
def test_the_options_that_go_together(words: Sequence[str], tmp_path: Path) -> None:
    ended = CliRunner().invoke(auditord, ["--config", str(tmp_path / "auditord.yml"), "restore", *words])
    assert ended.exit_code == 2
