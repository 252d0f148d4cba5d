"""Child processes: an argument vector in, bytes out, and nothing left behind whatever happens."""

import asyncio
import os
import shlex
import signal
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import timedelta
from subprocess import DEVNULL, PIPE
from typing import Final

import anyio

from auditord_hookspecs import CommandFailed, CommandResult

INHERITED: Final = (
    *("PATH", "HOME", "LANG", "LD_LIBRARY_PATH"),
    *("CONDOR_CONFIG", "SLURM_CONF", "KUBECONFIG"),
    *("KRB5_CONFIG", "KRB5CCNAME", "SSH_AUTH_SOCK", "BEARER_TOKEN_FILE"),
    *("X509_CERT_DIR", "X509_USER_CERT", "X509_USER_KEY", "X509_USER_PROXY"),
)
"""The variables of the daemon that a child sees: they say where things are; secrets live in the rest of them."""

_TERM_GRACE: Final = 2.0
STDOUT: Final = 1
_STDERR: Final = 2
_STDERR_TAIL: Final = 4_096
SILENT_TURNS: Final = 50
TURN: Final = 0.01
_SHOWN_COMMAND: Final = 200


async def run_command(
    argv: Sequence[str],
    *,
    timeout: timedelta,
    environment: Mapping[str, str] | None = None,
    through: Sequence[str] = (),
    max_output: int = 256 * 1024 * 1024,
) -> CommandResult:
    """See :meth:`auditord_hookspecs.contexts.Context.run_command`; cancelling the call kills the process group."""
    child = Child(argv, max_output)
    transport = await start(child, command_line(argv, environment, through), child_environment(environment, through))
    try:
        with anyio.move_on_after(timeout.total_seconds()) as scope:
            await child.finished()
        if scope.cancelled_caught:
            printed = len(child.stdout)
            raise child.failed(
                f"was killed after {timeout.total_seconds():g} s, {printed} bytes printed", timed_out=True
            )
    finally:
        await release(child, transport)
    return child.result(transport.get_returncode())


def command_line(argv: Sequence[str], environment: Mapping[str, str] | None, through: Sequence[str]) -> list[str]:
    """The vector to execute; behind ``through`` everything is one argument, quoted for the shell at the other end."""
    if not through:
        return list(argv)
    assignments = [f"{name}={value}" for name, value in (environment or {}).items()]
    return [*through, shlex.join(["env", *assignments, *argv])]


def child_environment(environment: Mapping[str, str] | None, through: Sequence[str]) -> dict[str, str]:
    """The whole environment of the child; ssh would not forward the additions, so they are in the line instead."""
    inherited = {name: os.environ[name] for name in INHERITED if name in os.environ}
    return inherited if through else {**inherited, **(environment or {})}


async def start(child: "Child", command: Sequence[str], environment: Mapping[str, str]) -> asyncio.SubprocessTransport:
    """Start the child; the caller releases it.

    Raises:
        CommandFailed: it cannot be started.
    """
    # The loop's own call and not a stream API: its transport can close a pipe that a grandchild keeps open.
    loop = asyncio.get_running_loop()
    try:
        transport, _ = await loop.subprocess_exec(
            lambda: child, *command, stdin=DEVNULL, stdout=PIPE, stderr=PIPE, env=environment, start_new_session=True
        )
    except FileNotFoundError as error:
        raise child.failed(f"cannot start: no program {command[0]!r} (PATH={environment.get('PATH', '')})") from error
    except OSError as error:
        raise child.failed(f"cannot start: {error.strerror}") from error
    except ValueError as error:
        raise child.failed(f"cannot start: {error}") from error
    return transport


class Child(asyncio.SubprocessProtocol):
    """What one child has printed so far, and whether it has said all of it."""

    def __init__(self, argv: Sequence[str], max_output: int) -> None:
        self.argv = argv
        self.max_output = max_output
        self.stdout = bytearray()
        self.stderr = bytearray()
        self.open_pipes = {STDOUT, _STDERR}
        self.exited = anyio.Event()
        self.over = anyio.Event()

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        """Keep what arrives."""
        if fd == _STDERR:
            self.stderr += data
            del self.stderr[:-_STDERR_TAIL]
        elif not self.is_too_much():
            self.stdout += data
            if self.is_too_much():
                self.over.set()

    def pipe_connection_lost(self, fd: int, exc: Exception | None) -> None:
        """Note the end of a pipe."""
        del exc  # a pipe that broke has ended as well; the exit code tells
        self.open_pipes.discard(fd)

    def process_exited(self) -> None:
        """Note that the process is gone; its pipes may still hold something."""
        self.exited.set()
        self.over.set()

    def is_too_much(self) -> bool:
        """True once it has printed more than it may."""
        return len(self.stdout) > self.max_output

    async def finished(self) -> None:
        """Return when the child has exited and everything that it printed is here.

        Raises:
            CommandFailed: it printed too much.
        """
        await self.over.wait()
        await self._drained()
        if self.is_too_much():
            raise self.too_much()

    async def _drained(self) -> None:
        """Wait for the end of both pipes, or for silence after the exit.

        A background child (ssh's ControlPersist) may hold the pipes for hours, so their end is no condition. What the
        child itself printed is in the pipe when it exits; turns of the loop are counted, not time, since after a stall
        the clock has run on while nothing was read.
        """
        silent, size = 0, -1
        while self.exited.is_set() and self.open_pipes and silent < SILENT_TURNS:
            silent = silent + 1 if size == len(self.stdout) else 0
            size = len(self.stdout)
            await anyio.sleep(TURN)

    def result(self, returncode: int | None) -> CommandResult:
        """All that it printed.

        Raises:
            CommandFailed: it did not end with 0.
        """
        if returncode != 0:
            raise self.failed(_exit_text(returncode), exit_code=returncode)
        return CommandResult(bytes(self.stdout), bytes(self.stderr))

    def too_much(self) -> CommandFailed:
        """The error of a child that printed more than it may."""
        what = f"was killed: it printed more than {self.max_output} bytes"
        return self.failed(what, printed_too_much=True)

    def failed(
        self, what: str, *, exit_code: int | None = None, timed_out: bool = False, printed_too_much: bool = False
    ) -> CommandFailed:
        """An error that names the command and its last words."""
        command = shlex.join(self.argv)
        command = command if len(command) <= _SHOWN_COMMAND else f"{command[:_SHOWN_COMMAND]}…"
        last_words = self.stderr.decode(errors="replace").strip()
        text = f"`{command}` {what}" + (f": {last_words}" if last_words else "")
        return CommandFailed(text, exit_code=exit_code, timed_out=timed_out, printed_too_much=printed_too_much)


def _exit_text(returncode: int | None) -> str:
    if returncode is None or returncode >= 0:
        return f"ended with exit code {returncode}"
    return f"was ended by signal {signal.Signals(-returncode).name}"


async def release(child: "Child", transport: asyncio.SubprocessTransport) -> None:
    """Leave no process and no pipe behind; an unfinished child is killed with its whole group."""
    with anyio.CancelScope(shield=True):
        if not child.exited.is_set():
            await _kill_group(child, transport.get_pid())
        transport.close()


async def _kill_group(child: "Child", pid: int) -> None:
    """TERM, a moment to obey, KILL; the group is the child's own, since it began a session."""
    _signal_group(pid, signal.SIGTERM)
    with anyio.move_on_after(_TERM_GRACE):
        await child.exited.wait()
    _signal_group(pid, signal.SIGKILL)
    await child.exited.wait()


def _signal_group(pid: int, number: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        os.killpg(pid, number)
