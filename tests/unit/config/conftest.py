"""Kinds that exist only here, and a way to load a text as if it were the configuration file."""

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import pytest
from pydantic import Field, SecretStr

from auditord.config.kinds import InstalledKinds
from auditord.config.loading import Loaded, load_with_sources
from auditord_hookspecs import (
    Authenticate,
    AuthenticatorContext,
    AuthenticatorKind,
    Batch,
    CollectorContext,
    CollectorKind,
    InstanceConfig,
    PluginContext,
    PluginKind,
    RunConfig,
    Secret,
    Section,
    Sender,
    SenderContext,
    SenderKind,
)


class Rule(Section):
    name: str
    matches: str = ".*"


class PagesConfig(RunConfig):
    path: Path
    record_prefix: str = "pages"
    sites: tuple[Rule, ...] = ()
    trays: Mapping[str, Rule] = Field(default_factory=dict[str, Rule])
    paper: str | tuple[str, ...] = "A4"


class CopiesConfig(RunConfig):
    paper: tuple[str, ...] = ()


class MailConfig(RunConfig):
    password: Secret | None = None
    recipients: tuple[str, ...] = ()


class PostConfig(InstanceConfig):
    category: str = Field(default="letters", alias="class")
    token: Secret = SecretStr("")


async def collect(config: RunConfig, context: CollectorContext) -> AsyncIterator[Batch]:
    yield Batch(checkpoint=[config, context])


async def run(config: MailConfig, context: PluginContext) -> None:
    context.log.info("%s", config)


def post(config: PostConfig, context: SenderContext) -> AbstractAsyncContextManager[Sender]:
    raise NotImplementedError(config, context)


def badges(config: InstanceConfig, context: AuthenticatorContext) -> AbstractAsyncContextManager[Authenticate]:
    raise NotImplementedError(config, context)


def prefix(config: PagesConfig) -> str:
    return config.record_prefix


@pytest.fixture
def kinds() -> InstalledKinds:
    collectors: dict[str, CollectorKind[Any]] = {
        "pages": CollectorKind(name="pages", config=PagesConfig, collect=collect, prefix=prefix),
        "copies": CollectorKind(name="copies", config=CopiesConfig, collect=collect),
    }
    mail = PluginKind(name="mail", config=MailConfig, run=run)
    senders = {"post": SenderKind("post", PostConfig, post)}
    return InstalledKinds(
        collectors,
        {"mail": mail},
        senders,
        {
            "badges": AuthenticatorKind("badges", InstanceConfig, badges, lambda _: ()),
            "gates": AuthenticatorKind("gates", InstanceConfig, badges, lambda _: ("own",)),
            "names": AuthenticatorKind("names", InstanceConfig, badges, lambda _: ("own",), lambda _: True),
        },
    )


Load = Callable[..., Loaded]


@pytest.fixture
def load(tmp_path: Path, kinds: InstalledKinds) -> Load:
    """Load a text from ``a.yml`` in an empty folder, with the environment given by keyword."""

    def load(text: str, **environ: str) -> Loaded:
        path = tmp_path / "a.yml"
        path.write_text(text)
        environment = {"HOME": "/home/me", **environ}
        return load_with_sources([path], kinds, environment, known_secrets.get)

    known_secrets = {"env:KEY": SecretStr("sesame")}
    return load
