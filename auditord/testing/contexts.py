"""Fakes of the contexts of instances and commands, of remote servers and of a host, which record how they are used."""

import json
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, TypeVar

import anyio
import click
import msgspec

from auditord.client.aggregates import Adder
from auditord.contexts.instances import Child, CommandRunner
from auditord.database.memory import as_json
from auditord.spool.encoding import Stage, prepare
from auditord.testing.records import EPOCH
from auditord_hookspecs import (
    AggregateQuery,
    Aggregates,
    AuditordError,
    Batch,
    Close,
    CommandFailed,
    Entry,
    HttpAnswer,
    HttpClient,
    HttpOptions,
    InstanceConfig,
    InvalidRecord,
    JobChoice,
    PluginContext,
    Record,
    RecordQuery,
    RecordsRejected,
    Window,
)
from auditord_hookspecs.http import HttpStatusError, Parameters
from auditord_hookspecs.terminal import say_lines
from auditord_hookspecs.wire import decode_record


class HttpRequest(msgspec.Struct, frozen=True):
    """A request that an instance made."""

    method: str
    url: str
    params: Parameters = ()
    headers: Mapping[str, str] = msgspec.field(default_factory=dict[str, str])
    body: bytes | None = None
    form: Mapping[str, str] | None = None

    def answer(
        self, status: int = 200, body: bytes = b"", headers: Mapping[str, str] | None = None, **links: str
    ) -> HttpAnswer:
        """Return an answer to the request; ``links`` are URLs by ``rel``."""
        return HttpAnswer(f"{self.method} {self.url}", status, headers or {}, body, links)


class FakeHttpClient(msgspec.Struct, frozen=True):
    """Implements :class:`auditord_hookspecs.HttpClient` without a network and without retries."""

    server: Callable[[HttpRequest], HttpAnswer]
    requested: list[HttpRequest]
    options: HttpOptions

    async def request(
        self,
        method: str,
        url: str,
        *,
        params: Parameters = (),
        headers: Mapping[str, str] | None = None,
        body: bytes | None = None,
        form: Mapping[str, str] | None = None,
        idempotent: bool | None = None,  # noqa: ARG002 nothing is repeated
        retry_for: timedelta | None = None,  # noqa: ARG002 the same
    ) -> HttpAnswer:
        """Record the request and return the server's answer."""
        request = HttpRequest(method, url, params, {**self.options.headers, **(headers or {})}, body, form)
        self.requested.append(request)
        answer = self.server(request)
        self.options.on_attempt(answer.status)
        return answer

    @asynccontextmanager
    async def stream(
        self,
        method: str,
        url: str,
        *,
        params: Parameters = (),
        headers: Mapping[str, str] | None = None,
        body: bytes | None = None,
    ) -> AsyncGenerator["FakeHttpStream", None]:
        """Make a request and yield its answer, whose body comes in one piece."""
        answer = await self.request(method, url, params=params, headers=headers, body=body)
        if not answer.ok:
            raise HttpStatusError(answer)
        yield FakeHttpStream(answer.headers, answer.body)


class FakeHttpStream(msgspec.Struct, frozen=True):
    """Implements :class:`auditord_hookspecs.HttpStream`."""

    headers: Mapping[str, str]
    body: bytes

    async def __aiter__(self) -> AsyncIterator[bytes]:
        """Yield the body."""
        if self.body:
            yield self.body


class FakeHost(msgspec.Struct, frozen=True):
    """A host as ``auditord init`` shows it to a kind's ``detect``.

    An example::

        assert detect(FakeHost()) is None
        assert detect(FakeHost(programs={"lpstat": "device for main: ipp://printer"})) is not None

    Args:
        programs: the output of each installed program, by name.
        files: absolute paths.
    """

    programs: Mapping[str, str] = msgspec.field(default_factory=dict[str, str])
    files: Sequence[str] = ()
    environ: Mapping[str, str] = msgspec.field(default_factory=dict[str, str])

    def run(self, argv: Sequence[str]) -> str | None:
        """Return the output of a program; its arguments are ignored."""
        return self.programs.get(argv[0])

    def find(self, *patterns: str) -> Sequence[Path]:
        """Return the matching files, in the order of the patterns."""
        return [Path(name) for pattern in patterns for name in sorted(self.files) if fnmatchcase(name, pattern)]


