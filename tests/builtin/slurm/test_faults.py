"""An sacct that is missing, hangs, fails, or prints garbage: real processes."""

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from auditord_builtin.slurm.config import SlurmConfig
from auditord_builtin.slurm.kinds import SLURM
from auditord_hookspecs import CommandFailed
from tests.real_context import RealContext

pytestmark = pytest.mark.anyio

NOW = datetime(2026, 3, 29, 12, tzinfo=UTC)


async def failure_of(sacct: str, **options: Any) -> str:
    chosen: dict[str, Any] = {"sacct": sacct, "earliest_datetime": NOW - timedelta(hours=1), **options}
    context = RealContext(moment=NOW)
    with pytest.raises(CommandFailed) as caught:
        await context.keep(SLURM.collect(SlurmConfig.model_validate(chosen), context))
    assert datetime.fromisoformat(context.checkpoint["until"]) == NOW - timedelta(hours=1)
    assert not any(batch.records or batch.quarantined or batch.seen for batch in context.kept)
    return str(caught.value)


def script(folder: Path, body: str) -> str:
    path = folder / "sacct"
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    return str(path)


async def test_missing(tmp_path: Path) -> None:
    assert "cannot start" in await failure_of(str(tmp_path / "sacct"))


async def test_hanging(tmp_path: Path) -> None:
    assert "was killed after 0.2 s" in await failure_of(script(tmp_path, "sleep 600"), sacct_timeout="200ms")


async def test_failing_with_its_last_words(tmp_path: Path) -> None:
    body = "echo 'sacct: error: Problem talking to the database' >&2; exit 1"
    assert "Problem talking to the database" in await failure_of(script(tmp_path, body))


async def test_failing_with_exit_code_0(tmp_path: Path) -> None:
    body = "echo 'sacct: error: Problem talking to the database' >&2"
    assert "Problem talking to the database" in await failure_of(script(tmp_path, body))


async def test_printing_garbage(tmp_path: Path) -> None:
    assert "not a table" in await failure_of(script(tmp_path, "echo 'Segmentation fault'"))


async def test_printing_without_end(tmp_path: Path) -> None:
    assert "printed more than 1000 bytes" in await failure_of(script(tmp_path, "yes"), sacct_max_output=1_000)


async def test_cut_off_in_the_middle_of_a_row(tmp_path: Path) -> None:
    body = 'for option; do case $option in --delimiter=*) d=${option#*=};; esac; done; printf "1${d}c1${d}COMPL"'
    assert "cut off" in await failure_of(script(tmp_path, body))


async def test_times_are_utc_and_lists_whole_also_in_the_shell_of_a_remote_host(tmp_path: Path) -> None:
    seen = tmp_path / "seen"
    body = f'echo "$TZ $SLURM_TIME_FORMAT $SLURM_BITSTR_LEN" >> {seen}'
    for through in ([], ["sh", "-c"]):
        context = RealContext(moment=NOW)
        config = SlurmConfig.model_validate({"sacct": script(tmp_path, body), "through": through, "overlap": "1h"})
        await context.keep(SLURM.collect(config, context))
        context.moment += timedelta(hours=1)
        await context.keep(SLURM.collect(config, context))
    assert seen.read_text() == "UTC %s 0\n" * 2
