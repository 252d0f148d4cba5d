"""``auditord demo``: run a daemon in a temporary folder, with recorded and made-up records, until Ctrl-C.

Each kind of collector with a ``demo`` (of the built-in kinds only ``slurm``) reads recorded accounting data of a real
batch system into an embedded store. With ``--check``, the demo then verifies that the daemon serves these records, and
ends.

Otherwise it adds three months of a made-up site. No value in them was measured. The random numbers have a fixed seed,
but the records still depend on the current time. The site has two clusters, and five groups with sixty users. Weekends
and nights are quieter, some jobs are arrays, some fail, and some use GPUs. Halfway through, faster machines raise the
score per core.
"""

import json
import os
import signal
import socket
import webbrowser
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from datetime import UTC, datetime, timedelta
from functools import partial
from http import HTTPStatus
from itertools import chain
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any, Final
from urllib.parse import urlsplit

import aiohttp
import anyio
import anyio.to_thread
import msgspec
from msgspec import structs

from auditord.actions import RunRequest
from auditord.cli.collect import Watcher, summary
from auditord.cli.installation import program, run_async, utc_now
from auditord.cli.progress import progress_bar
from auditord.config.loading import ConfigurationFiles
from auditord.config.model import Configuration
from auditord.duplicates import Duplicates
from auditord.errors import DemoFailed
from auditord.hooks import Hooks, load_hooks
from auditord.store import Amendment, Provenance
from auditord.store.amendments import Action
from auditord.store.opening import open_configured_store
from auditord.supervisor import acting, run
from auditord_hookspecs import Component, Record, RunReport, Score
from auditord_hookspecs.terminal import say, say_lines
from auditord_hookspecs.vocabulary import OUTCOME
from auditord_hookspecs.wire import decode_record, encode_record
from auditord_hookspecs.wording import counted

_FILES: Final = "files"
"""The kind of collector that reads the damaged lines; the demo's instance of it has the same name."""

_BATCH_SIZE: Final = 2_000


class Demo(msgspec.Struct, frozen=True):
    """A configured demo."""

    files: ConfigurationFiles
    configuration: Configuration
    hooks: Hooks


def run_demo(port: int, *, check: bool) -> None:
    """Collect recorded jobs, then serve them with a made-up site until Ctrl-C, or only verify that they are served.

    Args:
        port: the port on 127.0.0.1 on which the daemon listens.
        check: whether to verify only.
    """
    with TemporaryDirectory(prefix="auditord-demo-") as folder:
        demo = set_up(Path(folder), port, made_up=not check)
        run_async(_demonstrate, demo, check)
    say_lines("The demo succeeded." if check else "\nThe demo is over; its temporary folder is deleted.")


def set_up(folder: Path, port: int, *, made_up: bool = False) -> Demo:
    """Write the demo's configuration into a folder and load it as the daemon would.

    With ``made_up``, also write damaged record lines for the collector of files.
    """
    hooks = load_hooks([])
    sections = {name: dict(kind.demo()) for name, kind in hooks.kinds.collectors.items() if kind.demo is not None}
    if made_up and _FILES in hooks.kinds.collectors:
        dropped = folder / "dropped"
        dropped.mkdir()
        (dropped / "made-up.ndjson").write_bytes(b"".join(line + b"\n" for line in make_damaged_lines(utc_now())))
        sections[_FILES] = {"folder": str(dropped), "settle": "0s"}
    document: dict[str, Any] = {  # Any: like the content of a file
        "state_dir": str(folder / "state"),
        "ui": {"title": "auditord demo: a made-up site"},
        "api": {"listen": [f"127.0.0.1:{port}"]},
        "logging": {"level": "warning"},
        "collectors": {name: {"kind": name, **section} for name, section in sections.items()},
    }
    file = folder / "auditord.yml"
    file.write_text(json.dumps(document, indent=2))  # JSON is also YAML
    files = ConfigurationFiles([file], hooks.kinds, {}, hooks.resolve_secret)
    return Demo(files, files.read(), hooks)


