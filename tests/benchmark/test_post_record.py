"""``POST /record`` on PostgreSQL, beside a bare handler and beside AUDITOR's statements.

AUDITOR's statements (one transaction with one row per record, on ten connections) are replayed by pgbench into
AUDITOR's own table, which holds the same records as ours. That leaves out everything that AUDITOR does before it asks
the database: HTTP, JSON, logging. All ids are random, so that no index grows at its end only.
"""

import re
import subprocess
import sys
from collections.abc import Sequence
from typing import Final

import psycopg
import pytest

from tests.auditor_database import SCHEMA
from tests.benchmark.measured import Cost, Location, Running, counted, fill, ratio, server, table
from tests.benchmark.posting import CONNECTIONS, load

AUDITOR_CONNECTIONS: Final = 10

# The same records as in our table.
FILL: Final = """
INSERT INTO auditor_accounting (record_id, meta, components, start_time, stop_time, runtime, updated_at)
SELECT record_id, meta, document::jsonb -> 'components', start_time, stop_time, runtime, received_at
FROM auditord.records
"""

STATEMENTS: Final = """
\\set number random(1, 9223372036854775000)
BEGIN;
INSERT INTO auditor_accounting (record_id, meta, components, start_time, stop_time, runtime, updated_at)
VALUES ('pgbench-' || :number, :meta, :components, :start, :stop, 7200, now()) RETURNING id;
COMMIT;
"""

VALUES: Final = {
    "meta": '{"site_id":["site-3"],"group_id":["group-7"],"user_id":["user-77"]}',
    "components": '[{"name":"Cores","amount":8,"scores":[{"name":"HEPscore23","value":18.5}]},'
    '{"name":"Memory","amount":16384,"scores":[]}]',
    "start": "2024-02-03T04:05:06.079043Z",
    "stop": "2024-02-03T06:05:06Z",
}


def replay(location: Location, seconds: float, connections: int) -> float:
    """AUDITOR's transactions per second."""
    script = location.folder / "auditor.sql"
    script.write_text(STATEMENTS)
    values = [word for name, value in VALUES.items() for word in ("-D", f"{name}={value}")]
    options = ["-n", "-M", "prepared", "-c", str(connections), "-T", str(max(1, round(seconds)))]
    command = ["pgbench", *options, *values, "-f", str(script), "-d", location.url]
    done = subprocess.run(command, capture_output=True, text=True, timeout=seconds + 60, check=True)
    assert "number of failed transactions: 0 " in done.stdout, done.stdout
    found = re.search(r"tps = ([\d.]+)", done.stdout)
    assert found is not None, done.stdout
    return float(found[1])


def make_tables(location: Location, port: int, records: int) -> None:
    fill(port, records)
    with psycopg.connect(location.url, autocommit=True) as connection:
        connection.execute(SCHEMA)
        connection.execute(FILL)
        connection.execute("VACUUM ANALYZE auditor_accounting")
        connection.execute("VACUUM ANALYZE auditord.records")


def count_rows(location: Location) -> Sequence[int]:
    """Of our table and of AUDITOR's."""
    with psycopg.connect(location.url) as connection:
        found = connection.execute("SELECT (SELECT count(*) FROM auditord.records), count(*) FROM auditor_accounting")
        return found.fetchone() or ()


def measure(running: Running, records: int, rounds: int, seconds: float) -> str:
    """Rounds in turn, so that a busy machine disturbs each alike; what was acknowledged is stored."""
    costs: dict[str, list[Cost]] = {name: [] for name in ("bare", "lean", "record", "one", "auditor", "auditor-1")}
    location = running.location
    make_tables(location, running.ports["record"], records)
    before, _ = count_rows(location)
    for number in range(rounds):
        for name in ("bare", "lean", "record"):
            costs[name].append(post(running, name, number, seconds))
        costs["one"].append(post(running, "record", number, seconds, 1))
        for name, connections in (("auditor", AUDITOR_CONNECTIONS), ("auditor-1", 1)):
            with counted(location) as cost:
                rate, elapsed = replay(location, seconds, connections), max(1, round(seconds))
                costs[name].append(cost(round(rate * elapsed), elapsed))
    ours, theirs = count_rows(location)
    assert ours == before + sum(cost.records for cost in (*costs["record"], *costs["one"]))
    assert theirs > before
    return report(location, costs, before)


def post(running: Running, name: str, number: int, seconds: float, connections: int = CONNECTIONS) -> Cost:
    with counted(running.location, running.pid) as cost:
        result = load(running.ports[name], seconds, f"{name}-{number}", connections)
        assert not result["failures"]
        return cost(int(result["requests"]), result["requests"] / result["per_second"])


def report(location: Location, costs: dict[str, list[Cost]], records: int) -> str:
    record = costs["record"]
    return "\n".join(
        [
            (
                f"\nPOST /record at {CONNECTIONS} connections and at one, {records:,} records before; "
                f"{location.durability()}"
            ),
            *table(costs),
            ratio("record / bare", record, costs["bare"], 0.60),
            ratio("record / lean", record, costs["lean"], 0.60),
            ratio(f"record / AUDITOR's statements on {AUDITOR_CONNECTIONS} connections", record, costs["auditor"], 1.4),
            ratio("one connection / AUDITOR's statements on one", costs["one"], costs["auditor-1"]),
            "",
        ]
    )


@pytest.mark.benchmark
def test_post_record_beside_auditors_statements(durable_location: Location, capsys: pytest.CaptureFixture[str]) -> None:
    with server(durable_location) as running:
        text = measure(running, records=1_000_000, rounds=5, seconds=5)
    with capsys.disabled():
        sys.stdout.write(text)


def test_post_record_beside_auditors_statements_in_small(running_small: Running) -> None:
    text = measure(running_small, records=10_000, rounds=1, seconds=0.1)
    assert "fsync = on, synchronous_commit = on" in text