@dataclass
class FakeContext(CommandRunner):
    """The common part of the fake contexts.

    Args:
        moment: the time that ``now()`` returns; assign another to advance it.
        commands: plays the child processes: receives the argument vector, and returns standard output or raises.
        ran: the argument vectors that were run.
        server: plays the servers behind ``http()``: receives each request, and returns an answer or raises. If None,
            requests are really sent, to a server of the test's own.
        requested: the requests that ``server`` received.
    """

    instance: str = "test"
    moment: datetime = EPOCH
    commands: Callable[[Sequence[str]], bytes] | None = None
    ran: list[tuple[str, ...]] = field(default_factory=list[tuple[str, ...]])
    server: Callable[[HttpRequest], HttpAnswer] | None = None
    requested: list[HttpRequest] = field(default_factory=list[HttpRequest])

    @property
    def log(self) -> "logging.LoggerAdapter[logging.Logger]":
        """A logger under ``auditord.testing``, for pytest's ``caplog``."""
        return logging.LoggerAdapter(logging.getLogger("auditord.testing"), {"task": self.instance})

    def now(self) -> datetime:
        """Return ``moment``."""
        return self.moment

    @asynccontextmanager
    async def child(
        self,
        argv: Sequence[str],
        environment: Mapping[str, str],  # noqa: ARG002 part of the contract; no program sees it
        through: Sequence[str],
        max_output: int,
    ) -> AsyncGenerator[Child, None]:
        """Yield the output of ``commands``; without it, raise CommandFailed."""
        self.ran.append((*through, *argv))
        if self.commands is None:
            raise CommandFailed(f"{argv[0]}: this fake context runs no commands; give it commands=…")
        yield Child.ended(argv, self.commands(argv), max_output, _PIECE)

    def http(self, options: HttpOptions | None = None) -> AbstractAsyncContextManager[HttpClient]:
        """Return a client of ``server``, or a real one without it."""
        if self.server is not None:
            return nullcontext(FakeHttpClient(self.server, self.requested, options or HttpOptions()))
        from auditord.client.http import open_client  # noqa: PLC0415 few tests need aiohttp

        return open_client(options or HttpOptions())


_PIECE = 9_973
"""The size of output pieces in bytes, small enough to split texts."""


@dataclass
class FakeCollectorContext(FakeContext):
    """A collector's context over memory; :meth:`keep` plays the spool.

    Args:
        checkpoint: the checkpoint at the start of the run.
        window: the period to collect again.
        job: the job to collect again.
        remembered: seen keys with their expiry.
        pending_values: the values that earlier batches have stored, by key.
        folder: a folder of the test, for collectors with files of their own.
    """

    checkpoint: Any = None  # Any: JSON of the collector's own
    window: Window | None = None
    job: JobChoice | None = None
    dry_run: bool = False
    kept: list[Batch] = field(default_factory=list[Batch])
    remembered: dict[str, datetime] = field(default_factory=dict[str, datetime])
    pending_values: dict[str, Any] = field(default_factory=dict[str, Any])  # Any: JSON of the collector's own
    progress: float = 0.0
    folder: Path | None = None

    @property
    def instance_dir(self) -> Path:
        """``folder``, which the test must set."""
        if self.folder is None:
            raise AuditordError("this collector keeps files: make its context with folder=tmp_path")
        return self.folder

    async def find_seen(self, keys: Collection[str]) -> frozenset[str]:
        """Return the keys among these that are remembered and have not expired."""
        return frozenset(key for key in keys if key in self.remembered and self.remembered[key] > self.moment)

    async def pending(self) -> Mapping[str, Any]:  # Any: JSON of the collector's own
        """Return the values that earlier batches have stored."""
        return dict(self.pending_values)

    def report_progress(self, fraction: float) -> None:
        """Remember the last fraction."""
        self.progress = fraction

    async def keep(self, batches: AsyncIterator[Batch]) -> list[Record]:
        """Run a collector: keep each batch as the spool would, and return all records in order.

        Records, checkpoint and pending values are encoded and decoded, as between two runs of a daemon.

        Raises:
            TypeError: a batch has wrong types; a daemon would fail the run.
            InvalidRecord: a record is invalid; a daemon would quarantine it.
        """
        records: list[Record] = []
        async for batch in batches:
            prepared = prepare(self.instance, batch, self.moment)
            for refused in prepared.set_aside:
                if refused.stage is Stage.RECORD:
                    raise InvalidRecord(f"{refused.source_id}: {refused.reason}")
            self.kept.append(batch)
            records += [decode_record(row.body) for row in prepared.rows]
            self.remembered.update(batch.seen)
            pending = {key: None if text is None else json.loads(text) for key, text in prepared.pending.items()}
            merged = {**self.pending_values, **pending}
            self.pending_values = {key: value for key, value in merged.items() if value is not None}
            if prepared.checkpoint is not None and self.window is None and self.job is None:
                self.checkpoint = json.loads(prepared.checkpoint)
        return records