async def _demonstrate(demo: Demo, check: bool) -> None:  # noqa: FBT001 anyio.run passes by position
    reports = await _collect(demo)
    if not check:
        # Store the records of the made-up site, and correct one of them as an operator would.
        now, bar = utc_now(), progress_bar()
        records = list(make_up_records(now))
        with bar:
            task = bar.add_task("made-up site", total=len(records))
            async with open_configured_store(demo.configuration) as store:
                for first in range(0, len(records), _BATCH_SIZE):
                    batch = records[first : first + _BATCH_SIZE]
                    await store.add_all(batch, Provenance(now, "demo", None), Duplicates.SAME_RUN, atomic=False)
                    bar.update(task, completed=first + len(batch))
                stored = await store.get(WRONG) or b""
                correct, reason = correct_cores(decode_record(stored)), "made up: it had 8 cores, not 800"
                amendment = Amendment(Action.CORRECT, stored, correct, reason)
                await store.amend([amendment], Provenance(now, "demo", None))
        say_lines(f"made up    {counted(len(records), 'record')} of a site that does not exist")
    stop = anyio.Event()
    urls: list[str] = []
    served = anyio.Event()

    def ready(at: Sequence[str]) -> None:
        urls.extend(at)
        served.set()

    serve = partial(run, demo.configuration, demo.hooks, ready=ready, now=utc_now, stop=stop, files=demo.files)
    async with anyio.create_task_group() as group:
        group.start_soon(serve)
        await served.wait()
        if check:
            await _verify(urls[0], sum(report.records for report in reports))
        else:
            say_lines(_what_to_try(urls[0], Path(*demo.files.names())))
            if any(os.environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY")):
                await anyio.to_thread.run_sync(webbrowser.open, urls[0])
            # Any: a signal
            signals: AbstractContextManager[Any] = anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM)
            with signals as received:
                async for _ in received:
                    break
        stop.set()


async def _collect(demo: Demo) -> list[RunReport]:
    """Run every collector once and return the reports.

    Raises:
        DemoFailed: a run failed.
    """
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


async def _verify(url: str, expected: int) -> None:
    """Check that the REST API serves all collected records, and that ``/metrics`` counts them.

    Raises:
        DemoFailed: a request failed, no record was collected, or the numbers differ.
    """
    answers: dict[str, str] = {}
    async with aiohttp.ClientSession(url) as session:
        for path in ("/health_check", "/records", "/metrics"):
            async with session.get(path) as answer:
                if answer.status != HTTPStatus.OK:
                    raise DemoFailed(f"GET {path} was answered with {answer.status}")
                answers[path] = await answer.text()
    served = answers["/records"].count('{"record_id":')
    say(f"served     {served} of {counted(expected, 'record')} at {url}/records")
    if served != expected or not expected:
        raise DemoFailed(f"{counted(expected, 'record was', 'records were')} collected, and {served} served")
    if f"num_records_database {expected}\n" not in answers["/metrics"]:
        raise DemoFailed(f"/metrics does not count {counted(expected, 'record')}")


