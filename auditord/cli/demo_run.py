"""The demo: a daemon in a temporary folder, with recorded and made-up records, until Ctrl-C.

Recorded accounting of a real batch system goes through the real collector into an embedded store, three months of a
made-up site (:mod:`auditord.cli.demo_site`) are put beside it, and all of it is served with the page.
"""

import json
import os
import signal
import socket
import webbrowser
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final
from urllib.parse import urlsplit

import aiohttp
import anyio
import anyio.to_thread

from auditord.actions import RunRequest
from auditord.cli.collect import Watcher, summary
from auditord.cli.demo_site import WRONG, corrected, damaged_lines, made_up_records
from auditord.cli.installation import program, run_async, utc_now
from auditord.cli.progress import progress_bar
from auditord.config.loading import load
from auditord.config.model import Configuration
from auditord.duplicates import Duplicates
from auditord.errors import DemoFailed
from auditord.hooks import Hooks, load_hooks
from auditord.store import Amendment, Provenance
from auditord.store.amendments import Action
from auditord.store.opening import open_store
from auditord.supervisor import acting, run
from auditord_hookspecs import RunReport
from auditord_hookspecs.terminal import say, say_lines
from auditord_hookspecs.wire import decode_record
from auditord_hookspecs.wording import counted

_FILES: Final = "files"
_AT_ONCE: Final = 2_000


@dataclass(frozen=True, slots=True)
class Demo:
    """A daemon to look at."""

    file: Path
    configuration: Configuration
    hooks: Hooks


def show(port: int, *, check: bool) -> None:
    """Replay recorded jobs and, unless they are only to be verified, show them with a made-up site until Ctrl-C."""
    with TemporaryDirectory(prefix="auditord-demo-") as folder:
        demo = set_up(Path(folder), port, made_up=not check)
        run_async(_demonstrate, demo, check)


def set_up(folder: Path, port: int, *, made_up: bool = False) -> Demo:
    """Write the demo's configuration into a folder and load it, as the daemon would."""
    hooks = load_hooks([])
    sections = {name: dict(kind.demo()) for name, kind in hooks.kinds.collectors.items() if kind.demo is not None}
    if made_up and _FILES in hooks.kinds.collectors:
        dropped = folder / "dropped"
        dropped.mkdir()
        (dropped / "made-up.ndjson").write_bytes(b"".join(line + b"\n" for line in damaged_lines(utc_now())))
        sections[_FILES] = {"folder": str(dropped), "settle": "0s"}
    document: dict[str, Any] = {  # Any: as a file would say it
        "state_dir": str(folder / "state"),
        "ui": {"title": "auditord demo: a made-up site"},
        "api": {"listen": [f"127.0.0.1:{port}"]},
        "logging": {"level": "warning"},
        "collectors": {name: {"kind": name, **section} for name, section in sections.items()},
    }
    file = folder / "auditord.yml"
    file.write_text(json.dumps(document, indent=2))  # JSON is YAML, too
    return Demo(file, load([file], hooks.kinds, {}, hooks.resolve_secret), hooks)


