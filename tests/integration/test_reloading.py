"""The configuration of a running daemon is exchanged in the middle of its work: nothing is lost, nothing twice."""

import json
import os
import signal
import sys
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import datetime
from pathlib import Path
from types import ModuleType
from typing import Any

import anyio
import pytest
from pydantic import SecretStr

from auditord import supervisor
from auditord.cli.daemon_client import DaemonClient
from auditord.cli.daemons import connect
from auditord.config.loading import ConfigurationFiles
from auditord.config.merging import CONTROL_FILE
from auditord.config.secrets import ResolveSecret
from auditord.errors import DaemonError
from auditord.hooks import Hooks, load_hooks
from auditord.tasks import gauges
from auditord.testing import make_record
from auditord.web.api.shapes import Reloaded, ReloadWanted
from auditord_builtin import local
from auditord_builtin.secrets import resolve
from auditord_hookspecs import (
    Batch,
    CollectorContext,
    CollectorKind,
    RecordQuery,
    RunConfig,
    Secret,
    hookimpl,
)
from auditord_hookspecs.sources import TlsFiles
from tests.integration.test_supervisor import entry, now

pytestmark = pytest.mark.anyio


class CountingConfig(RunConfig):
    """Options of a source of numbered jobs."""

    upto: int
    pause_at: int | None = None
    tls: TlsFiles = TlsFiles()
    password: Secret | None = None


class Source:
    """Numbered jobs, each its own batch; at ``pause_at`` a run waits."""

    def __init__(self) -> None:
        self.reached = anyio.Event()
        self.cancelled = 0
        self.uptos: list[int] = []

    async def collect(self, config: CountingConfig, context: CollectorContext) -> AsyncGenerator[Batch, None]:
        self.uptos.append(config.upto)
        for number in range(context.checkpoint or 0, config.upto):
            if number == config.pause_at:
                self.reached.set()
                try:
                    await anyio.sleep_forever()
                except anyio.get_cancelled_exc_class():
                    self.cancelled += 1
                    raise
            yield Batch([make_record(f"job-{number}")], checkpoint=number + 1)

    def hooks(self) -> Hooks:
        @hookimpl
        def auditord_collectors() -> list[CollectorKind[Any]]:
            return [CollectorKind(name="jobs", config=CountingConfig, collect=self.collect)]

        module = ModuleType("third_party")
        setattr(module, auditord_collectors.__name__, auditord_collectors)
        entries = [entry(module), entry(local)]
        return load_hooks([], entries)


class Files:
    """The configuration files of a daemon."""

    def __init__(self, folder: Path, hooks: Hooks) -> None:
        self._file = folder / "auditord.yml"
        self._hooks = hooks
        self.state = folder / "state"
        self.resolve: ResolveSecret = lambda reference: resolve(reference, {})

    def write(self, collectors: Any, **others: Any) -> None:
        document = {"state_dir": str(self.state), "api": {"listen": ["127.0.0.1:0"]}, "shutdown": {"grace": "50ms"}}
        self._file.write_text(json.dumps({**document, "collectors": collectors, **others}))

    def _resolve(self, reference: str) -> SecretStr | None:
        return self.resolve(reference)

    @property
    def configured(self) -> ConfigurationFiles:
        return ConfigurationFiles([self._file], self._hooks.kinds, {}, self._resolve)


@asynccontextmanager
async def daemon(files: Files, hooks: Hooks) -> AsyncGenerator[DaemonClient, None]:
    """A client of a running daemon; leaving stops it in order."""
    stop, begun = anyio.Event(), anyio.Event()

    def ready(_: Sequence[str]) -> None:
        begun.set()

    async with anyio.create_task_group() as group:
        configured = files.configured
        group.start_soon(
            lambda: supervisor.run(configured.read(), hooks, ready=ready, now=now, stop=stop, files=configured)
        )
        with anyio.fail_after(30):
            await begun.wait()
        async with connect(files.state / CONTROL_FILE) as client:
            assert client is not None
            yield client
        stop.set()


async def ids_once(client: DaemonClient, enough: Callable[[list[str]], bool]) -> list[str]:
    """The stored ids, as soon as they are enough."""
    with anyio.fail_after(30):
        while True:
            async with client.stream(RecordQuery()) as records:
                ids = [record.record_id async for record in records]
            if enough(ids):
                return ids
            await anyio.sleep(0.02)


async def reload(client: DaemonClient, *, dry_run: bool) -> Reloaded:
    return await client.post("configuration/reload", ReloadWanted(dry_run=dry_run), Reloaded)


JOBS = {"kind": "jobs", "interval": "1h"}


async def test_a_collector_is_exchanged_in_the_middle_of_its_run(tmp_path: Path) -> None:
    source = Source()
    files = Files(tmp_path, hooks := source.hooks())
    files.write({"jobs": {**JOBS, "upto": 5, "pause_at": 3}})
    async with daemon(files, hooks) as client:
        await source.reached.wait()
        files.write({"jobs": {**JOBS, "upto": 8}})
        changes = await reload(client, dry_run=False)
        assert (changes.applied, list(changes.instances)) == (True, ["collectors.jobs"])
        assert ("collectors.jobs.upto", 5, 8) in [
            (each.option, each.running, each.written) for each in changes.differences
        ]
        ids = await ids_once(client, lambda ids: len(ids) >= 8)
    assert sorted(ids) == [f"job-{number}" for number in range(8)]
    assert (source.cancelled, source.uptos) == (1, [5, 8])


