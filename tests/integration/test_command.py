"""Child processes: what comes back, what kills them, and that nothing stays behind."""

import os
import signal
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from pathlib import Path

import anyio
import pytest

from auditord.contexts.instances import INHERITED, CommandRunner, InstanceContext, child_environment, command_line
from auditord_hookspecs import CommandFailed
from tests.event_loops import anyio_backend as anyio_backend  # noqa: PLC0414 a fixture

MINUTE = timedelta(minutes=1)
run_command = CommandRunner().run_command


async def wait_until(condition: Callable[[], bool], seconds: float = 10) -> None:
    with anyio.fail_after(seconds):
        while not condition():  # noqa: ASYNC110 what another process does has no event
            await anyio.sleep(0.01)


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def pid_in(path: Path) -> int:
    return int(path.read_text())


@pytest.mark.anyio
async def test_bytes_and_last_words_come_back() -> None:
    result = await run_command(["sh", "-c", r"printf 'a\377|b\n'; echo careful >&2"], timeout=MINUTE)
    assert result.stdout == b"a\xff|b\n"
    assert result.stderr == b"careful\n"


@pytest.mark.anyio
async def test_no_shell_reads_the_arguments() -> None:
    result = await run_command(["printf", "%s", "$HOME; `id` | cat"], timeout=MINUTE)
    assert result.stdout == b"$HOME; `id` | cat"


@pytest.mark.anyio
async def test_the_environment_is_minimal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AUDITORD_STORE__URL", "secret")
    result = await run_command(["env"], timeout=MINUTE, environment={"TZ": "UTC"})
    names = {line.split("=")[0] for line in result.stdout.decode().splitlines()}
    assert names - set(INHERITED) == {"TZ"}


@pytest.mark.anyio
async def test_variables_that_say_where_things_are_reach_the_child(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("CONDOR_CONFIG", "SLURM_CONF", "KUBECONFIG"):
        monkeypatch.setenv(name, f"/etc/{name}")
    result = await run_command(["env"], timeout=MINUTE)
    variables = dict(line.split("=", 1) for line in result.stdout.decode().splitlines())
    assert (variables["CONDOR_CONFIG"], variables["KUBECONFIG"]) == ("/etc/CONDOR_CONFIG", "/etc/KUBECONFIG")
    assert variables["SLURM_CONF"] == "/etc/SLURM_CONF"


@pytest.mark.anyio
async def test_an_instances_variables_come_before_the_daemons_and_after_the_collectors_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("CONDOR_CONFIG", "/etc/condor/condor_config")
    variables = {"CONDOR_CONFIG": "/etc/condor-ce/condor_config", "TZ": "Europe/Berlin"}
    context = InstanceContext("ce", "htcondor", datetime.now, variables)
    result = await context.run_command(["env"], timeout=MINUTE, environment={"TZ": "UTC"})
    lines = set(result.stdout.decode().splitlines())
    assert {"CONDOR_CONFIG=/etc/condor-ce/condor_config", "TZ=UTC"} <= lines
    far = await context.run_command(["env"], timeout=MINUTE, through=["sh", "-c"])
    assert "CONDOR_CONFIG=/etc/condor-ce/condor_config" in far.stdout.decode().splitlines()


@pytest.mark.anyio
async def test_a_failure_carries_the_exit_code_and_the_last_words() -> None:
    with pytest.raises(CommandFailed, match=r"^sh ended with exit code 3: no such; cluster \(`sh -c ") as caught:
        await run_command(["sh", "-c", "echo no such >&2; echo cluster >&2; exit 3"], timeout=MINUTE)
    assert (caught.value.exit_code, caught.value.stderr) == (3, "no such; cluster")


@pytest.mark.anyio
async def test_only_the_tail_of_endless_stderr_is_kept() -> None:
    with pytest.raises(CommandFailed) as caught:
        await run_command(["sh", "-c", "yes complaint | head -c 1000000 >&2; echo the end >&2; exit 1"], timeout=MINUTE)
    assert "complaint; the end (`sh -c " in str(caught.value)
    assert len(str(caught.value)) < 5_000


@pytest.mark.anyio
async def test_a_signal_is_named() -> None:
    with pytest.raises(CommandFailed, match="SIGSEGV") as caught:
        await run_command(["sh", "-c", "kill -SEGV $$"], timeout=MINUTE)
    assert caught.value.exit_code == -signal.SIGSEGV


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("program", "words"), [("no-such-sacct", "no program 'no-such-sacct'"), ("/etc/passwd", "Permission denied")]
)
async def test_a_program_that_cannot_start_is_named(program: str, words: str) -> None:
    with pytest.raises(CommandFailed, match=words):
        await run_command([program], timeout=MINUTE)


