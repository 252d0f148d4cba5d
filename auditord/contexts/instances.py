"""The contexts of collectors and senders over the real spool and store, and the child processes of all instances.

A child gets an argument vector and returns bytes. No process or pipe is left behind, even after an error.
"""

import asyncio
import logging
import os
import shlex
import signal
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path, PurePath
from subprocess import DEVNULL, PIPE
from sys import maxsize
from typing import Any, Final, TypeAlias, cast

import anyio

from auditord.database.durable_files import make_private_folder
from auditord.spool import Spool
from auditord_hookspecs import (
    AuditordError,
    CommandFailed,
    CommandResult,
    HttpClient,
    HttpOptions,
    InstanceConfig,
    JobChoice,
    RunConfig,
    Sender,
    Window,
)
from auditord_hookspecs.arguments import hide_in_text, show_command

INSTANCES: Final = "instances"
"""The subfolder of the state folder with a folder for each instance."""

TaskLog: TypeAlias = "logging.LoggerAdapter[logging.Logger]"


def task_log(task: str, kind: str) -> TaskLog:
    """Return a logger whose messages name the instance and its kind."""
    return logging.LoggerAdapter(logging.getLogger("auditord.task"), {"task": task, "kind": kind})


def environment_of(config: InstanceConfig) -> Mapping[str, str]:
    """Return the environment variables that an instance's section sets for its child processes."""
    return config.environment if isinstance(config, RunConfig) else {}


def own_folder(state_dir: Path, instance: str) -> Path:
    """Return the private folder of an instance; create it if it is missing.

    Raises:
        AuditordError: it cannot be created, or belongs to another user.
    """
    folder = state_dir / INSTANCES / instance
    try:
        make_private_folder(folder, 0o700)
        folder.chmod(0o700)  # a volume's owner may have opened it to a group (fsGroup)
    except OSError as error:
        raise AuditordError(
            f"{folder} cannot be used: {error.strerror}: it must belong to the daemon's user"
        ) from error
    return folder


class CommandRunner:
    """Runs child processes: implements both methods of :class:`auditord_hookspecs.contexts.Context`.

    Attributes:
        environment: configured variables of its child processes.
    """

    environment: Mapping[str, str] = {}

    async def run_command(
        self,
        argv: Sequence[str],
        *,
        timeout: timedelta,
        environment: Mapping[str, str] | None = None,
        through: Sequence[str] = (),
        max_output: int = 256 * 1024 * 1024,
    ) -> CommandResult:
        """Run a child and return its output. Cancelling the call kills its process group."""
        seconds = timeout.total_seconds()
        async with self.child(argv, {**self.environment, **(environment or {})}, through, max_output) as child:
            with anyio.move_on_after(seconds):
                return CommandResult(await child.gather(), child.stderr)
            raise child.make_error(f"was killed after {seconds:g} s, {child.printed} bytes printed", timed_out=True)

    @asynccontextmanager
    async def stream_command(
        self,
        argv: Sequence[str],
        *,
        timeout: timedelta,
        environment: Mapping[str, str] | None = None,
        through: Sequence[str] = (),
        max_output: int | None = None,
    ) -> AsyncGenerator["Child", None]:
        """Run a child and read its output while it runs. Exiting the context kills its process group."""
        limit = maxsize if max_output is None else max_output
        async with self.child(argv, {**self.environment, **(environment or {})}, through, limit) as child:
            child.patience = timeout
            yield child

    @asynccontextmanager
    async def child(
        self, argv: Sequence[str], environment: Mapping[str, str], through: Sequence[str], max_output: int
    ) -> AsyncGenerator["Child", None]:
        """Start a child. On exit, a running child is killed with its process group, and its pipes are closed.

        Raises:
            CommandFailed: the child cannot be started.
        """
        child, command = Child(argv, max_output), command_line(argv, environment, through)
        transport = await _spawn(child, command, child_environment(environment, through))
        try:
            yield child
        finally:
            with anyio.CancelScope(shield=True):
                if not child.exited.is_set():
                    # The child started a session, so the group contains only its processes.
                    pid = transport.get_pid()
                    _signal_group(pid, signal.SIGTERM)
                    with anyio.move_on_after(_TERM_GRACE):
                        await child.exited.wait()
                    _signal_group(pid, signal.SIGKILL)
                    await child.exited.wait()
                transport.close()


@dataclass(eq=False)
class InstanceContext(CommandRunner):
    """The part of the context that every instance gets.

    Args:
        environment: configured variables of its child processes.
    """

    instance: str
    kind: str
    clock: Callable[[], datetime]
    environment: Mapping[str, str] = field(default_factory=dict[str, str])

    @property
    def log(self) -> TaskLog:
        """A logger that names the instance."""
        return task_log(self.instance, self.kind)

    def now(self) -> datetime:
        return self.clock()

    def http(self, options: HttpOptions | None = None) -> AbstractAsyncContextManager[HttpClient]:
        """Return a client for requests to remote servers (:mod:`auditord.client.http`)."""
        from auditord.client.http import open_client  # noqa: PLC0415 a command on a file needs no aiohttp

        return open_client(options or HttpOptions())