@dataclass
class FakePluginContext(FakeContext):
    """A plugin's context over a list of records.

    Args:
        stored: the records. All of them are streamed: a query's condition, order and limit are ignored. Aggregates are
            those of a store with these records.
        asked: the queries for streams.
        summed: the queries for aggregates.
        shown: the texts that the plugin showed.
        redacted: the record ids and removed keys of each redaction.
        backed_up: the arguments of each backup: the folder, ``keep``, ``rate`` and ``dump``.
    """

    stored: Sequence[Record] = ()
    asked: list[RecordQuery] = field(default_factory=list[RecordQuery])
    summed: list[AggregateQuery] = field(default_factory=list[AggregateQuery])
    dry_run: bool = False
    state: Any = None  # Any: JSON of the plugin's own
    shown: list[str] = field(default_factory=list[str])
    progress: float = 0.0
    redacted: list[tuple[tuple[str, ...], tuple[str, ...]]] = field(
        default_factory=list[tuple[tuple[str, ...], tuple[str, ...]]]
    )

    backed_up: list[tuple[Path, int, int | None, bool]] = field(
        default_factory=list[tuple[Path, int, int | None, bool]]
    )

    @property
    def backups(self) -> "FakePluginContext":
        """The context itself, which also plays the backups."""
        return self

    async def make(self, folder: Path, *, keep: int, rate: int | None, dump: bool) -> Path:
        """Record the arguments and return the path of a backup, which is always the same."""
        self.backed_up.append((folder, keep, rate, dump))
        return folder / "backup"

    @property
    def redactor(self) -> "FakePluginContext":
        """The context itself, which also plays the redactor."""
        return self

    async def redact(self, record_ids: Sequence[str], keys: Collection[str]) -> int:
        """Remove the keys from the stored records, and return the number of changed records."""
        self.redacted.append((tuple(record_ids), tuple(keys)))
        wanted, before = set(record_ids), list(self.stored)
        self.stored = [_drop_keys(record, keys) if record.record_id in wanted else record for record in before]
        return sum(new is not old for new, old in zip(self.stored, before, strict=True))

    async def redact_leftovers(self, before: datetime, keys: Collection[str]) -> int:  # noqa: ARG002 nothing is left
        """Return 0, as a store without leftovers."""
        return 0

    def show(self, text: str) -> None:
        """Record the text."""
        self.shown.append(text)

    def report_progress(self, fraction: float) -> None:
        """Remember the last fraction."""
        self.progress = fraction

    @property
    def records(self) -> "FakePluginContext":
        """The context itself, which also plays the records."""
        return self

    @asynccontextmanager
    async def stream(self, query: RecordQuery) -> AsyncGenerator[AsyncIterator[Record]]:
        """Stream every stored record; the query is ignored."""
        self.asked.append(query)

        async def each() -> AsyncIterator[Record]:
            for record in self.stored:
                yield record

        yield each()

    async def aggregate(self, query: AggregateQuery) -> Aggregates:
        """Return the answer of a store with the stored records."""
        self.summed.append(query)
        adder = Adder(query)
        for record in self.stored:
            adder.add(record)
        return adder.answer()

    async def save_state(self, state: Any) -> None:  # Any: JSON of the plugin's own
        """Keep the state in memory, as the next run would read it.

        Raises:
            TypeError: the state cannot be encoded as JSON.
        """
        self.state = json.loads(as_json(state))


