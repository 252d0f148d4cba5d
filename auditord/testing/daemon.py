"""A complete daemon inside a test, in its own thread: real configuration, spool, store and HTTP."""

import json
import threading
from collections.abc import AsyncGenerator, Callable, Generator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import ModuleType
from typing import Any, Final, Protocol
from urllib.request import urlopen

import anyio
import msgspec
from anyio.from_thread import start_blocking_portal

from auditord.config.loading import load
from auditord.config.model import Configuration, StoreSection
from auditord.errors import DaemonError, plain_errors
from auditord.hooks import HookEntry, HookModule, Hooks, find_entries, load_hooks
from auditord.spool import Spool
from auditord.store.opening import open_store_for_reading
from auditord.supervisor import run
from auditord_hookspecs import Daemon, Record, RunReport, hookimpl
from auditord_hookspecs.wire import decode_record

PATIENCE: Final = timedelta(seconds=30)
"""The default time for which a test waits before it fails."""

_POLL_SECONDS: Final = 0.02


class Reports:
    """A hook module that keeps the reports of finished runs."""

    def __init__(self) -> None:
        self._reports: list[RunReport] = []
        self._changed = threading.Condition()

    def module(self) -> ModuleType:
        """Return the module for the loader."""

        @hookimpl
        async def auditord_run_finished(daemon: Daemon, report: RunReport) -> None:  # noqa: ARG001 the hook's arguments
            with self._changed:
                self._reports.append(report)
                self._changed.notify_all()

        module = ModuleType("auditord_testing_reports")
        module.auditord_run_finished = auditord_run_finished  # type: ignore[attr-defined] # that is how modules work
        return module

    def take(self, instance: str, patience: timedelta) -> RunReport:
        """Wait for the oldest report of an instance that was not taken yet, and return it.

        Raises:
            DaemonError: no run ended in time.
        """
        with self._changed:
            if not self._changed.wait_for(lambda: self._of(instance), patience.total_seconds()):
                raise DaemonError(f"no run of {instance} ended within {patience.total_seconds():g} s")
            report = self._of(instance)[0]
            self._reports.remove(report)
            return report

    def _of(self, instance: str) -> Sequence[RunReport]:
        return [report for report in self._reports if report.task == instance]


class TestDaemon:
    """A running daemon, as its test sees it."""

    __test__ = False  # otherwise pytest would collect this class

    def __init__(self, urls: Sequence[str], configuration: Configuration, reports: Reports) -> None:
        self.url, *_ = self.urls = urls
        self.state_dir = configuration.state_dir
        self._store = configuration.store
        self._reports = reports

    def finish_run(self, instance: str, patience: timedelta = PATIENCE) -> RunReport:
        """Return the report of the next run of an instance, once its records are in the store.

        Raises:
            DaemonError: no run ended in time, or its records did not arrive.
        """
        report = self._reports.take(instance, patience)
        anyio.run(_wait_for_empty_queue, self.state_dir, None, patience)
        return report

    def finish_sending(self, patience: timedelta = PATIENCE) -> None:
        """Wait until every sender has sent its whole queue, including clients' records.

        Raises:
            DaemonError: the queue was not empty in time.
        """
        anyio.run(_wait_for_empty_queue, self.state_dir, self._store, patience)

    def get(self, path: str) -> bytes:
        """Return the body of an answer; an error status raises :class:`urllib.error.HTTPError`."""
        with urlopen(self.url + path) as answer:  # noqa: S310 our own server
            body: bytes = answer.read()
        return body

    def records(self, query: str = "") -> list[Record]:
        """Return the records that match a query string of ``GET /records``, in its order."""
        text, decoder, found = self.get(f"/records?{query}").decode(), json.JSONDecoder(), list[Record]()
        while text:
            _, end = decoder.raw_decode(text)
            found.append(decode_record(text[:end].encode()))
            text = text[end:]
        return found


class StartDaemon(Protocol):
    """The fixture ``auditord_daemon``, for annotations."""

    def __call__(self, sections: Mapping[str, Any] | None = None, modules: Sequence[ModuleType] = ()) -> TestDaemon:
        """Start a daemon with sections of a configuration; the arguments are those of :func:`running_daemon`."""
        ...


async def _wait_for_empty_queue(state_dir: Path, outbox_of: StoreSection | None, patience: timedelta) -> None:
    try:
        with anyio.fail_after(patience.total_seconds()):
            if outbox_of is not None:
                async with open_store_for_reading(outbox_of) as store:
                    while (await store.outbox(1)).has_more:  # noqa: ASYNC110 another thread's daemon sets no event here
                        await anyio.sleep(_POLL_SECONDS)
            async with Spool.opened_read_only(state_dir, lambda: datetime.now(UTC)) as spool:
                while (await spool.statistics()).queues:  # noqa: ASYNC110 another thread's daemon sets no event here
                    await anyio.sleep(_POLL_SECONDS)
    except TimeoutError as error:
        raise DaemonError(f"the queue was not empty after {patience.total_seconds():g} s") from error


@contextmanager
def running_daemon(
    folder: Path, sections: Mapping[str, Any], modules: Sequence[ModuleType] = ()
) -> Generator[TestDaemon, None, None]:
    """Run a daemon in its own thread within the context, and stop it in order on exit.

    Args:
        folder: for its files; an earlier daemon may have used it.
        sections: the configuration, as in a file; state folder and address are chosen here.
        modules: hook modules to load besides the installed ones; one that is installed as well is loaded once.

    Raises:
        AuditordError: the daemon cannot start; the message is the one that the command line would print.
    """
    reports = Reports()
    given = [_entry(module) for module in [*modules, reports.module()]]
    names = {entry.described.module for entry in given}
    hooks = load_hooks([], [*(each for each in find_entries() if each.described.module not in names), *given])
    file = folder / "auditord.json"
    document = {"api": {"listen": ["127.0.0.1:0"]}, **sections, "state_dir": str(folder / "state")}
    file.write_text(msgspec.json.encode(document).decode())  # JSON is YAML, too
    with start_blocking_portal() as portal, portal.wrap_async_context_manager(_running(file, hooks)) as (urls, used):
        yield TestDaemon(urls, used, reports)


def _entry(module: ModuleType) -> HookEntry:
    name = module.__name__
    return HookEntry(HookModule(name.rpartition(".")[2], name, "(test)", "0"), lambda: module)


@asynccontextmanager
async def _running(file: Path, hooks: Hooks) -> AsyncGenerator[tuple[Sequence[str], Configuration], None]:
    configuration = load([file], hooks.kinds, {}, hooks.resolve_secret)
    stop, served = anyio.Event(), anyio.Event()
    urls: list[str] = []

    def ready(at: Sequence[str]) -> None:
        urls.extend(at)
        served.set()

    async def daemon(now: Callable[[], datetime]) -> None:
        await run(configuration, hooks, ready=ready, now=now, stop=stop)

    with plain_errors():
        async with anyio.create_task_group() as group:
            group.start_soon(daemon, lambda: datetime.now(UTC))
            await served.wait()
            yield urls, configuration
            stop.set()
