from collections.abc import AsyncIterator, Callable, Generator, Iterable
from contextlib import AbstractAsyncContextManager
from functools import partial, wraps
from pathlib import Path
from runpy import run_path
from threading import Event
from types import FunctionType
from typing import Any

import pytest
from pydantic import BaseModel

from auditord.errors import HookError
from auditord.hooks import HookEntry, HookModule, find_entries, hooks, load_hooks, survey
from auditord_hookspecs import (
    Batch,
    CollectorContext,
    CollectorKind,
    InstanceConfig,
    PluginContext,
    PluginKind,
    RunConfig,
    Sender,
    SenderContext,
    SenderKind,
    hookimpl,
)
from auditord_hookspecs.contract import DECLARED_AS
from tests.unit.hooks.conftest import install as make_entry

Install = Callable[..., HookEntry]
Broken = Callable[[str, BaseException], HookEntry]


async def collect(config: RunConfig, context: CollectorContext) -> AsyncIterator[Batch]:
    yield Batch(checkpoint=[config, context])


async def run(config: RunConfig, context: PluginContext) -> None:
    context.log.info("%s", config)


def opened(config: InstanceConfig, context: SenderContext) -> AbstractAsyncContextManager[Sender]:
    raise NotImplementedError(config, context)


def collectors(*names: str) -> Callable[[], Iterable[CollectorKind[Any]]]:
    @hookimpl
    def auditord_collectors() -> Iterable[CollectorKind[Any]]:
        for name in names:
            yield CollectorKind(name=name, config=RunConfig, collect=collect)

    return auditord_collectors


def declaring(hook: str, *kinds: Any) -> Callable[[], Iterable[Any]]:
    def declare() -> Iterable[Any]:
        return kinds

    declare.__name__ = hook
    return hookimpl(declare)


def refusal(*entries: HookEntry, disabled: tuple[str, ...] = ()) -> str:
    with pytest.raises(HookError) as caught:
        load_hooks(disabled, entries)
    return str(caught.value)


def test_modules_say_what_they_implement_and_bring(install: Install) -> None:
    @hookimpl
    def auditord_plugins() -> list[PluginKind[Any]]:
        return [PluginKind(name="mail", config=RunConfig, run=run)]

    senders = declaring("auditord_senders", SenderKind("post", InstanceConfig, opened))
    hooks = load_hooks([], [install("one", collectors("pages", "copies"), auditord_plugins), install("two", senders)])
    assert [(each.name, each.module, each.distribution, each.version) for each in hooks.modules] == [
        ("one", "acme_one", "acme", "1.2"),
        ("two", "acme_two", "acme", "1.2"),
    ]
    assert hooks.modules[0].hooks == ("auditord_collectors", "auditord_plugins")
    assert (set(hooks.kinds.collectors), set(hooks.kinds.plugins)) == ({"pages", "copies"}, {"mail"})
    assert set(hooks.kinds.senders) == {"post"}


def test_built_ins_are_loaded_the_same_way() -> None:
    names = {(entry.described.name, entry.described.distribution) for entry in find_entries()}
    assert ("secrets", "auditord") in names
    assert load_hooks([]).modules


