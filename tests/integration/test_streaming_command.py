"""Child processes that print more than fits into memory: what comes back, what kills them, what stays in memory."""

import resource
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import anyio
import pytest

from auditord.contexts.instances import CommandRunner
from auditord_hookspecs import CommandFailed
from tests.event_loops import anyio_backend as anyio_backend  # noqa: PLC0414 a fixture
from tests.integration.test_command import alive, pid_in, wait_until

pytestmark = pytest.mark.anyio

MINUTE = timedelta(minutes=1)
stream_command = CommandRunner().stream_command
MEBIBYTE = 2**20


async def read(pieces: list[bytes], *argv: str, timeout: timedelta = MINUTE, **options: Any) -> None:
    async with stream_command(argv, timeout=timeout, **options) as output:
        async for piece in output:
            pieces.append(piece)  # noqa: PERF401 what came before an error is looked at


async def pieces_of(*argv: str, **options: Any) -> Sequence[bytes]:
    pieces: list[bytes] = []
    await read(pieces, *argv, **options)
    return pieces


async def test_everything_arrives_in_order() -> None:
    pieces = await pieces_of("seq", "1000000")
    assert b"".join(pieces) == "".join(f"{number}\n" for number in range(1, 1_000_001)).encode()


async def test_nothing_at_all_is_no_fault() -> None:
    assert await pieces_of("true") == []


async def test_a_reader_that_takes_its_time_makes_the_child_wait() -> None:
    """A gigabyte goes through, and never more than some megabytes are here."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    size, largest = 0, 0
    async with stream_command(["head", "-c", "1G", "/dev/zero"], timeout=MINUTE) as output:
        async for piece in output:
            size, largest = size + len(piece), max(largest, len(piece))
            await anyio.lowlevel.checkpoint()
    assert size == 2**30
    assert largest < 8 * MEBIBYTE  # uvloop goes on reading for a while after it is told to pause
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 - before < 64 * MEBIBYTE


async def test_a_slow_reader_finds_no_more_than_some_megabytes() -> None:
    async with stream_command(["head", "-c", "16M", "/dev/zero"], timeout=MINUTE) as output:
        sizes: list[int] = []
        async for piece in output:
            sizes.append(len(piece))
            await anyio.sleep(0.1)  # in which the child would print all of it
    assert sum(sizes) == 16 * MEBIBYTE
    assert max(sizes) < 4 * MEBIBYTE


async def test_a_failure_comes_after_what_was_printed() -> None:
    pieces: list[bytes] = []
    with pytest.raises(CommandFailed, match="exit code 3: gone") as caught:
        await read(pieces, "sh", "-c", "echo one; echo gone >&2; exit 3")
    assert pieces == [b"one\n"]
    assert caught.value.exit_code == 3


async def test_last_words_can_be_read_after_success() -> None:
    async with stream_command(["sh", "-c", "echo careful >&2"], timeout=MINUTE) as output:
        assert [piece async for piece in output] == []
        assert output.stderr == b"careful\n"


async def test_silence_for_too_long_kills_the_whole_group(tmp_path: Path) -> None:
    script = f"echo partial; sleep 600 & echo $! > {tmp_path}/pid; wait"
    with pytest.raises(CommandFailed, match=r"killed after 0\.5 s without output") as caught:
        await pieces_of("sh", "-c", script, timeout=timedelta(seconds=0.5))
    assert caught.value.timed_out
    await wait_until(lambda: not alive(pid_in(tmp_path / "pid")))


async def test_too_much_output_kills_it() -> None:
    with pytest.raises(CommandFailed, match="more than 1000 bytes") as caught:
        await pieces_of("yes", max_output=1_000)
    assert caught.value.printed_too_much


async def test_leaving_early_leaves_no_orphan(tmp_path: Path) -> None:
    script = f"echo $$ > {tmp_path}/pid; exec yes"
    async with stream_command(["sh", "-c", script], timeout=MINUTE) as output:
        async for _ in output:
            break
    assert not alive(pid_in(tmp_path / "pid"))


async def test_a_background_child_that_holds_the_pipe_is_no_hindrance(tmp_path: Path) -> None:
    script = f"sleep 600 & echo $! > {tmp_path}/pid; echo done"
    try:
        assert b"".join(await pieces_of("sh", "-c", script)) == b"done\n"
    finally:
        await anyio.run_process(["kill", str(pid_in(tmp_path / "pid"))])
