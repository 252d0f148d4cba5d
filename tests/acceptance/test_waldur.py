"""The real daemon reports to Waldur, is killed in the middle of a report, and reports the rest; figures explained."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import anyio
import pytest

from auditord.store import Duplicates, Provenance
from auditord.store.opening import open_store
from auditord.testing import make_record
from tests.waldur_server import OFFERING, RESET, TOKEN, FakeWaldur, fake_waldur

pytestmark = pytest.mark.anyio

NOW = datetime.now(UTC)
LAST_MONTH = (NOW.replace(day=1) - timedelta(days=1)).replace(day=3)
ENVIRONMENT = {name: value for name, value in os.environ.items() if not name.startswith("AUDITORD_")}
SET_USERS = "POST /api/marketplace-component-usages/"


@dataclass(frozen=True)
class Site:
    """A configuration with a store, and commands on it."""

    folder: Path

    async def begin(self, waldur: FakeWaldur) -> None:
        state = self.folder / "state"
        state.mkdir()
        jobs = [
            make_record("job-1", start=LAST_MONTH, cores=600, account="Acct1", user_id="alice"),
            make_record("job-2", start=LAST_MONTH, cores=1, account="acct1", user_id="nobody"),
            make_record("fresh", start=NOW - timedelta(minutes=90), cores=1, account="elsewhere", user_id="bob"),
        ]
        async with open_store(f"sqlite://{state / 'records.db'}", counted_keys=()) as store:
            await store.add_all(jobs, Provenance(NOW, "test"), Duplicates.SAME_RUN, atomic=True)
        usage = {
            "kind": "waldur",
            "run_at_start": True,
            "waldur_api_url": waldur.url,
            "waldur_api_token": TOKEN,
            "waldur_offering_uuid": str(OFFERING),
            "backend_components": {"cpu": {"unit_factor": 60}},
        }
        document = {"state_dir": str(state), "api": {"listen": ["127.0.0.1:0"]}, "plugins": {"usage": usage}}
        (self.folder / "auditord.yml").write_text(json.dumps(document))

    def command(self, *words: str) -> Sequence[str]:
        return [sys.executable, "-m", "auditord", "--config", str(self.folder / "auditord.yml"), *words]

    async def run(self, *words: str) -> "subprocess.CompletedProcess[bytes]":
        return await anyio.run_process(self.command(*words), check=False, env=ENVIRONMENT)


async def until_asked(waldur: FakeWaldur, beginning: str, times: int) -> None:
    with anyio.fail_after(60):
        while sum(asked.startswith(beginning) for asked in waldur.asked()) < times:  # noqa: ASYNC110 another thread's
            await anyio.sleep(0.02)


async def test_a_kill_in_the_middle_of_a_report_loses_nothing(tmp_path: Path) -> None:
    site, month = Site(tmp_path), f"{LAST_MONTH:%Y-%m}"
    with fake_waldur(now=NOW + timedelta(minutes=1), staff=True) as waldur:
        await site.begin(waldur)
        waldur.fail(SET_USERS, None, *[RESET] * 8)  # the total arrives, the amounts of its users do not
        async with await anyio.open_process(site.command("run"), stdout=None, stderr=None, env=ENVIRONMENT) as daemon:
            await until_asked(waldur, SET_USERS, 2)
            os.kill(daemon.pid, signal.SIGKILL)
            assert await daemon.wait() == -signal.SIGKILL
        assert waldur.totals(month) == {("acct1", "cpu"): "601.00"}
        assert waldur.user_amounts(month) == {}

        waldur.faults.clear()
        again = await site.run("waldur", "report", "--once")
        assert again.returncode == 0, again.stderr.decode()
        assert waldur.user_amounts(month) == {("acct1", "cpu", "alice"): "600.00", ("acct1", "cpu", "nobody"): "1.00"}

        explained = await site.run("waldur", "explain", "ACCT1", "alice", "--month", month)
        lines = explained.stdout.decode().splitlines()
        assert [line.split("\t")[0] for line in lines[:2]] == ["record", "job-1"]
        assert lines[-1] == f"{month}: 1 record: cpu 600.00"