def _what_to_try(url: str, file: Path) -> str:
    called, hint = program(), ""
    if "SSH_CONNECTION" in os.environ:
        port = urlsplit(url).port
        forwarded = f"ssh -L {port}:127.0.0.1:{port} {socket.gethostname()}"
        hint = f"\nFrom another machine: {forwarded}, then the same URL there."
    return f"""
Look at it:  {url}{hint}

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


DAYS: Final = 92
"""The number of days before today for which records are made up."""

LATE: Final = "aurora-demo-late"
"""The id of a record that is stored after records of later jobs: records need not arrive in order."""

WRONG: Final = "aurora-demo-wrong"
"""The id of a record with a wrong number of cores, which the demo then corrects."""

_SEED: Final = 2026
_USERS: Final = 60
_WEEKEND_ACTIVITY: Final = 0.3
"""The submissions on a day of a weekend, as a share of those on a weekday."""

_SATURDAY: Final = 5
_ARRAY_RATE: Final = 0.08
_FAILURE_RATE: Final = 0.06
_MAX_SECONDS: Final = 47 * 3_600
_OLD_SCORE, _NEW_SCORE = 13.2, 17.8
"""HEPscore23 per core, before and after the new machines."""

_WATTS_PER_CORE: Final = 5
_WATTS_PER_GPU: Final = 240


class _Group(msgspec.Struct, frozen=True):
    """The job profile of a group.

    Args:
        users: the number of its users.
        cores: the numbers of cores of its jobs; frequent numbers are repeated.
        hours: the median duration of its jobs.
        efficiency: the typical share of the cores' time that its jobs use.
        gpus: the numbers of GPUs of its jobs; frequent numbers are repeated.
    """

    name: str
    users: int
    cluster: str
    cores: tuple[int, ...]
    hours: float
    efficiency: float
    gpus: tuple[int, ...] = (0,)


_GROUPS: Final = (
    _Group("particle-physics", 18, "aurora", (8, 8, 8, 16, 32), 9.0, 0.88),
    _Group("climate", 10, "borealis", (32, 64, 128), 6.0, 0.93),
    _Group("genomics", 14, "aurora", (1, 1, 2, 4, 8), 1.6, 0.55),
    _Group("materials", 10, "borealis", (16, 32, 64), 8.0, 0.9),
    _Group("machine-learning", 8, "borealis", (8, 16), 4.0, 0.35, (1, 1, 2, 4)),
)


def make_up_records(now: datetime) -> Iterator[Record]:
    """Yield the records of the jobs that ended by ``now``, roughly by start time, then the late and the wrong one."""
    random, number = Random(_SEED), 1_000  # noqa: S311 reproducible, not secret
    begin = now.astimezone(UTC).replace(hour=0, minute=0, second=0, microsecond=0) - timedelta(days=DAYS)
    groups = [group for group in _GROUPS for _ in range(group.users)]
    users = list(enumerate(groups[:_USERS]))
    for day in range(DAYS + 1):
        morning = begin + timedelta(days=day)
        quiet = _WEEKEND_ACTIVITY if morning.weekday() >= _SATURDAY else 1.0
        for user, group in users:
            busy = 0.55 + 0.45 * ((user * 7 + morning.toordinal() // 9) % 5) / 4  # some weeks are busier than others
            for _ in range(int(random.expovariate(1.0) * 2.2 * busy * quiet + 0.35)):
                hour = min(max(random.gauss(13.5, 4.0), 0.0), 23.9)
                start = morning + timedelta(seconds=int(hour * 3_600))
                tasks = random.choice((5, 10, 20)) if random.random() < _ARRAY_RATE else 1
                number += 1
                for record in _jobs(random, start, tasks, (user, group), f"{number}", fast=day > DAYS // 2):
                    if record.stop_time is not None and record.stop_time <= now:
                        yield record
    yield _single(LATE, begin + timedelta(days=40, hours=9), 16)
    yield _with_cores(_single(WRONG, now - timedelta(days=2), 8), 800)


def make_damaged_lines(now: datetime) -> Iterator[bytes]:
    """Yield six malformed record lines: truncated JSON, and records without a start time."""
    for at, hours in enumerate((30, 29, 7)):
        record = _single(f"aurora-demo-damaged-{at}", now - timedelta(hours=hours), 8)
        text = encode_record(record)
        yield text[: len(text) // 2]
        yield text.replace(b'"start_time"', b'"began"')


def correct_cores(record: Record) -> Record:
    """Return the record :data:`WRONG` with its correct number of cores."""
    return _with_cores(record, 8)


def _with_cores(record: Record, count: int) -> Record:
    cores, *others = record.components
    return structs.replace(record, components=(structs.replace(cores, amount=count), *others))


def _jobs(
    random: Random, start: datetime, tasks: int, user: tuple[int, _Group], name: str, *, fast: bool
) -> Iterator[Record]:
    """Yield a record for each task of a submission; ``fast`` says whether the new machines are in use."""
    number, group = user
    cores, gpus = random.choice(group.cores), random.choice(group.gpus)
    hours = group.hours * (0.6 if fast and group.cluster == "borealis" else 1.0)
    for task in range(tasks):
        failed = random.random() < _FAILURE_RATE
        seconds = int(min(random.lognormvariate(0.0, 0.7) * hours * 3_600, _MAX_SECONDS)) + 20
        seconds = random.randint(5, 600) if failed else seconds
        waited = timedelta(seconds=random.randint(0, 5_400))
        used = max(0.02, min(1.0, random.gauss(group.efficiency - 0.02 * (number % 6), 0.06)))
        record_id = f"{group.cluster}-demo-{name}" + (f"_{task}" if tasks > 1 else "")
        labels = {OUTCOME: "failed" if failed else "completed", "user_id": f"demo-user-{number + 1:02}"}
        labels["partition"] = "gpu" if gpus else "cpu"
        waiting = Component("WaitTime", waited // timedelta(seconds=1), ())
        components = chain(_components(cores, gpus, seconds, used, _NEW_SCORE if fast else _OLD_SCORE), [waiting])
        yield _record(record_id, start + waited, seconds, components, (group, labels))


def _components(cores: int, gpus: int, seconds: int, used: float, score: float) -> Iterator[Component]:
    yield Component("Cores", cores, (Score("HEPscore23", score),))
    yield Component("Memory", cores * 3_000, ())
    yield Component("TotalCPU", int(cores * seconds * used), ())
    yield Component("Energy", (cores * _WATTS_PER_CORE + gpus * _WATTS_PER_GPU) * seconds, ())
    if gpus:
        yield Component("GPU", gpus, ())


def _record(
    name: str, start: datetime, seconds: int, components: Iterator[Component], of: tuple[_Group, Mapping[str, str]]
) -> Record:
    group, labels = of
    named = {"site_id": f"{group.cluster}-demo", "group_id": group.name, "account": group.name, "origin": "made up"}
    named |= labels
    meta: dict[str, tuple[str, ...]] = {key: (value,) for key, value in named.items()}
    return Record(name, start, tuple(components), start + timedelta(seconds=seconds), meta)


def _single(name: str, start: datetime, cores: int) -> Record:
    """Return the record of a job of two hours by the first user."""
    labels = {OUTCOME: "completed", "user_id": "demo-user-01", "partition": "cpu"}
    return _record(name, start, 7_200, _components(cores, 0, 7_200, 0.5, _NEW_SCORE), (_GROUPS[0], labels))