@pytest.mark.anyio
async def test_the_time_limit_kills_the_whole_group(tmp_path: Path) -> None:
    script = f"sleep 600 & echo $! > {tmp_path}/pid; echo partial; wait"
    with pytest.raises(CommandFailed, match=r"killed after 0\.5 s"):
        await run_command(["sh", "-c", script], timeout=timedelta(seconds=0.5))
    await wait_until(lambda: not alive(pid_in(tmp_path / "pid")))


@pytest.mark.anyio
async def test_a_child_that_ignores_term_is_killed(tmp_path: Path) -> None:
    script = f"trap '' TERM; echo $$ > {tmp_path}/pid; while :; do sleep 0.1; done"
    with pytest.raises(CommandFailed, match="killed after") as caught:
        await run_command(["sh", "-c", script], timeout=timedelta(seconds=0.5))
    assert (caught.value.exit_code, caught.value.timed_out) == (None, True)
    assert not alive(pid_in(tmp_path / "pid"))


@pytest.mark.anyio
async def test_too_much_output_kills_it() -> None:
    with pytest.raises(CommandFailed, match="more than 1000 bytes"):
        await run_command(["yes"], timeout=MINUTE, max_output=1_000)


@pytest.mark.anyio
async def test_cancelling_the_call_leaves_no_orphan(tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    async with anyio.create_task_group() as group:
        script = f"sleep 600 & echo $! > {pid}.new; mv {pid}.new {pid}; wait"
        group.start_soon(lambda: run_command(["sh", "-c", script], timeout=MINUTE))
        await wait_until(pid.exists)
        group.cancel_scope.cancel()
    await wait_until(lambda: not alive(pid_in(pid)))


@pytest.mark.anyio
async def test_a_background_child_that_keeps_stderr_does_not_hold_us_up(tmp_path: Path) -> None:
    script = f"setsid sleep 600 >/dev/null & echo $! > {tmp_path}/pid; echo done"
    result = await run_command(["sh", "-c", script], timeout=MINUTE)
    assert alive(pid_in(tmp_path / "pid"))
    os.kill(pid_in(tmp_path / "pid"), 9)
    assert result.stdout == b"done\n"


@pytest.mark.anyio
async def test_through_a_remote_shell_the_line_arrives_whole(tmp_path: Path) -> None:
    ssh = tmp_path / "ssh"
    ssh.write_text('#!/bin/sh\nshift\nexec sh -c "$*"\n')  # as sshd does with what it is given
    ssh.chmod(0o755)
    result = await run_command(
        ["sh", "-c", 'printf \'%s|%s|%s\' "$TZ" "$FORMAT" "$1"', "sh", "a b|$HOME"],
        timeout=MINUTE,
        environment={"TZ": "UTC", "FORMAT": "%s x"},
        through=[str(ssh), "head1"],
    )
    assert result.stdout == b"UTC|%s x|a b|$HOME"


@pytest.mark.parametrize("through", [["ssh", "head1"], ["timeout", "60", "/opt/jump-ssh", "head1"], ["su", "x", "-c"]])
def test_a_remote_shell_gets_one_quoted_argument(through: Sequence[str]) -> None:
    line = command_line(["sacct", "-S", "now-1 day"], {"TZ": "UTC"}, through)
    assert line == [*through, "env TZ=UTC sacct -S 'now-1 day'"]
    assert "TZ" not in child_environment({"TZ": "UTC"}, through)


@pytest.mark.anyio
@pytest.mark.parametrize("through", [["env", "-i"], ["nice", "-n", "1"], ["setsid", "--wait"]])
async def test_a_program_that_starts_another_gets_its_words(through: Sequence[str]) -> None:
    """As chroot, sudo and docker exec do, these run their remaining arguments without a shell."""
    argv = ["/bin/sh", "-c", 'printf "%s|%s" "$TZ" "$1"', "sh", "a b|$HOME"]
    result = await run_command(argv, timeout=MINUTE, environment={"TZ": "UTC"}, through=through)
    assert result.stdout == b"UTC|a b|$HOME"