async def test_instances_come_and_go(tmp_path: Path) -> None:
    source = Source()
    files = Files(tmp_path, hooks := source.hooks())
    files.write({"one": {**JOBS, "upto": 2}})
    async with daemon(files, hooks) as client:
        await ids_once(client, lambda ids: len(ids) == 2)
        files.write({"two": {**JOBS, "upto": 3}})
        assert (await reload(client, dry_run=False)).applied
        await ids_once(client, lambda ids: len(ids) == 3)
        assert [each.name for each in (await client.instances()).instances if each.section == "collectors"] == ["two"]
        files.write({"two": {**JOBS, "upto": 3, "enabled": False}, "one": {**JOBS, "upto": 4}})
        assert (await reload(client, dry_run=False)).applied
        await ids_once(client, lambda ids: len(ids) == 4)
        assert not (await reload(client, dry_run=False)).differences


async def test_what_needs_a_restart_changes_nothing(tmp_path: Path) -> None:
    source = Source()
    files = Files(tmp_path, hooks := source.hooks())
    files.write({"jobs": {**JOBS, "upto": 1}})
    async with daemon(files, hooks) as client:
        files.write({"jobs": {**JOBS, "upto": 9}}, store={"url": f"sqlite:///{tmp_path}/other.db"})
        changes = await reload(client, dry_run=False)
        assert (changes.applied, list(changes.restart)) == (False, ["store"])
        await ids_once(client, lambda ids: len(ids) == 1)
    assert set(source.uptos) == {1}


async def test_a_rotated_password_of_the_database_needs_no_restart(tmp_path: Path, postgres_url: str) -> None:
    source = Source()
    files = Files(tmp_path, hooks := source.hooks())
    password = tmp_path / "password"
    password.touch(0o600)

    def rotate(upto: int) -> None:
        password.write_text(f"secret {upto}")
        files.write({"jobs": {**JOBS, "upto": upto}}, store={"url": postgres_url, "password": f"file:{password}"})

    rotate(1)
    async with daemon(files, hooks) as client:
        for upto in (2, 3):
            rotate(upto)
            changes = await reload(client, dry_run=False)
            assert (changes.instances, changes.restart) == (["collectors.jobs"], [])


async def test_a_fault_in_the_files_leaves_the_daemon_as_it_was(tmp_path: Path) -> None:
    source = Source()
    files = Files(tmp_path, hooks := source.hooks())
    files.write({"jobs": {**JOBS, "upto": 1}})
    async with daemon(files, hooks) as client:
        files.write({"jobs": {**JOBS, "upto": "many"}})
        with pytest.raises(DaemonError, match=r"collectors\.jobs\.upto.*many"):
            await reload(client, dry_run=False)
        await ids_once(client, lambda ids: len(ids) == 1)
        files.write({"jobs": {**JOBS, "upto": 2}})
        assert (await reload(client, dry_run=True)).differences
        assert (await reload(client, dry_run=False)).applied
        await ids_once(client, lambda ids: len(ids) == 2)


async def test_a_module_that_cannot_resolve_a_secret_leaves_the_daemon_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    @hookimpl
    def auditord_resolve_secret(reference: str) -> SecretStr:
        raise ConnectionError(f"{reference}: the vault is away")

    module = ModuleType("vault")
    setattr(module, auditord_resolve_secret.__name__, auditord_resolve_secret)
    source = Source()
    files = Files(tmp_path, hooks := source.hooks())
    files.write({"jobs": {**JOBS, "upto": 1}})
    monkeypatch.setattr(sys, "stdin", None)  # on a terminal, the signal would end pytest
    async with daemon(files, hooks) as client:
        files.resolve = load_hooks([], [entry(module)]).resolve_secret
        files.write({"jobs": {**JOBS, "upto": 2, "password": "vault:jobs"}})
        with pytest.raises(DaemonError, match="vault:jobs: the vault is away"):
            await reload(client, dry_run=False)
        os.kill(os.getpid(), signal.SIGHUP)
        with anyio.fail_after(30):
            while "not reloaded: vault" not in caplog.text:  # noqa: ASYNC110 the daemon sets no event
                await anyio.sleep(0.01)
        files.write({"jobs": {**JOBS, "upto": 2}})
        assert (await reload(client, dry_run=False)).applied


async def test_an_unreadable_certificate_is_logged_once_and_not_read_again_after_its_instance_is_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    looked: list[Sequence[Path]] = []

    def look(files: Sequence[Path]) -> tuple[Mapping[str, datetime], Mapping[str, str]]:
        looked.append(files)
        return {}, {str(file): "there is no such file" for file in files}

    monkeypatch.setattr(gauges, "_HOST_SECONDS", 0.01)
    monkeypatch.setattr(gauges, "_certificates", look)
    hooks = Source().hooks()
    files, authority = Files(tmp_path, hooks), tmp_path / "authority.pem"
    files.write({"jobs": {"kind": "jobs", "upto": 1, "tls": {"ca": str(authority)}}})

    async def next_look() -> Sequence[Path]:
        looked.clear()
        with anyio.fail_after(30):
            while True:
                if looked:
                    return looked[-1]
                await anyio.sleep(0.01)

    async with daemon(files, hooks) as client:
        assert await next_look() == [authority]
        assert await next_look() == [authority]
        assert caplog.text.count("no certificate can be read: there is no such file") == 1
        files.write({})
        assert (await reload(client, dry_run=False)).applied
        await next_look()  # it may have begun before
        assert await next_look() == []
