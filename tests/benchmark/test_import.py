"""A million rows of AUDITOR's database are imported into PostgreSQL, beside psql's COPY of the result out and in.

By hand, with the figures shown: ``pytest -m benchmark -s tests/benchmark/test_import.py``.
"""

import json
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Generator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import psycopg
import pytest

from tests.auditor_database import SCHEMA
from tests.postgres_server import NoServer, PostgresServer, migrate_database, own_server

SERVER: Final = ("-c", "shared_buffers=1GB", "-c", "max_wal_size=8GB", "-c", "checkpoint_timeout=30min")
"""One that keeps what it has committed."""

# Finished jobs as AUDITOR's Slurm collector writes them.
FILL: Final = """
INSERT INTO auditor_accounting (record_id, meta, components, start_time, stop_time, runtime, updated_at)
SELECT
    'slurm-cluster1-' || (4000000 + n),
    jsonb_build_object(
        'site_id', jsonb_build_array('site-1'), 'group_id', jsonb_build_array('group' || u %% 60),
        'user_id', jsonb_build_array('user' || u)
    ),
    jsonb_build_array(
        jsonb_build_object('name', 'Cores', 'amount', 1 << n %% 7, 'scores', jsonb_build_array(
            jsonb_build_object('name', 'HEPSPEC06', 'value', 9.2),
            jsonb_build_object('name', 'hepscore23', 'value', 15.5)
        )),
        jsonb_build_object('name', 'Memory', 'amount', 2000000000 + n, 'scores', '[]'::jsonb),
        jsonb_build_object('name', 'TotalCPU', 'amount', (1 + n::bigint * 104729 %% 200000) / 2, 'scores', '[]'::jsonb)
    ),
    timestamptz '2024-01-01T00:00:00Z' + n * interval '1.3 seconds',
    timestamptz '2024-01-01T00:00:00Z' + n * interval '1.3 seconds' + d * interval '1 second',
    d,
    now()
FROM (
    SELECT n, n::bigint * n %% 1999 AS u, 1 + n::bigint * 15485863 %% 200000 AS d FROM generate_series(1, %s) AS n
) AS jobs
"""

DIGEST: Final = "SELECT count(*), sum(hashtextextended(record_id || document, 0)) FROM auditord.records"


@dataclass(frozen=True)
class Measurements:
    rows: int
    copied: float
    imported: float
    compared: float
    cpu: float
    peak_kib: int

    def __str__(self) -> str:
        whole = self.imported + self.compared
        return (
            f"{self.rows} rows: psql's COPY out of our table and into it {self.copied:.1f} s; "
            f"imported in {self.imported:.1f} s ({self.imported / self.copied:.2f} x), compared in "
            f"{self.compared:.1f} s, together {whole:.1f} s ({whole / self.copied:.2f} x), with a kill in between; "
            f"{self.cpu / self.rows * 1e6:.0f} us of auditord's CPU per row, "
            f"{self.peak_kib / 1024:.0f} MiB of its memory at most"
        )


@pytest.fixture
def durable_server() -> Generator[PostgresServer, None, None]:
    try:
        with own_server(SERVER) as running:
            yield PostgresServer(running.url)
    except NoServer as error:
        pytest.skip(str(error))


class Case:
    def __init__(self, server: PostgresServer, folder: Path, rows: int) -> None:
        self.rows = rows
        self.folder = folder
        self.auditor, self.ours = server.create(), server.create()
        with psycopg.connect(self.auditor, autocommit=True) as connection:
            connection.execute(SCHEMA)
            connection.execute(FILL, (rows,))
            connection.execute("VACUUM ANALYZE auditor_accounting")
        migrate_database(self.ours)
        self.config = folder / "auditord.yml"
        self.config.write_text(json.dumps({"state_dir": str(folder / "state"), "store": {"url": self.ours}}))

    def command(self) -> list[str]:
        return [sys.executable, "-m", "auditord", "import", "auditor", self.auditor, "--config", str(self.config)]

    def environment(self) -> dict[str, str]:
        return {"PATH": os.environ["PATH"], "HOME": str(self.folder)}

    def stored(self) -> int:
        with psycopg.connect(self.ours) as connection:
            row = connection.execute("SELECT count(*) FROM auditord.records").fetchone()
            assert row is not None
            return int(row[0])

    def digest(self) -> object:
        with psycopg.connect(self.ours) as connection:
            return connection.execute(DIGEST).fetchone()

    def positions(self) -> list[Path]:
        return list((self.folder / "state" / "imports").glob("*.json"))


