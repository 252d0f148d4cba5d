"""Parse ClassAds: split attributes, read literals and job ids. Nothing is evaluated here."""

import hashlib
import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, Literal

import msgspec

from auditord_hookspecs import InvalidRecord
from auditord_hookspecs.mapping import Row

_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")

_MEMBER: Final = re.compile(r"(?!(?:MY|TARGET|PARENT)\.)([A-Z_][A-Z0-9_]*)\.([A-Z_][A-Z0-9_]*)", re.IGNORECASE)

_REQUEST: Final = re.compile(r"ifThenElse\(JobUniverse=\?=11 \|\| (\w+)=\?=undefined,\w+,undefined\)")

_LINE: Final = re.compile(r"([A-Za-z_][A-Za-z0-9_.]*)[ \t]*=[ \t]*(.*)", re.DOTALL)

_REFERENCE: Final = re.compile(r'"(?:[^"\\]|\\.)*+(?:"|\Z)|([A-Za-z_][A-Za-z0-9_]*)', re.DOTALL)

# The start of a line that ends an ad. If a schedd dies while writing it, the next ad begins on the same line.
_STARS: Final = b"***"

_VALUE: Final = rb'(?:-?\d+|"[^"]*")'

_BANNER: Final = re.compile(
    rb"\*\*\*(?: Offset = \d+ ClusterId = -?\d+ ProcId = -?\d+ Owner = " + _VALUE + rb" CompletionDate = -?\d+"
    rb"(?: \w+ = " + _VALUE + rb")*| [A-Z_]+(?: \w+ ?= ?" + _VALUE + rb")*)?\s*"
)

# Literals in the format of history files. In strings, a backslash only escapes quotation marks.
_STRING: Final = re.compile(r'"((?:[^"]|(?<=\\)")*)"')

_INTEGER: Final = re.compile(r"-?(?:0|[1-9][0-9]{0,17})")

_REAL: Final = re.compile(r"-?[0-9]{1,30}\.[0-9]{1,30}(?:[eE][+-]?[0-9]{1,2})?")

_WORDS: Final[Mapping[str, str]] = {"true": "true", "false": "false", "undefined": "", "error": ""}

# -json escapes the slashes around an expression, "\/Expr(1 + 1)\/", and no others. No text contains NUL.
_MARKED: Final = re.compile(r'(?<!\\)"\\/Expr\(')

_MARK: Final = "\0Expr("

_MARK_END: Final = ")/"

Form = Literal["line", "value", "expression"]


class Attribute(msgspec.Struct, frozen=True):
    """An attribute of an ad.

    Args:
        name: the name as written. ClassAds ignore case.
        form: the form of ``source``: a line of a history file, a JSON literal, or an expression from JSON.
        source: the line, the literal or the expression.
        text: the text in a row if this is a literal, empty for undefined and error; None for expressions and lists.
        refers: the expression that can refer to other attributes; empty for literals.
    """

    name: str
    form: Form
    source: Any  # Any: JSON
    text: str | None
    refers: str = ""


Attributes = Mapping[str, Attribute]
"""Attributes by lowercase name."""


class JobAd(msgspec.Struct, frozen=True):
    """One ad of a history as texts by column. A refused ad has its literal columns, its whole text and the reason."""

    row: Row
    text: str = ""
    reason: str | None = None


def references(columns: Sequence[str]) -> list[str]:
    """Return the names of the attributes (and functions) that the expressions use, each once."""
    found = (match[1] for column in columns for match in _REFERENCE.finditer(column))
    return list(dict.fromkeys(name for name in found if name))


def is_name(column: str) -> bool:
    """Return True if a column is just the name of an attribute."""
    return _NAME.fullmatch(column) is not None


def expression_of(column: str) -> str:
    """Return the expression that evaluates a column.

    For an attribute of a nested ad, such as ``MachineAttrApelSpecs0.HEPSPEC``, HTCondor also searches the enclosing
    job, where users can set any attribute. So the nested ad is evaluated within another one, in which the attribute is
    undefined. Instead of an ad, some sites have a text: ``"HEPSPEC=12.3;HEPscore23=45.6"``.
    """
    member = _MEMBER.fullmatch(column)
    if member is None:
        return column
    inner, name = member.groups()
    nested = f'ifThenElse(isString({inner}),strcat("[",{inner},"]"),string({inner}))'
    return f'eval(strcat("[{name}=undefined;x=",{nested},"].x.{name}"))'


