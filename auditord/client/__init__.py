"""Read and write the records of an auditord or an AUDITOR 0.11 server.

::

    from auditord.client import Client

    with Client("http://auditord.example:8000").stream() as records:
        for record in records:
            print(record.record_id, record.runtime)

:class:`AsyncClient` does the same in coroutines. :func:`to_arrow`, :func:`to_pandas` and :func:`to_polars` convert
records to tables. Nothing here needs a daemon on this host.
"""

from auditord.client.clients import AsyncClient, Client
from auditord.client.exchange import (
    AnsweredError,
    ClientError,
    ConnectionFailed,
    CutAnswer,
    InvalidAnswer,
    RecordExists,
    Refused,
    ServerFailed,
    Tls,
    UnknownRecord,
    UnsupportedQuery,
)
from auditord.client.frames import to_arrow, to_pandas, to_polars
from auditord.client.query_string import encode_query

__all__ = [
    "AnsweredError",
    "AsyncClient",
    "Client",
    "ClientError",
    "ConnectionFailed",
    "CutAnswer",
    "InvalidAnswer",
    "RecordExists",
    "Refused",
    "ServerFailed",
    "Tls",
    "UnknownRecord",
    "UnsupportedQuery",
    "encode_query",
    "to_arrow",
    "to_pandas",
    "to_polars",
]
