"""Kinds and commands that hook modules declare by name, and import when they are asked for."""

from collections.abc import Callable, Iterable
from typing import Any

import click
import pytest

from auditord.cli.hooks import find_commands
from auditord.errors import HookError
from auditord.hooks import HookEntry, find_broken_kinds, load_hooks
from auditord_hookspecs import Deferred, InstanceConfig, PluginContext, PluginKind, RunConfig, hookimpl

Install = Callable[..., HookEntry]


async def run(config: RunConfig, context: PluginContext) -> None:
    context.log.info("%s", config)


def mail(name: str = "mail", config: Any = RunConfig) -> PluginKind[Any]:  # Any: wrong ones, too
    return PluginKind(name=name, config=config, run=run)


def declaring(load: Callable[[], Any]) -> Callable[[], Iterable[Deferred[PluginKind[Any]]]]:
    @hookimpl
    def auditord_plugins() -> Iterable[Deferred[PluginKind[Any]]]:
        yield Deferred("mail", load)

    return auditord_plugins


def test_a_kind_is_made_when_it_is_first_asked_for(install: Install) -> None:
    asked = list[PluginKind[Any]]()

    def load() -> PluginKind[Any]:
        asked.append(mail())
        return asked[-1]

    kinds = load_hooks([], [install("post", declaring(load))]).kinds
    assert (list(kinds.plugins), "mail" in kinds.plugins, asked) == (["mail"], True, [])
    assert kinds.plugins["mail"] is kinds.plugins["mail"]
    assert len(asked) == 1


def unimportable() -> PluginKind[Any]:
    raise ImportError("No module named 'cups'")


@pytest.mark.parametrize(
    ("load", "reason"),
    [
        (unimportable, "cannot be imported: ImportError: No module named 'cups'"),
        (lambda: mail(config=int), "whose config is not a model derived from RunConfig or InstanceConfig"),
        (lambda: "mail", "declares 'mail' among its plugins: yield values of PluginKind"),
        (lambda: mail(name="post"), "declares the kind 'mail' of plugins, which loads as 'post'"),
    ],
)
def test_one_that_cannot_be_used_is_named_when_it_is_asked_for(
    install: Install, load: Callable[[], Any], reason: str
) -> None:
    kinds = load_hooks([], [install("post", declaring(load))]).kinds
    with pytest.raises(HookError) as caught:
        kinds.plugins["mail"]
    assert "acme_post (entry point post of acme 1.2)" in str(caught.value)
    assert reason in str(caught.value)
    assert list(find_broken_kinds(kinds)) == [str(caught.value)]


def test_its_name_is_looked_at_at_once(install: Install) -> None:
    @hookimpl
    def auditord_plugins() -> Iterable[Deferred[PluginKind[Any]]]:
        yield Deferred("Mail", mail)

    with pytest.raises(HookError, match="declares the kind 'Mail' of plugins, whose name is not an identifier"):
        load_hooks([], [install("post", auditord_plugins)])


def test_two_modules_cannot_bring_the_same_one(install: Install) -> None:
    with pytest.raises(HookError, match="declares the kind 'mail' of plugins, as acme_one"):
        load_hooks([], [install("one", declaring(mail)), install("two", declaring(mail))])


def test_all_of_the_built_in_ones_can_be_loaded_and_list_their_commands_as_they_are() -> None:
    assert list(find_broken_kinds(load_hooks([]).kinds)) == []
    assert issubclass(load_hooks([]).kinds.collectors["slurm"].config, InstanceConfig)
    with click.Context(click.Command("auditord")):
        commands = find_commands(())
    assert {"apel", "open-records", "report", "token", "waldur"} <= commands.keys()
    for name, provided in commands.items():
        assert provided.load().get_short_help_str(200) == provided.help, name
        assert isinstance(provided.load(), click.Command)
