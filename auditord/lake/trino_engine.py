"""Queries on a Trino cluster over HTTP.

Trino reads the table through its own catalog, which must name the same database or REST server as ``lake.catalog``. It
reads the snapshot that this daemon knows, whose id is never reused.
"""

from collections.abc import Generator, Iterator
from contextlib import contextmanager
from datetime import datetime
from decimal import Decimal
from functools import partial
from importlib import import_module
from typing import Any, Final
from urllib.parse import unquote, urlsplit

from pyiceberg.table import Table
from typing_extensions import override

from auditord.lake.catalog import TABLE
from auditord.lake.engines import Chosen, Engine, Rows, Work, parameter
from auditord.lake.trino_dialect import RECORDS, TrinoDialect
from auditord.store.dialects import Sql
from auditord.store.lake import LakeUnavailable
from auditord_hookspecs import AggregateQuery

_trino: Any = import_module("trino")  # Any: it ships no types
_requests: Any = import_module("requests")

_ROWS_AT_ONCE: Final = 1_000


class Trino(Engine):
    """A Trino cluster. Each query has its own connection.

    Args:
        url: ``https://user@host:port/catalog``.
        password: of the user.
        token: a JWT sent instead of the password.
    """

    dialect = TrinoDialect

    def __init__(self, url: str, password: str | None = None, token: str | None = None) -> None:
        at = urlsplit(url)
        names = [each.replace('"', '""') for each in (at.path.strip("/"), *TABLE.split("."))]
        self._table = ".".join(f'"{name}"' for name in names)
        user, auth = unquote(at.username or ""), None
        if token is not None:
            auth = _trino.auth.JWTAuthentication(token)
        elif password is not None:
            auth = _trino.auth.BasicAuthentication(user, password)
        self._options = {
            "host": at.hostname,
            "port": at.port,
            "http_scheme": at.scheme,
            "user": user,
            "auth": auth,
            "source": "auditord",
            "timezone": "UTC",
            "max_attempts": 1,  # callers can retry
            "legacy_prepared_statements": False,
        }

    @contextmanager
    @override
    def _ask(
        self, table: Table, query: AggregateQuery, chosen: Chosen, work: Work, *, with_open: bool
    ) -> Generator[Rows, None, None]:
        yield partial(self._rows, chosen.snapshot_id, work)

    def _rows(self, snapshot_id: int, work: Work, statement: Sql) -> Iterator[list[Any]]:  # Any: values of all types
        """Yield the rows of a statement, with decimals converted to whole numbers."""
        # Instants are sent as texts, since Trino's client garbles years before 1000.
        first, *texts = statement.sql.split("%s")
        pieces = [RECORDS.format(table=self._table, snapshot=f"BIGINT '{snapshot_id}'"), first]
        parameters: list[object] = []
        for value, text in zip(map(parameter, statement.parameters), texts, strict=True):
            if isinstance(value, datetime):
                pieces += ["CAST(? AS TIMESTAMP(6) WITH TIME ZONE)", text]
                parameters.append(f"{value.replace(tzinfo=None)} UTC")
            else:
                pieces += ["?", text]
                parameters.append(value)
        connection = _trino.dbapi.connect(**self._options)
        try:
            cursor = connection.cursor()
            work.begin(cursor.cancel, _trino.exceptions.Error, _requests.RequestException)
            cursor.execute("".join(pieces), parameters)
            while rows := cursor.fetchmany(_ROWS_AT_ONCE):
                yield from ([int(each) if isinstance(each, Decimal) else each for each in row] for row in rows)
        except (_trino.exceptions.Error, _requests.RequestException) as error:
            text = str(getattr(error, "message", error)).strip().partition("\n")[0]
            raise LakeUnavailable(f"Trino cannot read the lake now: see lake.trino ({text}).") from error
        finally:
            connection.close()