async def _demonstrate(demo: Demo, check: bool) -> None:  # noqa: FBT001 anyio.run passes by position
    reports = await _collect(demo)
    if not check:
        await _make_up(demo)
    stop = anyio.Event()
    urls: list[str] = []
    served = anyio.Event()

    def ready(at: Sequence[str]) -> None:
        urls.extend(at)
        served.set()

    async with anyio.create_task_group() as group:
        group.start_soon(_serve, demo, ready, stop)
        await served.wait()
        if check:
            await _verify(urls[0], sum(report.records for report in reports))
        else:
            say_lines(_what_to_try(urls[0], demo.file))
            if any(os.environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY")):
                await anyio.to_thread.run_sync(webbrowser.open, urls[0])
            await _interrupted()
        stop.set()
    say_lines("The demo ended well." if check else "\nThe demo is over; its temporary folder is gone.")


async def _collect(demo: Demo) -> list[RunReport]:
    reports: list[RunReport] = []
    async with acting(demo.configuration, demo.hooks, utc_now) as owner:
        for instance in demo.configuration.collectors:
            watcher = Watcher(instance)
            with watcher.bar:
                report = await owner.run(RunRequest(instance), watcher)
            damaged = ": lines that are damaged on purpose, see 'quarantine list' below" if instance == _FILES else ""
            say_lines(f"collected  {summary(report)}{damaged}")
            reports.append(report)
    if failed := [report for report in reports if report.error is not None]:
        raise DemoFailed(f"{failed[0].task}: {failed[0].error}")
    return reports


async def _make_up(demo: Demo) -> None:
    """Put the records of the made-up site into the store, and one of them right, as an operator would."""
    now, bar = utc_now(), progress_bar()
    records = list(made_up_records(now))
    keys = demo.configuration.metrics.database.counted_keys
    with bar:
        task = bar.add_task("made-up site", total=len(records))
        async with open_store(demo.configuration.store, counted_keys=keys) as store:
            for first in range(0, len(records), _AT_ONCE):
                some = records[first : first + _AT_ONCE]
                await store.add_all(some, Provenance(now, "demo", None), Duplicates.SAME_RUN, atomic=False)
                bar.update(task, completed=first + len(some))
            stored = await store.get(WRONG) or b""
            right, reason = corrected(decode_record(stored)), "made up: it had 8 cores, not 800"
            amendment = Amendment(Action.CORRECT, stored, right, reason)
            await store.amend([amendment], Provenance(now, "demo", None))
    say_lines(f"made up    {counted(len(records), 'record')} of a site that does not exist")


async def _serve(demo: Demo, ready: Callable[[Sequence[str]], None], stop: anyio.Event) -> None:
    await run(demo.configuration, demo.hooks, ready=ready, now=utc_now, stop=stop)


async def _interrupted() -> None:
    signals: AbstractContextManager[Any] = anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM)  # Any: a signal
    with signals as received:
        async for _ in received:
            return


async def _verify(url: str, expected: int) -> None:
    """Ask the REST API for what was collected.

    Raises:
        DemoFailed: something is missing.
    """
    async with aiohttp.ClientSession(url) as session:
        answers: Mapping[str, str] = {
            path: await _get(session, path) for path in ("/health_check", "/records", "/metrics")
        }
    served = answers["/records"].count('{"record_id":')
    say(f"served     {served} of {counted(expected, 'record')} at {url}/records")
    if served != expected or not expected:
        raise DemoFailed(f"{counted(expected, 'record was', 'records were')} collected, and {served} served")
    if f"num_records_database {expected}\n" not in answers["/metrics"]:
        raise DemoFailed(f"/metrics does not count {counted(expected, 'record')}")


async def _get(session: aiohttp.ClientSession, path: str) -> str:
    async with session.get(path) as answer:
        if answer.status != HTTPStatus.OK:
            raise DemoFailed(f"GET {path} was answered with {answer.status}")
        return await answer.text()


def _what_to_try(url: str, file: Path) -> str:
    called = program()
    return f"""
Look at it:  {url}{_from_afar(url)}

Three months of a made-up site (nothing in it was measured), and recorded jobs of a real Slurm. Ctrl-C ends it. In
another terminal:

  {called} top groups --config {file}
  {called} report usage --output chart --config {file}
  {called} status --config {file}
  {called} quarantine list --config {file}
  {called} records history {WRONG} --config {file}
  curl '{url}/records?limit=3'
  curl -g '{url}/records?meta[user_id][c][0]=alice&sort_by[desc]=runtime'
  curl '{url}/metrics'

The configuration of this demo is {file}.
"""


def _from_afar(url: str) -> str:
    """The remedy of a user whose browser runs on another machine."""
    if "SSH_CONNECTION" not in os.environ:
        return ""
    port = urlsplit(url).port
    return f"\nFrom another machine: ssh -L {port}:127.0.0.1:{port} {socket.gethostname()}, then the same URL there."
