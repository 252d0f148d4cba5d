"""``auditord waldur`` as a process of its own, over a real store and without a daemon."""

import os
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest

from auditord.store import Duplicates, Provenance
from auditord.store.opening import open_store
from auditord.testing import make_record
from tests.waldur_server import OFFERING, STAFF_TOKEN, TOKEN, FakeWaldur, fake_waldur

pytestmark = pytest.mark.anyio

JANUARY = datetime(2025, 1, 3, tzinfo=UTC)


async def installation(folder: Path, waldur: FakeWaldur) -> Path:
    """A configuration beside a store with one job of six hundred core hours."""
    state = folder / "state"
    state.mkdir()
    job = make_record("job-1", start=JANUARY, cores=600, account="acct1", user_id="alice")
    async with open_store(f"sqlite://{state}/records.db", counted_keys=()) as store:
        await store.add_all([job], Provenance(JANUARY, "test"), Duplicates.SAME_RUN, atomic=True)
    file = folder / "auditord.yml"
    file.write_text(f"""
state_dir: {state}
plugins:
  usage:
    kind: waldur
    waldur_api_url: {waldur.url}/api/
    waldur_api_token: {TOKEN}
    waldur_offering_uuid: {OFFERING}
    account_meta: account
    backend_components:
      cpu: {{unit_factor: 60000}}
""")
    return file


def auditord(config: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {"PATH": os.environ["PATH"], "HOME": str(config.parent), "WALDUR_USER_TOKEN": STAFF_TOKEN}
    return subprocess.run(
        [sys.executable, "-m", "auditord", "--config", config, "waldur", *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        env=environment,
    )


async def test_history_is_loaded(tmp_path: Path) -> None:
    with fake_waldur() as waldur:
        config = await installation(tmp_path, waldur)
        loaded = auditord(config, "load-history", "--start-date", "2025-01-01", "--end-date", "2025-02-01")
        assert loaded.returncode == 0, loaded.stderr
        assert "📤 Submitted usage for resource acct1: {'cpu': 0.60}" in loaded.stdout
        assert waldur.user_amounts("2025-01") == {("acct1", "cpu", "alice"): "0.60"}


async def test_a_report_of_nothing_has_an_exit_code_of_its_own(tmp_path: Path) -> None:
    with fake_waldur(resources={"new": ("", "OK")}) as waldur:
        config = await installation(tmp_path, waldur)
        reported = auditord(config, "report", "--once")
        assert reported.returncode == 4, reported.stderr
        assert "auditord: the offering has no resource with a backend_id: nothing was reported" in reported.stderr