def test_an_import_that_does_not_end_is_reported_and_then_refused(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    end = Event()
    monkeypatch.setattr(hooks, "SLOW_IMPORT", 0.05)
    monkeypatch.setattr(hooks, "LONGEST_IMPORT", 0.2)
    try:
        text = refusal(HookEntry(HookModule("slow", "acme_slow", "acme", "1.2"), end.wait))
    finally:
        end.set()
    assert "acme_slow (entry point slow of acme 1.2) cannot be imported: it takes longer than 0.2 s" in text
    assert "importing acme_slow (entry point slow of acme 1.2) takes longer than 0.05 s" in caplog.text


@pytest.mark.parametrize(
    "error", [ImportError("No module named 'cups'"), SystemExit(3), RuntimeError("no"), GeneratorExit("bad")]
)
def test_a_module_that_cannot_be_imported_is_named(install: Install, broken: Broken, error: BaseException) -> None:
    text = refusal(install("good", collectors("pages")), broken("bad", error))
    assert "acme_bad (entry point bad of acme 1.2) cannot be imported" in text
    assert f"{type(error).__name__}: {error}" in text
    assert "hooks.disabled" in text


def test_a_module_that_python_cannot_parse_is_named_with_its_line(tmp_path: Path) -> None:
    file = tmp_path / "acme_wrong.py"
    file.write_text('"""Nothing."""\n\nx = = 1\n')
    entry = HookEntry(HookModule("wrong", "acme_wrong", "acme", "1.2"), partial(run_path, str(file)))
    assert f"cannot be imported: SyntaxError: invalid syntax ({file}:3)" in refusal(entry)


def test_a_declaration_that_returns_its_kind_is_told_to_yield(install: Install) -> None:
    @hookimpl
    def auditord_collectors() -> Any:
        return CollectorKind(name="pages", config=RunConfig, collect=collect)

    expected = "auditord_collectors returns a value of type CollectorKind, not several values: write yield"
    assert f"acme_x (entry point x of acme 1.2): {expected}" in refusal(install("x", auditord_collectors))


def module_for(contract: object) -> HookEntry:
    entry = make_entry("x", collectors("pages"))
    setattr(entry.load(), DECLARED_AS, contract)
    return entry


@pytest.mark.parametrize(
    ("contract", "remedy"),
    [
        ("2.0", "update auditord, or install a release of acme for contract 1.1"),
        ("1.2", "update auditord, or install a release of acme for contract 1.1"),
        ("0.9", "update acme to a release for contract 1, or keep an older auditord"),
    ],
)
def test_a_module_for_another_contract_is_refused_with_both_and_the_remedy(contract: str, remedy: str) -> None:
    said = f"it was written for contract {contract} of hook modules, and this auditord has 1.1: {remedy}"
    assert f"acme_x (entry point x of acme 1.2): {said}" in refusal(module_for(contract))


@pytest.mark.parametrize("contract", ["1", "one", "1.0.0", "1.-1", "", 1.0, ("1", "0"), "²1.0"])
def test_a_contract_that_is_no_version_is_refused(contract: object) -> None:
    said = f"AUDITORD_CONTRACT: {contract!r} is not a version of the contract: write it like '1.1'"
    assert said in refusal(module_for(contract))


@pytest.mark.parametrize("contract", ["1.0", None])
def test_a_module_for_this_contract_or_without_one_takes_part(contract: str | None) -> None:
    assert load_hooks([], [module_for(contract)]).modules


def test_an_import_of_what_a_later_contract_has_says_so(broken: Broken) -> None:
    error = ImportError("cannot import name 'Teleporter'", name="auditord_hookspecs.kinds")
    assert "this auditord has contract 1.1 of hook modules: a module for a later" in refusal(broken("bad", error))
    assert "has contract" not in refusal(broken("bad", ImportError("no cups", name="cups")))


def test_an_interrupt_at_import_is_no_fault_of_the_module(broken: Broken) -> None:
    with pytest.raises(KeyboardInterrupt):
        load_hooks([], [broken("bad", KeyboardInterrupt())])


@pytest.mark.parametrize("name", ["bad", "acme_bad"])
def test_a_disabled_module_is_not_even_imported(install: Install, broken: Broken, name: str) -> None:
    found = survey([name], [install("good", collectors("pages")), broken("bad", RuntimeError())])
    assert not found.faults
    assert [each.name for each in found.disabled] == ["bad"]
    assert set(found.hooks.kinds.collectors) == {"pages"}


def test_a_disabled_module_must_exist(install: Install) -> None:
    text = refusal(install("good", collectors("pages")), disabled=("goood",))
    assert "hooks.disabled: no hook module or entry point is called 'goood'; did you mean 'good'?" in text


def test_a_hook_that_does_not_exist_is_refused(install: Install) -> None:
    @hookimpl
    def auditord_colectors() -> list[Any]:
        return []

    assert "there is no hook auditord_colectors; did you mean 'auditord_collectors'?" in refusal(
        install("x", auditord_colectors)
    )


def test_a_module_without_any_hook_is_refused(install: Install) -> None:
    assert "implements no hook: is @hookimpl missing?" in refusal(install("x"))


def test_a_hook_without_its_mark_is_refused(install: Install) -> None:
    def auditord_plugins() -> list[Any]:
        return []

    text = refusal(install("x", collectors("pages"), auditord_plugins))
    assert "the function auditord_plugins is not marked with @hookimpl" in text


async def coroutine() -> None: ...


async def async_generator() -> AsyncIterator[None]:
    yield


def plain() -> None: ...


def generator() -> Iterable[None]:
    yield


def implementing(hook: str, function: Callable[[], Any]) -> Callable[[], Any]:
    copy = FunctionType(function.__code__, {})
    copy.__name__ = hook
    return hookimpl(copy)


@pytest.mark.parametrize(
    ("hook", "function", "expected"),
    [
        ("auditord_collectors", coroutine, "auditord_collectors is a declaration: write 'def auditord_collectors'"),
        ("auditord_plugins", async_generator, "auditord_plugins is a declaration"),
        ("auditord_run_finished", plain, "auditord_run_finished is an event: write 'async def auditord_run_finished'"),
        ("auditord_run_finished", async_generator, "auditord_run_finished is an event"),
        ("auditord_resolve_secret", generator, "auditord_resolve_secret returns one value"),
    ],
)
def test_the_wrong_colour_is_refused(install: Install, hook: str, function: Callable[[], Any], expected: str) -> None:
    assert f"acme_x (entry point x of acme 1.2): {expected}" in refusal(install("x", implementing(hook, function)))


def test_a_wrapper_is_refused(install: Install) -> None:
    @hookimpl(wrapper=True)
    def auditord_senders() -> Generator[None, list[Any], list[Any]]:
        return (yield)

    assert "auditord_senders is a wrapper" in refusal(install("x", auditord_senders))


def test_an_argument_that_the_hook_does_not_have_is_refused(install: Install) -> None:
    @hookimpl
    def auditord_senders(extra: int) -> list[int]:
        return [extra]

    assert "extra" in refusal(install("x", auditord_senders))


def test_one_module_is_loaded_once(install: Install) -> None:
    one, two = install("one", collectors("a"), module_name="m"), install("two", collectors("b"), module_name="m")
    text = refusal(one, two)
    assert "m (entry point two of acme 1.2) is loaded already, as m (entry point one of acme 1.2)" in text


def test_a_kind_is_brought_once(install: Install) -> None:
    one = install("one", collectors("pages"), distribution="first")
    two = install("two", collectors("pages"), distribution="second")
    text = refusal(one, two)
    assert "acme_two (entry point two of second 1.2) declares the kind 'pages' of collectors, as acme_one" in text
    assert "of first 1.2" in text


def test_one_name_may_be_a_collector_and_a_plugin(install: Install) -> None:
    plugins = declaring("auditord_plugins", PluginKind("pages", RunConfig, run))
    assert load_hooks([], [install("one", collectors("pages"), plugins)]).kinds.plugins


def test_a_kind_may_be_spelt_with_its_model() -> None:
    assert CollectorKind[RunConfig]("pages", RunConfig, collect) == CollectorKind("pages", RunConfig, collect)


def test_a_module_that_cannot_even_be_looked_at_is_named() -> None:
    class Shy:
        @property
        def auditord_plugins(self) -> None:
            raise RuntimeError("look away")

    text = refusal(HookEntry(HookModule("shy", "acme_shy", "acme", "1.2"), Shy))
    assert "acme_shy (entry point shy of acme 1.2) cannot be inspected: RuntimeError: look away" in text


class WithKind(RunConfig):
    kind: str = ""


class Wrong:
    def demo(self, extra: str) -> dict[str, str]:
        return {extra: ""}


async def collect_without_config(context: CollectorContext) -> AsyncIterator[Batch]:
    yield Batch(checkpoint=context.checkpoint)


def collect_without_async(config: RunConfig, context: CollectorContext) -> Iterable[Batch]:
    yield Batch(checkpoint=[config, context])


def run_without_async(config: RunConfig, context: PluginContext) -> None:
    context.log.info("%s", config)


nameless: Any = None
lacks_config: Any = collect_without_config
plain_generator: Any = collect_without_async
lacks_context: Any = partial(collect, RunConfig())
takes_extra: Any = Wrong().demo
plain_run: Any = run_without_async
never_yields: Any = coroutine
yields: Any = async_generator


@pytest.mark.parametrize(
    ("hook", "kind", "expected"),
    [
        ("auditord_collectors", "pages", "declares 'pages' among its collectors: yield values of CollectorKind"),
        ("auditord_collectors", PluginKind("p", RunConfig, run), "yield values of CollectorKind"),
        (
            "auditord_plugins",
            PluginKind("my-mail", RunConfig, run),
            "'my-mail' of plugins, whose name is not an identifier",
        ),
        ("auditord_plugins", PluginKind("Mail", RunConfig, run), "not an identifier"),
        ("auditord_plugins", PluginKind(nameless, RunConfig, run), "not an identifier"),
        (
            "auditord_plugins",
            PluginKind[Any]("m", BaseModel, run),
            "whose config is not a model derived from RunConfig",
        ),
        ("auditord_plugins", PluginKind[Any]("m", WithKind, run), "whose config has an option 'kind'"),
        ("auditord_plugins", PluginKind[Any]("m", RunConfig, yields), "whose run yields"),
        ("auditord_collectors", CollectorKind[Any]("c", RunConfig, never_yields), "whose collect never yields"),
        ("auditord_senders", SenderKind[Any]("s", InstanceConfig, yields), "decorate it with @asynccontextmanager"),
        (
            "auditord_collectors",
            CollectorKind[Any]("cloudvm", RunConfig, lacks_config),
            "the kind 'cloudvm' of collectors, whose collect takes (context): it must take (config, context)",
        ),
        (
            "auditord_collectors",
            CollectorKind[Any]("c", RunConfig, plain_generator),
            "whose collect is not async: write 'async def collect'",
        ),
        (
            "auditord_collectors",
            CollectorKind[Any]("c", RunConfig, collect, convert=lacks_config),
            "whose convert is async: it is called without waiting",
        ),
        (
            "auditord_collectors",
            CollectorKind[Any]("c", RunConfig, collect, inventory=lacks_context),
            "whose inventory takes (context): it must take (config, context)",
        ),
        (
            "auditord_collectors",
            CollectorKind[Any]("c", RunConfig, collect, demo=takes_extra),
            "whose demo takes (extra): it must take ()",
        ),
        (
            "auditord_plugins",
            PluginKind[Any]("m", RunConfig, plain_run),
            "whose run is not async: write 'async def run'",
        ),
    ],
)
def test_a_kind_that_cannot_work_is_refused(install: Install, hook: str, kind: Any, expected: str) -> None:
    assert expected in refusal(install("x", declaring(hook, kind)))


def with_log(function: Callable[..., Any]) -> Any:
    """Pass another argument to a function, as decorators of modules do."""

    @wraps(function)
    def wrapped(*arguments: Any) -> Any:
        return function("log", *arguments)

    return wrapped


class Collecting:
    def __call__(self, config: RunConfig, context: CollectorContext) -> AsyncIterator[Batch]:
        return collect(config, context)

    async def collect(self, config: RunConfig, context: CollectorContext, limit: int = 5) -> AsyncIterator[Batch]:
        yield Batch(checkpoint=[config, context, limit])


async def logging_run(log: str, config: RunConfig, context: PluginContext) -> None:
    context.log.info("%s %s", log, config)


@pytest.mark.parametrize(
    ("hook", "kind"),
    [
        ("auditord_collectors", CollectorKind[Any]("c", RunConfig, Collecting())),
        ("auditord_collectors", CollectorKind[Any]("c", RunConfig, Collecting().collect)),
        ("auditord_collectors", CollectorKind[Any]("c", RunConfig, partial(Collecting().collect, limit=1))),
        ("auditord_collectors", CollectorKind[Any]("c", RunConfig, collect, prefix=str, demo=dict)),
        ("auditord_plugins", PluginKind[Any]("m", RunConfig, with_log(logging_run))),
        ("auditord_plugins", PluginKind[Any]("m", RunConfig, partial(logging_run, "log"))),
    ],
)
def test_each_form_of_a_function_that_can_work_is_accepted(install: Install, hook: str, kind: Any) -> None:
    assert load_hooks([], [install("x", declaring(hook, kind))]).modules


@pytest.mark.parametrize("error", [RuntimeError("no printer"), SystemExit(1)])
def test_a_declaration_that_raises_late_is_named(install: Install, error: BaseException) -> None:
    @hookimpl
    def auditord_collectors() -> Iterable[CollectorKind[Any]]:
        yield CollectorKind(name="pages", config=RunConfig, collect=collect)
        raise error

    text = refusal(install("x", auditord_collectors))
    assert f"acme_x (entry point x of acme 1.2) failed in auditord_collectors: {type(error).__name__}: {error}" in text
    assert "test_loading.py:" in text


def test_all_faults_are_reported_at_once(install: Install, broken: Broken) -> None:
    text = refusal(broken("a", RuntimeError()), broken("b", RuntimeError()), install("c"), disabled=("d",))
    assert all(f"entry point {name} of acme" in text for name in "abc")
    assert "'d'" in text
