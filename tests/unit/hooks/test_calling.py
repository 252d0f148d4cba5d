import logging
from collections.abc import Callable, Iterable
from datetime import UTC, datetime, timedelta
from typing import Any

import anyio
import pytest
from pydantic import SecretStr

from auditord.errors import HookError
from auditord.hooks import HookEntry, Hooks, load_hooks
from auditord_hookspecs import RunReport, hookimpl

Install = Callable[..., HookEntry]

REPORT = RunReport("slurm", "slurm", datetime(2026, 1, 1, tzinfo=UTC), timedelta(seconds=1))


def event(action: Callable[[RunReport], Any]) -> Callable[..., Any]:
    @hookimpl
    async def auditord_run_finished(report: RunReport) -> None:
        result = action(report)
        if result is not None:
            await result

    return auditord_run_finished


def failing(error: BaseException) -> Callable[[RunReport], None]:
    def fail(_: RunReport) -> None:
        raise error

    return fail


@pytest.mark.anyio
@pytest.mark.parametrize("error", [RuntimeError("broken"), SystemExit(1), TimeoutError()])
async def test_an_event_reaches_everyone_whoever_fails(
    install: Install, error: BaseException, caplog: pytest.LogCaptureFixture
) -> None:
    heard: list[RunReport] = []
    hooks = load_hooks([], [install("bad", event(failing(error))), install("good", event(heard.append))])
    await hooks.call_event("auditord_run_finished", daemon=None, report=REPORT)
    assert heard == [REPORT]
    (record,) = caplog.records
    assert (record.levelno, record.exc_info is not None) == (logging.ERROR, True)
    assert "acme_bad (entry point bad of acme 1.2) failed in auditord_run_finished" in record.getMessage()


@pytest.mark.anyio
async def test_an_event_does_not_wait_for_ever(install: Install, caplog: pytest.LogCaptureFixture) -> None:
    found = load_hooks([], [install("slow", event(lambda _: anyio.sleep_forever()))])
    hooks = Hooks(found.manager, found.modules, found.kinds, event_timeout=timedelta(milliseconds=10))
    await hooks.call_event("auditord_run_finished", daemon=None, report=REPORT)
    assert "acme_slow (entry point slow of acme 1.2) took longer than 0.01 s" in caplog.text


@pytest.mark.anyio
async def test_cancelling_the_caller_ends_an_event_at_once(install: Install, caplog: pytest.LogCaptureFixture) -> None:
    hooks = load_hooks([], [install("slow", event(lambda _: anyio.sleep_forever()))])
    with anyio.move_on_after(0.01) as scope:
        await hooks.call_event("auditord_run_finished", daemon=None, report=REPORT)
    assert scope.cancelled_caught
    assert not caplog.records


def secret(reference: str, answer: object) -> Callable[..., Any]:
    @hookimpl
    def auditord_resolve_secret(reference: str) -> Any:
        if reference != known:
            return None
        if isinstance(answer, BaseException):
            raise answer
        return answer

    known = reference
    return auditord_resolve_secret


def test_the_first_module_that_knows_a_reference_answers(install: Install) -> None:
    hooks = load_hooks([], [install("one", secret("a", SecretStr("1"))), install("two", secret("b", SecretStr("")))])
    assert hooks.resolve_secret("a") == SecretStr("1")
    assert hooks.resolve_secret("b") == SecretStr("")
    assert hooks.resolve_secret("c") is None


def test_a_reference_that_cannot_be_resolved_keeps_its_reason(install: Install) -> None:
    with pytest.raises(ValueError, match="no such vault"):
        load_hooks([], [install("one", secret("a", ValueError("no such vault")))]).resolve_secret("a")


@pytest.mark.parametrize("answer", [RuntimeError("broken"), SystemExit(), "plain text"])
def test_a_module_that_fails_over_a_secret_is_named(install: Install, answer: object) -> None:
    with pytest.raises(HookError, match=r"acme_one .*auditord_resolve_secret"):
        load_hooks([], [install("one", secret("a", answer))]).resolve_secret("a")


def test_declarations_name_their_module_and_the_one_that_fails(install: Install) -> None:
    @hookimpl
    def auditord_metrics(daemon: object) -> Iterable[Any]:
        yield daemon

    good = install("good", auditord_metrics)
    ((module, value),) = load_hooks([], [good]).declarations("auditord_metrics", daemon=5)
    assert (module.name, value) == ("good", 5)

    @hookimpl(specname="auditord_metrics")
    def other_name() -> None: ...

    found = load_hooks([], [good, install("bad", other_name)]).declarations("auditord_metrics", daemon=5)
    expected = r"acme_bad .*: other_name returns a value of type NoneType, not several values: write yield"
    with pytest.raises(HookError, match=expected):
        list(found)
