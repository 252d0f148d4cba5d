"""Log handlers and formats: text, JSON, and systemd's journal. The instance is a separate field."""

import json
import logging
import socket
import struct
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from time import monotonic
from typing import Final, Literal, TextIO

from auditord.errors import StoreUnavailable
from auditord_hookspecs.terminal import escape, escape_lines

JOURNAL_SOCKET: Final = Path("/run/systemd/journal/socket")
FIELDS: Final = ("task", "kind")
"""The fields that log calls may pass as ``extra``."""

_MINUTE: Final = 60.0

_PRIORITIES: Final = (
    (logging.CRITICAL, 2),
    (logging.ERROR, 3),
    (logging.WARNING, 4),
    (logging.INFO, 6),
    (logging.NOTSET, 7),
)
_log: Final = logging.getLogger(__name__)

_QUIET: Final = {
    "apscheduler": logging.WARNING,
    "asyncio": logging.WARNING,
    "aiohttp.access": logging.WARNING,
    "pyiceberg": logging.WARNING,
    "stamina": logging.ERROR,
}
"""Loggers of libraries that log their routine work, such as retries. Our own code logs when it gives up."""


def set_up(level: str, form: Literal["text", "json", "journal"], stream: TextIO = sys.stderr) -> None:
    """Log messages of at least this level to the stream, or to the journal.

    Args:
        level: ``debug``, ``info``, ``warning`` or ``error``.
        form: the format of lines; ``journal`` falls back to ``<priority>`` lines on the stream if no journal listens.
        stream: the output for all forms except ``journal``.
    """
    handler = JournalHandler(JOURNAL_SOCKET, stream) if form == "journal" else logging.StreamHandler(stream)
    if form != "journal":
        handler.setFormatter(TextFormatter() if form == "text" else JsonFormatter())
    handler.addFilter(OncePerMinute(monotonic))
    handler.addFilter(FloodFilter())
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    for name, least in _QUIET.items():
        logging.getLogger(name).setLevel(logging.DEBUG if level == "debug" else least)


class FloodFilter(logging.Filter):
    """Drops lines of an instance or library that logs too many of them, but never lines of auditord itself."""

    def __init__(self, clock: Callable[[], float] = monotonic, most: int = 1_000, seconds: float = 10.0) -> None:
        super().__init__()
        self._clock, self._most, self._seconds = clock, most, seconds
        self._lines: dict[str, tuple[float, int]] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether to write the line."""
        source = fields(record).get("task") or record.name.partition(".")[0]
        if source == "auditord":
            return True
        window_start, count = self._lines.get(source, (self._clock(), 0))
        if self._clock() - window_start >= self._seconds:
            if count > self._most:
                _log.warning("%d log lines of %s were left out", count - self._most, source)
            window_start, count = self._clock(), 0
        self._lines[source] = window_start, count + 1
        if count == self._most:
            _log.warning("log lines of %s are left out: more than %d within %g s", source, count, self._seconds)
        return count < self._most


class OncePerMinute(logging.Filter):
    """Limits messages about an unavailable database to one line per minute, message and cause."""

    def __init__(self, clock: Callable[[], float]) -> None:
        super().__init__()
        self._clock = clock
        self._passed: dict[tuple[str, str], tuple[float, int]] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether to write the line; the next line that passes gives the number of those held back."""
        cause = next(
            (text for text in map(_outage, record.args if isinstance(record.args, tuple) else ()) if text), None
        )
        if cause is None:
            return True
        key, now = (record.msg, cause), self._clock()
        since, held_back = self._passed.get(key, (now - _MINUTE, 0))
        if now - since < _MINUTE:
            self._passed[key] = (since, held_back + 1)
            return False
        if held_back:
            record.msg, record.args = f"{record.getMessage()} (and {held_back} times more)", ()
        self._passed[key] = (now, 0)
        return True


