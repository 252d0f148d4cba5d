"""Checks of programs, files and servers in a configuration, for ``auditord doctor``. They change nothing.

A kind's ``check`` yields one finding for each thing that it checks, including those that are OK::

    async def check(config: PageLogConfig, context: Context) -> AsyncIterator[Finding]:
        yield await check_program(context, ["lpstat"], option="-v")
        yield check_readable(config.path, "is the printer's log somewhere else?")
"""

import os
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from datetime import datetime, timedelta
from enum import Enum
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final, TypeAlias

import msgspec

from auditord_hookspecs.contexts import Context
from auditord_hookspecs.errors import CommandFailed
from auditord_hookspecs.wording import counted

ENDS_SOON: Final = timedelta(days=21)
"""The time before a certificate's end at which warnings begin. Getting a new certificate takes days."""

_PATIENCE: Final = timedelta(seconds=30)
_LONGEST: Final = 200


class Severity(Enum):
    """The severity of a finding; the values are those of ``--output json``."""

    OK = "ok"
    WARNING = "warning"
    """It works, but may soon stop working; or it cannot be checked."""
    FAILURE = "failure"
    """Something does not work, or records are being lost."""


class Finding(msgspec.Struct, frozen=True):
    """The result of a check.

    Args:
        severity: the severity.
        subject: the thing that was checked, such as a program or a file.
        text: the result, in one line.
        remedy: what to do; empty if the subject is OK.
    """

    severity: Severity
    subject: str
    text: str
    remedy: str = ""


Check: TypeAlias = Callable[[Any, Context], AsyncIterator[Finding]]  # Any: each kind has its own configuration model
"""A function that checks the programs, files and servers in a section. An AuditordError counts as a failure."""


async def check_program(
    context: Context,
    argv: Sequence[str],
    *,
    option: str = "--version",
    through: Sequence[str] = (),
    environment: Mapping[str, str] | None = None,
    remedy: str = "install it, or name its path in the configuration",
) -> Finding:
    """Check that a program runs, and report the first line of its version output."""
    try:
        result = await context.run_command(
            [*argv, option], timeout=_PATIENCE, environment=environment, through=through, max_output=1 << 20
        )
    except CommandFailed as error:
        return Finding(Severity.FAILURE, argv[0], str(error), remedy)
    words = (result.stdout or result.stderr).decode(errors="replace").strip().splitlines()
    return Finding(Severity.OK, argv[0], words[0][:_LONGEST] if words else "it runs")


def check_extra(module: str, extra: str) -> Finding:
    """Check that an optional Python module is installed."""
    if find_spec(module) is not None:
        return Finding(Severity.OK, module, "installed")
    return Finding(Severity.FAILURE, module, "not installed", f"pip install 'auditord[{extra}]'")


def check_readable(path: Path, remedy: str) -> Finding:
    """Check that this user can read a file or folder."""
    return _check_access(path, os.R_OK | (os.X_OK if path.is_dir() else 0), "read", remedy)


def check_folder(path: Path, remedy: str) -> Finding:
    """Check that this user can create and remove files in a folder."""
    if path.exists() and not path.is_dir():
        return Finding(Severity.FAILURE, str(path), "not a folder", remedy)
    return _check_access(path, os.R_OK | os.W_OK | os.X_OK, "written", remedy)


def _check_access(path: Path, mode: int, what: str, remedy: str) -> Finding:
    try:
        path.stat()
    except OSError as error:
        return Finding(Severity.FAILURE, str(path), error.strerror or str(error), remedy)
    if not os.access(path, mode):
        return Finding(Severity.FAILURE, str(path), f"it cannot be {what} by user id {os.geteuid()}", remedy)
    return Finding(Severity.OK, str(path), f"it can be {what}")


def certificate_end(path: Path) -> datetime:
    """Return the earliest end (aware) of the certificates in a PEM file.

    Raises:
        OSError: the file cannot be read.
        ValueError: the file contains no certificate.
    """
    from cryptography import x509  # noqa: PLC0415 importing a declaration must stay fast

    return min(each.not_valid_after_utc for each in x509.load_pem_x509_certificates(path.read_bytes()))


def check_certificate(path: Path, now: datetime) -> Finding:
    """Check that the certificates in a PEM file are valid for at least :data:`ENDS_SOON`."""
    try:
        end = certificate_end(path)
    except OSError as error:
        return Finding(Severity.FAILURE, str(path), error.strerror or str(error), "put the certificate there")
    except ValueError as error:
        return Finding(Severity.FAILURE, str(path), f"not a PEM certificate: {error}", "put a certificate there")
    text = f"valid until {end:%Y-%m-%d %H:%M} UTC"
    if end <= now:
        return Finding(Severity.FAILURE, str(path), f"expired: it was {text}", "put a new one there")
    if end - now < ENDS_SOON:
        return Finding(Severity.WARNING, str(path), f"{text}, for {counted((end - now).days, 'day')}", "renew it")
    return Finding(Severity.OK, str(path), text)