def make_request_column(provisioned: str, requested: str) -> str:
    """Return a column with a requested amount. It is empty if the provisioned one is known and is that of the job."""
    return f"ifThenElse(JobUniverse=?={PARALLEL} || {provisioned}=?=undefined,{requested},undefined)"


def select_used_columns(attributes: Attributes, columns: Sequence[str]) -> list[str]:
    """Return the columns without those that are empty for this ad, whose expressions therefore do not matter.

    So an ad needs HTCondor's library, and may be suspected of crashing it, only for an expression that matters.
    """
    universe = attributes.get("jobuniverse")
    may_be_parallel = universe is not None and universe.text in {None, PARALLEL}
    used: list[str] = []
    for column in columns:
        is_empty = False
        if (member := _MEMBER.fullmatch(column)) is not None:
            is_empty = member[1].lower() not in attributes
        elif not may_be_parallel and (request := _REQUEST.fullmatch(column)) is not None:
            provisioned = attributes.get(request[1].lower())
            is_empty = provisioned is not None and bool(provisioned.text)
        if not is_empty:
            used.append(column)
    return used


def follow_references(attributes: Attributes, columns: Sequence[str]) -> list[str]:
    """Return the lowercase names of everything that the columns refer to, directly or indirectly."""
    found: dict[str, None] = {}
    waiting = [name.lower() for name in references(columns)]
    while waiting:
        name = waiting.pop()
        if name not in found:
            found[name] = None
            attribute = attributes.get(name)
            waiting += [each.lower() for each in references([attribute.refers])] if attribute else []
    return list(found)


def parse_ad(text: str) -> Attributes:
    """Parse an ad, either lines of ``Name = expression`` or a JSON object.

    Raises:
        InvalidRecord: the text has another form, or repeats an attribute because two ads have run together.
    """
    found = _parse_json(text) if text.lstrip().startswith("{") else list(map(_parse_line, _lines(text)))
    if not found:
        raise InvalidRecord("this is not a ClassAd: it has no attribute")
    _check_unique([attribute.name for attribute in found])
    return {attribute.name.lower(): attribute for attribute in found}


def cut_apart(text: str) -> list[Attributes]:
    """Return the readable attributes of each of several ads that have run together.

    A repeated attribute begins a new ad. The line before it can contain parts of both ads.
    """
    ads: list[dict[str, Attribute]] = [{}]
    for line in filter(_LINE.fullmatch, _lines(text)):
        attribute = _parse_line(line)
        if attribute.name.lower() in ads[-1]:
            ads.append({})
        ads[-1][attribute.name.lower()] = attribute
    return list(ads)


def _lines(text: str) -> Iterator[str]:
    return (line for line in text.split("\n") if line.strip())


def _check_unique(names: Sequence[str]) -> None:
    if len({name.lower() for name in names}) < len(names):
        counts = Counter(name.lower() for name in names)
        repeated = [name for name in names if counts[name.lower()] > 1]
        raise InvalidRecord(f"this is not a ClassAd: {repeated[-1]} is repeated")


def _parse_line(line: str) -> Attribute:
    match = _LINE.fullmatch(line)
    if match is None:
        raise InvalidRecord(f"this is not a ClassAd: this line is not an attribute: {line[:60]!r}")
    name, expression = match[1], match[2].rstrip()
    text = literal(expression)
    return Attribute(name, "line", f"{name} = {expression}", text, "" if text is not None else expression)


def literal(expression: str) -> str | None:
    """Return the text of a literal in the format of history files; None for an expression."""
    if (match := _STRING.fullmatch(expression)) is not None:
        return match[1].replace('\\"', '"')
    if _INTEGER.fullmatch(expression):
        return expression
    if _REAL.fullmatch(expression):
        return str(float(expression))
    return _WORDS.get(expression.lower())


def _parse_json(text: str) -> list[Attribute]:
    try:
        ad = json.loads(_MARKED.sub(r'"\\u0000Expr(', text), strict=False, object_pairs_hook=_members)
    except InvalidRecord:
        raise
    except (ValueError, RecursionError) as error:
        raise InvalidRecord(f"this is not a ClassAd: {error}") from error
    found: list[Attribute] = []
    for name, value in ad.items():
        if isinstance(value, str) and value.startswith(_MARK):
            expression = value.removeprefix(_MARK).removesuffix(_MARK_END)
            found.append(Attribute(name, "expression", expression, None, expression))
        elif isinstance(value, list | dict):
            # Left to HTCondor's library, since patterns for scores expect its format.
            found.append(Attribute(name, "value", value, None))
        else:
            text = "" if value is None else str(value)
            found.append(Attribute(name, "value", value, text.lower() if isinstance(value, bool) else text))
    return found