def _outage(argument: object) -> str:
    cause = argument.__cause__ if isinstance(argument, Exception) else None
    return next((str(each) for each in (argument, cause) if isinstance(each, StoreUnavailable)), "")


class TextFormatter(logging.Formatter):
    """``2026-03-01T12:00:00.123Z INFO slurm: message``, escaped: a job's name cannot forge a new line."""

    def format(self, record: logging.LogRecord) -> str:
        """Return one line, followed by the traceback if there is one."""
        name = fields(record).get("task", record.name)
        line = f"{_time(record)} {record.levelname} {name}: {escape(record.getMessage())}"
        trace = _traceback(record)
        return f"{line}\n{trace}" if trace else line


class MessageFormatter(logging.Formatter):
    """The message alone, for the user of a command."""

    def format(self, record: logging.LogRecord) -> str:
        """Return one line, followed by the traceback if there is one."""
        line, trace = escape(record.getMessage()), _traceback(record)
        return f"{line}\n{trace}" if trace else line


class JsonFormatter(logging.Formatter):
    """One JSON object per line."""

    def format(self, record: logging.LogRecord) -> str:
        """Return ``time``, ``level``, ``logger``, ``message`` and, if known, ``task``, ``kind``, ``traceback``."""
        document = {
            "time": _time(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **fields(record),
        }
        if trace := _traceback(record):
            document["traceback"] = trace
        return json.dumps(document)


class JournalHandler(logging.Handler):
    """Writes to systemd's journal by its native protocol, so that ``journalctl AUDITORD_TASK=slurm`` works.

    Args:
        path: the journal's socket.
        stream: receives ``<priority>`` lines if the journal does not listen.
    """

    def __init__(self, path: Path, stream: TextIO) -> None:
        super().__init__()
        self._path = path
        self._stream = stream
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)

    def emit(self, record: logging.LogRecord) -> None:
        """Send one datagram to the journal, or write the line to the stream."""
        try:
            self._socket.sendto(journal_datagram(record), str(self._path))
        except OSError:  # no listener, or the message is too long for a datagram
            line = escape(record.getMessage())
            self._stream.write(f"<{priority(record)}>{fields(record).get('task', record.name)}: {line}\n")
            self._stream.flush()

    def close(self) -> None:
        self._socket.close()
        super().close()


def journal_datagram(record: logging.LogRecord) -> bytes:
    """Return a record in the journal's native format: ``NAME=value`` lines; multi-line values have a length instead."""
    trace = _traceback(record)
    message = escape_lines(record.getMessage())  # journalctl indents the lines of one message
    values = {
        "MESSAGE": f"{message}\n{trace}" if trace else message,
        "PRIORITY": str(priority(record)),
        "SYSLOG_IDENTIFIER": "auditord",
        "LOGGER": record.name,
        "CODE_FILE": record.pathname,
        "CODE_LINE": str(record.lineno),
        "CODE_FUNC": record.funcName or "",
        **{f"AUDITORD_{name.upper()}": value for name, value in fields(record).items()},
    }
    lines = list[bytes]()
    for name, value in values.items():
        data = value.encode(errors="backslashreplace")
        start = name.encode() + (b"\n" + struct.pack("<Q", len(data)) if b"\n" in data else b"=")
        lines.append(start + data + b"\n")
    return b"".join(lines)


def priority(record: logging.LogRecord) -> int:
    """Return the syslog priority, 2 (critical) to 7 (debug)."""
    return next(number for level, number in _PRIORITIES if record.levelno >= level)


def fields(record: logging.LogRecord) -> dict[str, str]:
    """Return the structured fields that the log call passed."""
    return {name: str(getattr(record, name)) for name in FIELDS if hasattr(record, name)}


def _time(record: logging.LogRecord) -> str:
    moment = datetime.fromtimestamp(record.created, UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _traceback(record: logging.LogRecord) -> str:
    return escape_lines(logging.Formatter().formatException(record.exc_info)) if record.exc_info else ""
