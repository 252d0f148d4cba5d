"""Translate PostgreSQL's errors into messages for operators."""

import re
from collections.abc import Generator
from contextlib import contextmanager
from typing import Final

import psycopg
from psycopg_pool import PoolClosed, PoolTimeout

from auditord.errors import StoreMisconfigured, StoreUnavailable

_ADVICE: Final = {
    "08": "the connection was lost; check whether the server is running and the network is up",
    "25006": "it accepts no writes, like a standby; point store.url to the primary server",
    "28": "it rejected the user; check store.url, store.password, the certificates, and pg_hba.conf on the server",
    "3D000": "the server has no such database; create it with createdb, then run `auditord database migrate`",
    "40": "transactions conflicted repeatedly; try again",
    "42501": "the user lacks a privilege; grant it, see `auditord database migrate --help`",
    "53100": "there is no room left on the server's disk; free some space, then writing resumes",
    "53200": "the server has no memory left",
    "53300": "the server has no free connection; raise its max_connections or lower store.pool_size",
    "57014": "the statement took too long; look at the server's load and its locks",
    "57P": "the server is being stopped or started",
    "58": "the server's disk reports an error; look at the server's log",
    "XX001": "the server reports damage; look at the server's log",
    "XX002": "the server reports a damaged index; look at the server's log",
    "XX": "the server reports an internal error; look at its log, and check whether it is a plain PostgreSQL",
    "URL": "it cannot be reached with this configuration; check store.url and the TLS options",
}

_MISCONFIGURED: Final = ("28", "3D000", "42501", "URL")
"""Classes of errors that persist until the configuration is corrected, here or on the server."""

# For a refused connection, libpq gives no SQLSTATE, only the server's text. In other languages than English
# (lc_messages), these faults count as an outage.
_TEXTS: Final = (
    (re.compile(r'database ".*" does not exist'), "3D000"),
    (re.compile(r"permission denied for database"), "42501"),
    (re.compile(r"authentication failed|no password supplied|not permitted to log in|pg_hba\.conf"), "28"),
    (re.compile(r'role ".*" does not exist'), "28"),
    (re.compile(r"certificate verify failed|does not match host name|server does not support SSL"), "URL"),
    (re.compile(r"invalid (port|integer value)|(certificate|key) file .*(does not exist|permissions)"), "URL"),
)

_NO_ANSWER: Final = "check whether the server is running and can be reached from here, and read its log"


def as_unavailable(error: BaseException, where: str) -> StoreUnavailable:
    """Return an error with advice for the operator. The same call may succeed later, perhaps only after a repair."""
    state, text = _sqlstate(error), str(error).strip()
    if not state and isinstance(error, psycopg.OperationalError):
        state = next((state for pattern, state in _TEXTS if pattern.search(text)), "")
    advice = next((text for start, text in _ADVICE.items() if state.startswith(start)), _NO_ANSWER)
    first_line = text.splitlines()[0] if text else type(error).__name__
    kind = StoreMisconfigured if state.startswith(_MISCONFIGURED) else StoreUnavailable
    return kind(f"The database {where} is not available: {advice} ({first_line}).")


def is_permanent(error: BaseException) -> bool:
    """Return whether the values of the statement are permanently refused, so that another attempt would fail, too.

    That is true for classes 22 (data) and 54 (program limits), and for values that psycopg cannot send.
    """
    if isinstance(error, UnicodeError | OverflowError):
        return True
    state = _sqlstate(error)
    return state.startswith(("22", "54")) or (not state and isinstance(error, psycopg.DataError))


def is_passing(error: BaseException) -> bool:
    """Return whether the error is a conflict with another transaction, so that a retry is likely to succeed."""
    return _sqlstate(error) in {"40001", "40P01"}


@contextmanager
def translate_errors(where: str, *, reading: bool = False) -> Generator[None, None, None]:
    """Turn errors due to an unavailable database into StoreUnavailable, with advice for the operator.

    Errors about refused values, duplicate keys and conflicts between transactions are not changed. If ``reading``,
    conflicts are also turned into StoreUnavailable: they come from a replica that applies its primary's changes.
    """
    try:
        yield
    except (psycopg.Error, PoolTimeout, PoolClosed) as error:
        met_another = is_passing(error) and not reading
        if is_permanent(error) or met_another or isinstance(error, psycopg.errors.UniqueViolation):
            raise
        raise as_unavailable(error, where) from error


def _sqlstate(error: BaseException) -> str:
    return (error.sqlstate or "") if isinstance(error, psycopg.Error) else ""
