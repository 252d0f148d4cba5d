"""Evaluate the columns of ads. Expressions are evaluated in a child process.

Users write these expressions. Functions such as ``evalInEachContext`` can recurse without end, and deep chains of
attributes take exponential time. HTCondor's library therefore never runs in the daemon's process. The child has limits
for time and memory. It is started for the first ad that needs it, and restarted after a crash. Only the ad that crashed
it is refused.
"""

import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Final, Self

import msgspec
from msgspec.structs import asdict, replace

from auditord_builtin.htcondor.ads import (
    Attributes,
    JobAd,
    cut_apart,
    expression_of,
    follow_references,
    is_name,
    parse_ad,
    select_used_columns,
)
from auditord_hookspecs import AuditordError, InvalidRecord
from auditord_hookspecs.mapping import Row

CPU_SECONDS: Final = 2.0
"""The CPU limit for one ad. A harmless ad takes less than a millisecond."""

MEMORY: Final = 512 * 1024**2
"""The limit of the address space in bytes. The library alone takes about 100 MB."""

_PATIENCE: Final = 120.0
"""The wall-clock limit in seconds. A busy child reaches the CPU limit earlier."""

_ENDS_WITHIN: Final = 5.0
"""Seconds that a child may take to exit before it is killed."""

_ATTEMPTS: Final = 2
"""An ad is refused after it crashed this many children. A single crash may have another reason, such as low memory."""

_MOST_TOGETHER: Final = 10
"""The number of ads that keep the text in which they have run together."""

_PROGRAM: Final = Path(__file__).with_name("evaluation_child.py")
_MISSING: Final = (
    "ads with expressions, and rules with expressions such as RemoteUserCpu+RemoteSysCpu, need HTCondor's library: pip "
    "install 'auditord[htcondor]', or let condor_history evaluate them (output: separated)"
)


class Request(msgspec.Struct, frozen=True):
    """The expressions of one ad to evaluate, and the attributes that they refer to.

    Args:
        columns: the expressions.
        lines: attributes in the format of history files, ``Name = expression``.
        values: literal attributes, by name.
        expressions: other attributes by name, in the format that ``-json`` prints.
    """

    columns: Sequence[str]
    lines: Sequence[str] = ()
    values: Mapping[str, Any] = msgspec.field(default_factory=dict[str, Any])  # Any: JSON
    expressions: Mapping[str, str] = msgspec.field(default_factory=dict[str, str])