@dataclass(eq=False, kw_only=True)
class SpoolCollectorContext(InstanceContext):
    """A collector's context over the spool."""

    spool: Spool
    checkpoint: Any  # Any: the JSON that the collector stored
    window: Window | None = None
    job: JobChoice | None = None
    dry_run: bool = False
    on_progress: Callable[[float], None] | None = None

    @property
    def instance_dir(self) -> Path:
        """The instance's private folder, created on first use, except by a dry run."""
        if self.dry_run:
            return self.spool.state_dir / INSTANCES / self.instance
        return own_folder(self.spool.state_dir, self.instance)

    async def find_seen(self, keys: Collection[str]) -> frozenset[str]:
        """Return the keys among these that are remembered from earlier batches."""
        return await self.spool.find_seen(self.instance, keys)

    async def pending(self) -> Mapping[str, Any]:  # Any: the JSON that the collector stored
        """Return the values that earlier batches have stored."""
        return await self.spool.pending(self.instance)

    def report_progress(self, fraction: float) -> None:
        if self.on_progress is not None:
            self.on_progress(fraction)


@dataclass(eq=False, kw_only=True)
class StoreSenderContext(InstanceContext):
    """A sender's context, with the local record store as a destination."""

    store: Sender


INHERITED: Final = (
    *("PATH", "HOME", "LANG", "LD_LIBRARY_PATH"),
    *("CONDOR_CONFIG", "SLURM_CONF", "KUBECONFIG"),
    *("KRB5_CONFIG", "KRB5CCNAME", "SSH_AUTH_SOCK", "BEARER_TOKEN_FILE"),
    *("X509_CERT_DIR", "X509_USER_CERT", "X509_USER_KEY", "X509_USER_PROXY"),
)
"""The environment variables that a child inherits. They contain locations; others may contain secrets."""

_TERM_GRACE: Final = 2.0
_STDOUT: Final = 1
_STDERR: Final = 2
_STDERR_TAIL: Final = 4_096
_SILENT_TURNS: Final = 50
_TURN: Final = 0.01
_SHOWN_COMMAND: Final = 200
_PIECE: Final = 2**20
"""The approximate number of unread bytes at which reading from the child pauses."""


def command_line(argv: Sequence[str], environment: Mapping[str, str], through: Sequence[str]) -> list[str]:
    """Return the argument vector. A remote shell gets the command as one quoted argument, other programs get its words.

    ``through`` uses a shell if it names ``ssh``, or a program whose name ends in it, or ends in ``-c``.
    """
    if not through:
        return list(argv)
    command = ["env", *(f"{name}={value}" for name, value in environment.items()), *argv]
    uses_shell = through[-1] == "-c" or any(PurePath(word).name.endswith("ssh") for word in through)
    return [*through, shlex.join(command)] if uses_shell else [*through, *command]


def child_environment(environment: Mapping[str, str], through: Sequence[str]) -> dict[str, str]:
    """Return the environment of the child. After ``through``, additions are in the command line instead."""
    inherited = {name: os.environ[name] for name in INHERITED if name in os.environ}
    return inherited if through else {**inherited, **environment}


async def _spawn(child: "Child", command: Sequence[str], environment: Mapping[str, str]) -> asyncio.SubprocessTransport:
    # Not a stream API, because only the transport can close a pipe that a grandchild keeps open.
    start = partial(asyncio.get_running_loop().subprocess_exec, stdin=DEVNULL, stdout=PIPE, stderr=PIPE)
    try:
        with anyio.CancelScope(shield=True):  # a cancellation here would kill the child without its group
            transport, _ = await start(lambda: child, *command, env=environment, start_new_session=True)
            return transport
    except FileNotFoundError as error:
        path = environment.get("PATH", "")
        raise child.make_error(f"cannot start: no program {command[0]!r} (PATH={path})") from error
    except OSError as error:
        raise child.make_error(f"cannot start: {error.strerror}") from error
    except ValueError as error:
        raise child.make_error(f"cannot start: {error}") from error
    raise AssertionError("unreachable")


