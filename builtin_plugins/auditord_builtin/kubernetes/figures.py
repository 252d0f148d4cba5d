"""CPU time and peak memory from a Prometheus. It may be away, slow or wrong: a record waits for a while, then goes."""

import math
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal
from http import HTTPStatus
from typing import Final

import aiohttp
import anyio
import msgspec

from auditord.client import ClientError, Tls
from auditord_builtin.kubernetes.config import Prometheus
from auditord_builtin.kubernetes.connection import describe
from auditord_builtin.kubernetes.conversion import Finished
from auditord_builtin.kubernetes.runs import known
from auditord_hookspecs import AuditordError

CPU: Final = "prometheus.cpu"
MEMORY: Final = "prometheus.memory"
_AT_ONCE: Final = 4
_PASSING: Final = frozenset({"timeout", "unavailable", "canceled"})
_MAX_BODY: Final = 1024 * 1024


class Away(AuditordError):
    """Prometheus does not answer for the moment."""


@dataclass(frozen=True, slots=True)
class Figures:
    """What is known of a pod.

    Args:
        found: texts by column.
        complaint: why something is missing, if Prometheus gave a reason.
    """

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


class Metrics:
    """A Prometheus, over an open session."""

    def __init__(self, session: aiohttp.ClientSession, options: Prometheus) -> None:
        self._session = session
        self._options = options

    async def ask(self, finished: Finished) -> Figures:
        """What it knows of a pod.

        Raises:
            Away: it cannot say now.
        """
        found, complaints = dict(finished.figures), list[str]()
        for column, query in ((CPU, self._options.cpu_query), (MEMORY, self._options.memory_query)):
            try:
                value = found.get(column) or await self._value(query, finished)
            except _Refused as error:
                complaints.append(str(error))
                continue
            if value is not None:
                found[column] = value
        return Figures(found, complaints[0] if complaints else None)

    async def _value(self, query: str, finished: Finished) -> str | None:
        asked = {"query": fill_in(query, finished), "time": f"{_stop(finished).timestamp():.3f}"}
        try:
            with anyio.fail_after(self._options.timeout.total_seconds()):
                async with self._session.get(f"{self._options.url}/api/v1/query", params=asked) as response:
                    status, body = response.status, await response.content.read(_MAX_BODY)
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            raise Away(f"Prometheus does not answer: {describe(error)}") from error
        return _value(_answer(status, body))


class _Refused(AuditordError):
    """Prometheus does not like the question, and will not later."""


def _answer(status: int, body: bytes) -> _Data:
    try:
        answer = msgspec.json.decode(body, type=_Answer)
    except msgspec.DecodeError as error:
        if status >= HTTPStatus.INTERNAL_SERVER_ERROR or status == HTTPStatus.TOO_MANY_REQUESTS:
            raise Away(f"Prometheus answers {status}") from error
        raise _Refused(f"Prometheus answers {status}, and no JSON: {body[:100]!r}") from error
    if answer.status == "success":
        return answer.data
    text = f"Prometheus answers {status}: {answer.error_type}: {answer.error[:200]}"
    raise Away(text) if answer.error_type in _PASSING or status >= HTTPStatus.INTERNAL_SERVER_ERROR else _Refused(text)


def _value(data: _Data) -> str | None:
    """The one value; None if there is none, or it is no amount."""
    try:
        samples = msgspec.json.decode(data.result, type=list[_Sample])
        numbers = [float(sample.value[1]) for sample in samples]
    except (msgspec.DecodeError, ValueError) as error:
        raise _Refused(f"the query gives no vector but {data.result_type or 'something else'}") from error
    if len(numbers) > 1:
        raise _Refused(f"the query gives {len(numbers)} values for one pod: sum them up in it")
    return f"{Decimal(numbers[0]):.6f}" if numbers and math.isfinite(numbers[0]) and numbers[0] >= 0 else None


def fill_in(query: str, finished: Finished) -> str:
    """A query about a pod: ``{namespace}``, ``{podname}``, ``{uid}``, ``{node}``, and ``{seconds}`` for its time."""
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
        raise AuditordError("an open record has no figures")
    return finished.stop


@asynccontextmanager
async def opened(options: Prometheus) -> AsyncGenerator[Metrics]:
    """A session with the Prometheus.

    Raises:
        AuditordError: the TLS files cannot be used.
    """
    token = options.token.get_secret_value() if options.token else None
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    tls = options.tls
    try:
        context = Tls(tls.ca, tls.certificate, tls.key).context() if options.url.startswith("https:") else True
    except ClientError as error:
        raise AuditordError(f"prometheus: {error}") from error
    connector = aiohttp.TCPConnector(ssl=context, limit=_AT_ONCE)
    async with aiohttp.ClientSession(connector=connector, headers=headers) as session:
        yield Metrics(session, options)


async def ask_all(options: Prometheus, wanted: Sequence[Finished]) -> tuple[Mapping[str, Figures], str | None]:
    """What is known of pods, by uid, as far as time allows; and why the rest was not asked about, if there is a reason.

    Never raises for what Prometheus does.
    """
    answers, trouble = dict[str, Figures](), list[str]()
    waiting = list(reversed(wanted))

    async def work(metrics: Metrics) -> None:
        while waiting and not trouble:
            finished = waiting.pop()
            try:
                answers[finished.pod.uid] = await metrics.ask(finished)
            except Away as error:
                trouble.append(str(error))

    try:
        with anyio.move_on_after(options.time_per_run.total_seconds()):
            async with opened(options) as metrics, anyio.create_task_group() as group:
                for _ in range(_AT_ONCE):
                    group.start_soon(work, metrics)
    except AuditordError as error:
        trouble.append(str(error))
    return answers, trouble[0] if trouble else None
