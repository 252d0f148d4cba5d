"""Pods that are over and wait until Prometheus knows what they used, or until nobody will tell any more."""

from collections.abc import AsyncIterator, Sequence
from datetime import datetime
from itertools import islice
from typing import Final

import msgspec

from auditord_builtin.kubernetes.classifying import Draft
from auditord_builtin.kubernetes.config import KubernetesConfig, Prometheus
from auditord_builtin.kubernetes.conversion import Finished
from auditord_builtin.kubernetes.figures import CPU, MEMORY, Figures, ask_all
from auditord_builtin.kubernetes.ledger import Ledger, Waiting
from auditord_hookspecs import Batch, CollectorContext, Window

_PER_BATCH: Final = 500


async def settle(
    config: KubernetesConfig, context: CollectorContext, ledger: Ledger, *, at_once: bool
) -> AsyncIterator[Batch]:
    """The records of pods whose waiting is over. Whatever Prometheus does, this ends soon and raises nothing.

    Args:
        config: whom to ask.
        context: the instance's.
        ledger: who waits.
        at_once: everybody is asked about once, and nobody waits any longer.
    """
    now = context.now()
    if config.prometheus is not None:
        due = [one for one in ledger.waiting.values() if one.due <= now and not _enough(config.prometheus, one, now)]
        await _ask(config.prometheus, context, ledger, due)
    ready = [one for one in ledger.waiting.values() if at_once or _enough(config.prometheus, one, now)]
    rest = iter(ready)
    while some := list(islice(rest, _PER_BATCH)):
        yield _batch(config, context, ledger, some)
    if changes := ledger.changes():
        yield Batch(pending=changes)


async def _ask(options: Prometheus, context: CollectorContext, ledger: Ledger, due: Sequence[Waiting]) -> None:
    if not due:
        return
    answers, trouble = await ask_all(options, [one.finished for one in due])
    if trouble:
        context.log.warning("%s; %d pods wait for their figures", trouble, len(ledger.waiting))
    complaints = [each.complaint for each in answers.values() if each.complaint]
    if complaints:
        context.log.warning("no figures of %d pods: %s", len(complaints), complaints[0])
    for one in due:
        if one.finished.pod.uid in answers:
            ledger.wait(_asked(options, one, answers[one.finished.pod.uid], context.now()))


def _asked(options: Prometheus, waiting: Waiting, answer: Figures, now: datetime) -> Waiting:
    return Waiting(_with(waiting.finished, answer), waiting.since, now + options.pause, waiting.attempts + 1)


def _with(finished: Finished, answer: Figures) -> Finished:
    return msgspec.structs.replace(finished, figures=dict(answer.found))


def _enough(options: Prometheus | None, waiting: Waiting, now: datetime) -> bool:
    """Whether the record goes out: it has its figures, or nobody is asked for them, or was asked for long enough."""
    if options is None or {CPU, MEMORY} <= set(waiting.finished.figures):
        return True
    return waiting.attempts >= options.attempts or now - waiting.since >= options.patience


def _batch(config: KubernetesConfig, context: CollectorContext, ledger: Ledger, ready: Sequence[Waiting]) -> Batch:
    draft = Draft(config, ledger, (), context.now(), Window(context.now(), context.now()))
    for one in ready:
        draft.emit(one.finished)
        ledger.settle(one.finished.pod.uid)
    return draft.batch()