def _members(pairs: list[tuple[str, Any]]) -> dict[str, Any]:  # Any: JSON
    _check_unique([name for name, _ in pairs])
    return dict(pairs)


def whole_ads(text: bytes) -> int:
    """Return the size in bytes of the complete ads at the start of the text, including the lines that end them.

    Incomplete or damaged lines do not end an ad.
    """
    end = text.rfind(b"\n") + 1
    while (before := text.rfind(b"\n" + _STARS, 0, max(end - 1, 0))) >= 0:
        end = text.index(b"\n", before + 1) + 1
        if _BANNER.fullmatch(text, before + 1, end - 1):
            return end
        end = before + 1
    return 0


def split_ads(text: bytes) -> Iterator[bytes]:
    """Yield the ads in a piece of a history file. Each ad, including the last one, ends with a line ``*** …``."""
    lines: list[bytes] = []
    for line in text.split(b"\n"):  # not splitlines(), since texts can contain other line ends
        if not (line.startswith(_STARS) and _BANNER.fullmatch(line)):
            lines.append(line)
        elif any(lines):
            yield b"\n".join([*lines, b""])
            lines = []


EXECUTED: Final = "JobCurrentStartExecutingDate"

WALL_CLOCK: Final = "RemoteWallClockTime"

LAST_WALL_CLOCK: Final = "LastRemoteWallClockTime"

FIRST_START: Final = "JobStartDate"

LAST_VACATE: Final = "LastVacateTime"

PARALLEL: Final = "11"
"""The number of the parallel universe."""

MAX_HOSTS: Final = "MaxHosts"
"""The number of machines of a job of the parallel universe."""

MEMORY: Final = "ResidentSetSize"
"""Missing or zero until the first measurement of a running job."""

ID_COLUMNS: Final = (
    *("GlobalJobId", "ClusterId", "ProcId", "JobStatus", "JobUniverse", "NumJobStarts", "NumShadowStarts"),
    *("EnteredCurrentStatus", EXECUTED, WALL_CLOCK, LAST_WALL_CLOCK, FIRST_START, LAST_VACATE),
)
"""The columns that every conversion needs, besides the configured ones."""

OUTCOME_COLUMNS: Final = (
    *("ExitBySignal", "ExitCode", "LastJobStatus", "HoldReasonCode", "HoldReasonSubCode"),
    *("LastHoldReasonCode", "LastHoldReasonSubCode", "VacateReasonCode", "VacateReasonSubCode"),
)
"""The columns that say how a job ended. A record that lacks them only lacks the label."""

_RUN: Final = " run "

_AT: Final = " at "


def job_name(ad: JobAd, *, epochs: bool) -> str:
    """Return a unique name of the job or, with ``epochs``, of its run. The submission time in it tells jobs apart."""
    job = ad.row.get("GlobalJobId")
    if job is None:
        content = ad.text or repr(sorted(ad.row.items()))
        return f"unnamed {hashlib.sha256(content.encode()).hexdigest()[:24]}"
    return f"{job}{_RUN}{ad.row.get('NumShadowStarts', '')}" if epochs else job


def ad_name(ad: JobAd, *, epochs: bool) -> str:
    """Return a unique name of the ad: the job's name and ``EnteredCurrentStatus``."""
    return f"{job_name(ad, epochs=epochs)}{_AT}{ad.row.get('EnteredCurrentStatus', '')}"


def since(name: str, *, epochs: bool) -> str:
    """Return an expression that is true only for the ad with this name.

    The job's id comes first, so that the rest is not evaluated for other ads, whose content users wrote.
    """
    rest, _, moment = name.rpartition(_AT)
    job, _, run = rest.rpartition(_RUN) if epochs else (rest, "", "")
    escaped = job.replace("\\", "\\\\").replace('"', '\\"')
    conditions = [f'GlobalJobId =?= "{escaped}"']
    if epochs:
        conditions.append(f"NumShadowStarts =?= {run or 'undefined'}")
    conditions.append(f"EnteredCurrentStatus =?= {moment or 'undefined'}")
    return " && ".join(conditions)


def can_stop(name: str) -> bool:
    """Return True if :func:`since` works for this name of an ad."""
    moment = name.rpartition(_AT)[2]
    return not name.startswith("unnamed ") and name.isprintable() and (not moment or moment.isdecimal())