class Evaluator:
    """Evaluates expressions in a child process. A context manager that must be used from one thread at a time."""

    def __init__(self) -> None:
        self._child: subprocess.Popen[bytes] | None = None
        self._closed = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._closed = True  # an abandoned thread must not start another child
        self._end()

    def evaluate(self, request: Request) -> Sequence[str]:
        """Return the texts of the columns, with empty texts for undefined and error.

        Raises:
            InvalidRecord: the ad cannot be evaluated, or crashed the child.
            AuditordError: no child can be started.
        """
        line, ended = json.dumps(asdict(request)).encode() + b"\n", ""
        for _ in range(_ATTEMPTS):
            stdin, stdout = _pipes(self._child or self._start())
            try:
                stdin.write(line)
                stdin.flush()
                answer = _answer(stdout)
            except BrokenPipeError:
                answer = dict[str, Any]()
            if "texts" in answer:
                return list(map(str, answer["texts"]))
            if "reason" in answer:
                raise InvalidRecord(f"this ad cannot be evaluated: {answer['reason']}")
            ended = self._end()
        raise InvalidRecord(f"evaluating this ad {ended}: its owner may have made a mistake, or mean harm")

    def _start(self) -> "subprocess.Popen[bytes]":
        if self._closed:
            raise AuditordError("the run has ended")
        child = self._child = subprocess.Popen(  # noqa: S603 our own program
            [sys.executable, "-I", str(_PROGRAM), str(CPU_SECONDS), str(MEMORY)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={"PATH": os.environ.get("PATH", os.defpath), "LANG": "C.UTF-8", "CONDOR_CONFIG": "/dev/null"},
            start_new_session=True,
        )
        first = _answer(_pipes(child)[1])
        if "missing" in first:
            raise AuditordError(_MISSING)
        if not isinstance(first.get("ready"), bool):
            raise AuditordError(f"the process that evaluates ClassAds cannot start: it {self._end()}")
        return child

    def _end(self) -> str:
        """Wait for the child, kill it if necessary, and return a description of how it ended."""
        child, self._child = self._child, None
        if child is None:
            return ""
        try:
            code = child.wait(0 if self._closed else _ENDS_WITHIN)
        except subprocess.TimeoutExpired:
            child.kill()
            code = child.wait()
        for pipe in _pipes(child):
            with suppress(OSError):  # ignore unwritten data
                pipe.close()
        if code == -signal.SIGPROF:
            return f"takes more than {CPU_SECONDS:g} s of CPU time"
        name = signal.Signals(-code).name if code < 0 else f"exit code {code}"
        return f"crashes HTCondor's library ({name})"


def _pipes(child: "subprocess.Popen[bytes]") -> tuple[IO[bytes], IO[bytes]]:
    assert child.stdin is not None  # noqa: S101 for the type checker
    assert child.stdout is not None  # noqa: S101 for the type checker
    return child.stdin, child.stdout


def _answer(stdout: IO[bytes]) -> Mapping[str, Any]:  # Any: JSON
    """Return the child's answer; empty if the child has exited or does not answer in time."""
    poll = select.poll()
    poll.register(stdout, select.POLLIN)
    line = stdout.readline() if poll.poll(_PATIENCE * 1_000) else b""
    answer: Mapping[str, Any] = json.loads(line) if line.endswith(b"\n") else {}
    return answer


def read_ad(evaluator: Evaluator, text: str, columns: Sequence[str]) -> JobAd:
    """Return the ad with its evaluated row. An invalid ad is refused and keeps its whole text.

    Raises:
        AuditordError: no child can be started.
    """
    known: Row = {}
    try:
        attributes = parse_ad(text)
        known = literals(attributes, columns)
        expressions = [
            column
            for column in select_used_columns(attributes, columns)
            if not is_name(column) or (column.lower() in attributes and attributes[column.lower()].text is None)
        ]
        if not expressions:
            return JobAd(known)
        needed = [attributes[name] for name in follow_references(attributes, expressions) if name in attributes]
        request = Request(
            columns=[expression_of(column) for column in expressions],
            lines=[each.source for each in needed if each.form == "line"],
            values={each.name: each.source for each in needed if each.form == "value" and each.source is not None},
            expressions={each.name: each.source for each in needed if each.form == "expression"},
        )
        texts = zip(expressions, evaluator.evaluate(request), strict=True)
        return JobAd({**known, **{column: text for column, text in texts if text}})
    except InvalidRecord as error:
        return JobAd(known, text, str(error))


def read_ads(evaluator: Evaluator, text: str, columns: Sequence[str]) -> list[JobAd]:
    """Return the ad in a text from a history file, or several refused ads that have run together.

    Each refused ad keeps the whole text, since a part of it could make an incomplete record. If there are many, only
    the first ad keeps it, and the others are not named.

    Raises:
        AuditordError: no child can be started.
    """
    ad = read_ad(evaluator, text, columns)
    parts = [] if ad.reason is None else cut_apart(text)
    if not 2 <= len(parts) <= _MOST_TOGETHER:  # noqa: PLR2004 two ads
        return [ad]
    reason = f"an ad was truncated, and the next one begins in its place: {ad.reason}"
    return [replace(ad, row=literals(part, columns), reason=reason) for part in parts]


def literals(attributes: Attributes, columns: Sequence[str]) -> Row:
    """Return the texts of the columns that are non-empty literal attributes."""
    found = {column: attributes[column.lower()].text for column in columns if column.lower() in attributes}
    return {column: text for column, text in found.items() if text}