def run_until_killed(case: Case, part: float) -> float:
    """Kill an import once so much of it is stored; the seconds that it had."""
    began = time.monotonic()
    with (case.folder / "killed.log").open("wb") as log:
        process = subprocess.Popen(case.command(), env=case.environment(), stdout=log, stderr=log)
    while case.stored() < part * case.rows:
        assert process.poll() is None, (case.folder / "killed.log").read_text()
        assert time.monotonic() < began + 600
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.wait()
    return time.monotonic() - began


def run_to_its_end(case: Case) -> tuple[float, float, int, str]:
    """Seconds for what was left to import, and to compare; KiB of memory; what it said."""
    began = time.monotonic()
    log = case.folder / "log"
    with log.open("wb") as output:
        process = subprocess.Popen(case.command(), env=case.environment(), stdout=output, stderr=output)
    written, peak = began, 0
    while process.poll() is None:
        if written == began and any(b'"written":true' in each.read_bytes() for each in case.positions()):
            written = time.monotonic()
        peak = max(peak, memory(process.pid))
        time.sleep(0.02)
    ended = time.monotonic()
    assert process.returncode == 0, log.read_text()
    return written - began, ended - written, peak, log.read_text()


def memory(pid: int) -> int:
    """KiB of the most that it has had; 0 once it has ended."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith("VmHWM:")), 0)


def children_cpu() -> float:
    """Seconds of the processes that have ended."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def psql_copy(case: Case) -> float:
    """Seconds of psql's COPY of the same rows out of the table, and into it with its indexes, emptied between."""
    file = case.folder / "rows.copy"
    began = time.monotonic()
    psql(case, f"\\copy auditord.records to '{file}'")
    out = time.monotonic() - began
    psql(case, "TRUNCATE auditord.records, auditord.differences")
    began = time.monotonic()
    psql(case, f"\\copy auditord.records from '{file}'")
    return out + time.monotonic() - began


def psql(case: Case, command: str) -> None:
    subprocess.run(["psql", "-X", "-q", "-v", "ON_ERROR_STOP=1", "-c", command, case.ours], check=True)


def measure(server: PostgresServer, folder: Path, rows: int, killed_at: float) -> Measurements:
    case = Case(server, folder, rows)
    try:
        return measure_case(case, killed_at)
    finally:
        server.drop(case.auditor)
        server.drop(case.ours)


def measure_case(case: Case, killed_at: float) -> Measurements:
    rows = case.rows
    cpu = children_cpu()
    first = run_until_killed(case, killed_at)
    assert 0 < case.stored() < rows
    imported, compared, peak, said = run_to_its_end(case)
    cpu = children_cpu() - cpu
    assert f"{rows:,} are in the store, with equal times and content hashes" in said, said
    assert case.stored() == rows
    before = case.digest()
    copied = psql_copy(case)
    assert case.digest() == before
    return Measurements(rows, copied, first + imported, compared, cpu, peak)


def test_ten_thousand_rows_and_more_are_imported_over_a_kill(postgres_server: PostgresServer, tmp_path: Path) -> None:
    figures = measure(postgres_server, tmp_path, 15_000, 0.01)
    assert figures.peak_kib < 300 * 1024, figures


@pytest.mark.benchmark
def test_a_million_rows_beside_psql(durable_server: PostgresServer, tmp_path: Path) -> None:
    figures = measure(durable_server, tmp_path, 1_000_000, 0.4)
    print(f"\n{figures}")  # noqa: T201 the figures are what it is for
    assert figures.peak_kib < 300 * 1024, figures