class Child(asyncio.SubprocessProtocol):
    """A child process and its output; implements :class:`auditord_hookspecs.CommandOutput`."""

    def __init__(self, argv: Sequence[str], max_output: int, piece: int = _PIECE) -> None:
        self.patience: timedelta | None = None
        self.exited = anyio.Event()
        self._argv = argv
        self._max_output = max_output
        self._piece = piece
        self._waiting = bytearray()
        self._taken = 0
        self._stderr = bytearray()
        self._open_pipes = {_STDOUT, _STDERR}
        self._news = anyio.Event()
        self._enough = 1
        self._transport: asyncio.SubprocessTransport | None = None

    @classmethod
    def ended(cls, argv: Sequence[str], printed: bytes, max_output: int, piece: int) -> "Child":
        """Return a child for tests that has printed this and succeeded, without a process."""
        child = cls(argv, max_output, piece)
        child._waiting += printed
        child._open_pipes.clear()
        child.exited.set()
        return child

    @property
    def stderr(self) -> bytes:
        """The end of standard error so far."""
        return bytes(self._stderr)

    @property
    def printed(self) -> int:
        """The number of bytes on standard output so far."""
        return self._taken + len(self._waiting)

    async def gather(self) -> bytes:
        """Return all of standard output after the child has ended.

        Raises:
            CommandFailed: the child printed too much, or its exit code is not 0.
        """
        self._piece = maxsize
        printed = await self._next(self._max_output + 1)
        self._check_exit()
        return printed

    async def __aiter__(self) -> AsyncIterator[bytes]:
        """Yield pieces of standard output.

        Raises:
            CommandFailed: the child was silent for too long (``patience``), printed too much, or failed.
        """
        while piece := await self._next_in_time():
            yield piece
        self._check_exit()

    def _check_exit(self) -> None:
        code = 0 if self._transport is None else self._transport.get_returncode()
        if code is not None and code < 0:
            raise self.make_error(f"was killed by signal {signal.Signals(-code).name}", exit_code=code)
        if code != 0:
            raise self.make_error(f"ended with exit code {code}", exit_code=code)

    async def _next_in_time(self) -> bytes:
        if self.patience is None:
            return await self._next()
        seconds = self.patience.total_seconds()
        with anyio.move_on_after(seconds):
            return await self._next()
        raise self.make_error(f"was killed after {seconds:g} s without output", timed_out=True)

    async def _next(self, enough: int = 1) -> bytes:
        """Return new output once there is enough, or the child has exited and all its output has been read.

        The end of the pipes is no condition, because a background child (ssh's ControlPersist) may hold them open for
        hours. The child's own output is in the pipe when it exits. Turns of the loop are counted instead of time,
        because time passes during a stall while nothing is read.
        """
        self._enough, silent, size = enough, 0, -1
        while len(self._waiting) < enough and not (self.exited.is_set() and not self._open_pipes):
            if silent == _SILENT_TURNS:
                break
            if self.exited.is_set():
                silent = silent + 1 if size == len(self._waiting) else 0
                size = len(self._waiting)
                await anyio.sleep(_TURN)
            else:
                self._news = anyio.Event()
                await self._news.wait()
        if self.printed > self._max_output:
            raise self.make_error(f"was killed: it printed more than {self._max_output} bytes", printed_too_much=True)
        # uvloop may continue reading for a while after a pause.
        whole = len(self._waiting) <= self._piece
        piece = bytes(self._waiting if whole else self._waiting[: self._piece])
        self._taken += len(piece)
        del self._waiting[: self._piece]
        if len(self._waiting) < self._piece and (pipe := self._pipe()) is not None:
            pipe.resume_reading()
        return piece

    def _pipe(self) -> asyncio.ReadTransport | None:
        """Return the pipe while it is open. uvloop's can pause too, though it is not a ReadTransport by class."""
        if self._transport is None or _STDOUT not in self._open_pipes:
            return None
        return cast("asyncio.ReadTransport | None", self._transport.get_pipe_transport(_STDOUT))

    def make_error(
        self, what: str, *, exit_code: int | None = None, timed_out: bool = False, printed_too_much: bool = False
    ) -> CommandFailed:
        """Return an error with the program, the end of its standard error in one line, and then the whole command."""
        command = show_command(self._argv)
        command = command if len(command) <= _SHOWN_COMMAND else f"{command[:_SHOWN_COMMAND]}…"
        lines = hide_in_text(self._stderr.decode(errors="replace"), self._argv).splitlines()
        last_words = "; ".join(filter(None, map(str.strip, lines)))
        text = f"{self._argv[0]} {what}{last_words and ': '}{last_words} (`{command}`)"
        return CommandFailed(
            text, exit_code=exit_code, timed_out=timed_out, printed_too_much=printed_too_much, stderr=last_words
        )

    # -- called by the event loop -------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport, to pause reading."""
        self._transport = cast("asyncio.SubprocessTransport", transport)

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        """Buffer output, and pause reading once there is enough."""
        if fd == _STDERR:
            self._stderr += data
            del self._stderr[:-_STDERR_TAIL]
            return
        self._waiting += data
        if len(self._waiting) >= self._piece and (pipe := self._pipe()) is not None:
            pipe.pause_reading()
        if len(self._waiting) >= self._enough:
            self._news.set()

    def pipe_connection_lost(self, fd: int, exc: Exception | None) -> None:  # noqa: ARG002 asyncio's signature
        """Note the end of a pipe, also after an error; the exit code tells the outcome."""
        self._open_pipes.discard(fd)
        self._news.set()

    def process_exited(self) -> None:
        """Note that the process has exited; its pipes may still contain output."""
        self.exited.set()
        self._news.set()


def _signal_group(pid: int, number: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        os.killpg(pid, number)