def _drop_keys(record: Record, keys: Collection[str]) -> Record:
    if record.meta is None or set(keys).isdisjoint(record.meta):
        return record
    return msgspec.structs.replace(record, meta={key: each for key, each in record.meta.items() if key not in keys})


@dataclass
class FakeSenderContext(FakeContext):
    """A sender's context whose store is a list.

    Args:
        delivered: the entries that reached the store.
        refuse: reasons by record id; entries of these records are refused for good.
    """

    delivered: list[Entry] = field(default_factory=list[Entry])
    refuse: Mapping[str, str] = field(default_factory=dict[str, str])

    @property
    def store(self) -> "FakeSenderContext":
        """The context itself, which also plays the store."""
        return self

    async def send(self, entries: Sequence[Entry]) -> None:
        """Keep the entries, except those to refuse.

        Raises:
            RecordsRejected: it has the reasons of the refused ones.
        """
        reasons = {place: self.refuse[_id(entry)] for place, entry in enumerate(entries) if _id(entry) in self.refuse}
        self.delivered += [entry for place, entry in enumerate(entries) if place not in reasons]
        if reasons:
            raise RecordsRejected(reasons)


@dataclass
class FakeAuthenticatorContext(FakeContext):
    """An authenticator's context.

    Args:
        folder: a folder of the test, for authenticators with files of their own.
    """

    folder: Path | None = None

    @property
    def state_dir(self) -> Path:
        """``folder``, which the test must set."""
        if self.folder is None:
            raise AuditordError("this authenticator keeps files: make its context with folder=tmp_path")
        return self.folder


def _id(entry: Entry) -> str:
    return entry.record_id if isinstance(entry, Close) else entry.record.record_id


T = TypeVar("T")


@dataclass
class FakeCommandContext:
    """A command's context with plugins that the test configures; pass it to click's runner as ``obj``.

    Args:
        plugins: kind and configuration by instance.
        plugin_context: the context of all plugins; opening a plugin sets its instance and dry run.
    """

    plugins: dict[str, tuple[str, InstanceConfig]] = field(default_factory=dict[str, tuple[str, InstanceConfig]])
    plugin_context: FakePluginContext = field(default_factory=FakePluginContext)
    opened: list[str] = field(default_factory=list[str])
    state_dir: Path = Path("/nonexistent")
    known_roles: Collection[str] = ("reader", "writer")

    def roles(self) -> Collection[str]:
        """Return the names of all roles."""
        return self.known_roles

    def now(self) -> datetime:
        """Return the current time of the plugins."""
        return self.plugin_context.now()

    def instances(self, kind: str) -> Sequence[str]:
        """Return the names of the plugins of a kind."""
        return [name for name, (its_kind, _) in self.plugins.items() if its_kind == kind]

    def choose(self, kind: str, name: str | None) -> str:
        """Return the name of the named plugin, or of the only one."""
        names = self.instances(kind)
        if name is None and len(names) == 1:
            return names[0]
        if name is None or name not in names:
            raise click.UsageError(f"no plugin {name or ''} of kind {kind}; there are: {', '.join(names)}")
        return name

    @asynccontextmanager
    async def instance(
        self, name: str, *, dry_run: bool = False
    ) -> AsyncGenerator[tuple[Any, PluginContext], None]:  # Any: the kind's own model
        """Yield the plugin's configuration and context, and print the texts that it showed on exit."""
        self.opened.append(name)
        context = self.plugin_context
        context.instance, context.dry_run = name, dry_run
        before = len(context.shown)
        yield self.plugins[name][1], context
        for text in context.shown[before:]:
            say_lines(text)

    def run(self, main: Callable[[], Awaitable[T]]) -> T:
        """Run a coroutine function."""
        return anyio.run(main)
