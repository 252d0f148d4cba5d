"""CPU time and peak memory from Prometheus. If it is down, slow or wrong, a record waits for a limited time."""

import math
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from decimal import Decimal
from http import HTTPStatus
from typing import Final

import anyio
import msgspec

from auditord_builtin.kubernetes.config import Prometheus
from auditord_builtin.kubernetes.conversion import Finished
from auditord_builtin.kubernetes.pods import known
from auditord_hookspecs import AuditordError, CollectorContext, HttpAnswer, HttpClient, HttpOptions, InvalidHttpAnswer
from auditord_hookspecs.http import HttpError

CPU: Final = "prometheus.cpu"
MEMORY: Final = "prometheus.memory"
_AT_ONCE: Final = 4
_PASSING: Final = frozenset({"timeout", "unavailable", "canceled"})
_MAX_BODY: Final = 1024 * 1024


class Away(AuditordError):
    """Prometheus does not answer now.

    Remedy:
        see whether the server of the collector's option `prometheus` runs and can be reached from here; pods wait for
            their values, for as long as its `patience` says.
    """


class _Refused(AuditordError):
    """Prometheus refuses the query, and will refuse it later as well."""


class Metrics(msgspec.Struct, frozen=True):
    """The metrics of a pod, as texts by column, and why some are missing, if Prometheus gave a reason."""

    found: Mapping[str, str]
    complaint: str | None = None


class _Sample(msgspec.Struct):
    value: tuple[float, str]


class _Data(msgspec.Struct, rename="camel"):
    result_type: str = ""
    result: msgspec.Raw = msgspec.Raw(b"[]")


class _Answer(msgspec.Struct, rename="camel"):
    status: str
    data: _Data = msgspec.field(default_factory=_Data)
    error_type: str = ""
    error: str = ""


async def ask_all(
    context: CollectorContext, options: Prometheus, wanted: Sequence[Finished]
) -> tuple[Mapping[str, Metrics], str | None]:
    """Return the metrics of pods by uid, as far as time allows, and why the rest is missing, if there is a reason.

    Never raises for an answer of Prometheus.
    """
    answers, trouble = dict[str, Metrics](), list[str]()
    waiting = list(reversed(wanted))

    async def work(client: HttpClient) -> None:
        while waiting and not trouble:
            finished = waiting.pop()
            try:
                answers[finished.pod.uid] = await _ask(client, options, finished)
            except Away as error:
                trouble.append(str(error))

    try:
        with anyio.move_on_after(options.time_per_run.total_seconds()):
            async with context.http(_http(options)) as client, anyio.create_task_group() as group:
                for _ in range(_AT_ONCE):
                    group.start_soon(work, client)
    except AuditordError as error:
        trouble.append(f"prometheus: {error}")
    return answers, trouble[0] if trouble else None


def _http(options: Prometheus) -> HttpOptions:
    """Open HTTP with one attempt per query: the next run asks again."""
    token = options.token.get_secret_value() if options.token else None
    return HttpOptions(
        tls=options.tls,
        headers={"Authorization": f"Bearer {token}"} if token else {},
        timeout=options.timeout,
        connections=_AT_ONCE,
        max_answer=_MAX_BODY,
        attempts=1,
    )


async def _ask(client: HttpClient, options: Prometheus, finished: Finished) -> Metrics:
    found, complaints = dict(finished.metrics), list[str]()
    for column, query in ((CPU, options.cpu_query), (MEMORY, options.memory_query)):
        try:
            value = found.get(column) or await _value(client, options, query, finished)
        except _Refused as error:
            complaints.append(str(error))
            continue
        if value is not None:
            found[column] = value
    return Metrics(found, complaints[0] if complaints else None)


async def _value(client: HttpClient, options: Prometheus, query: str, finished: Finished) -> str | None:
    """Return the value of a query; None if there is none, or it is not an amount."""
    asked = [("query", fill_in(query, finished)), ("time", f"{_stop(finished).timestamp():.3f}")]
    try:
        data = _answer(await client.request("GET", f"{options.url}/api/v1/query", params=asked))
    except InvalidHttpAnswer as error:
        raise _Refused(str(error)) from error
    except HttpError as error:
        raise Away(f"Prometheus does not answer: {error}") from error
    try:
        numbers = [float(sample.value[1]) for sample in msgspec.json.decode(data.result, type=list[_Sample])]
    except (msgspec.DecodeError, ValueError) as error:
        raise _Refused(f"the query gives no vector but {data.result_type or 'something else'}") from error
    if len(numbers) > 1:
        raise _Refused(f"the query gives {len(numbers)} values for one pod: sum them up in it")
    return f"{Decimal(numbers[0]):.6f}" if numbers and math.isfinite(numbers[0]) and numbers[0] >= 0 else None


def _answer(answer: HttpAnswer) -> _Data:
    status = answer.status
    try:
        decoded = msgspec.json.decode(answer.body, type=_Answer)
    except msgspec.DecodeError as error:
        if status >= HTTPStatus.INTERNAL_SERVER_ERROR or status == HTTPStatus.TOO_MANY_REQUESTS:
            raise Away(f"Prometheus answers {status}") from error
        if target := answer.headers.get("Location"):
            raise Away(f"Prometheus answers {status} and is at {target}: give its own url") from error
        raise _Refused(f"Prometheus answers {status}, and no JSON: {answer.body[:100]!r}") from error
    if decoded.status == "success":
        return decoded.data
    text = f"Prometheus answers {status}: {decoded.error_type}: {decoded.error[:200]}"
    raise Away(text) if decoded.error_type in _PASSING or status >= HTTPStatus.INTERNAL_SERVER_ERROR else _Refused(text)


def fill_in(query: str, finished: Finished) -> str:
    """Fill in a pod's query: ``{namespace}``, ``{podname}``, ``{uid}``, ``{node}``, and ``{seconds}`` for its time."""
    pod = finished.pod
    start = known(pod.status.start_time) or _stop(finished)
    texts = {
        "namespace": pod.metadata.namespace,
        "podname": pod.metadata.name,
        "uid": pod.uid,
        "node": pod.spec.node_name or "",
        "seconds": str(max(1, math.ceil((_stop(finished) - start) / timedelta(seconds=1)) + 1)),
    }
    escaped = {name: text.replace("\\", "\\\\").replace('"', '\\"') for name, text in texts.items()}
    for name, text in escaped.items():
        query = query.replace(f"{{{name}}}", text)
    return query


def _stop(finished: Finished) -> datetime:
    if finished.stop is None:
        raise AuditordError("an open record has no metrics")
    return finished.stop
