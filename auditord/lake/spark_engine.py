"""Queries on a Spark cluster through Spark Connect, without Java in this process and with any cluster manager.

Spark reads the table from its metadata file, which never changes. So Spark needs no catalog, and a whole query reads
the snapshot that this daemon knows. Spark must be able to reach the files under the same URLs.
"""

from collections.abc import Generator, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from importlib import import_module
from typing import Any
from urllib.parse import quote

from pyiceberg.table import Table
from typing_extensions import override

from auditord.lake.engines import Chosen, Engine, Rows, Work, parameter
from auditord.lake.spark_dialect import VIEW, SparkDialect
from auditord.store.dialects import Sql
from auditord.store.lake import LakeUnavailable
from auditord_hookspecs import AggregateQuery

_sessions: Any = import_module("pyspark.sql.connect.session")  # Any: not among the libraries of the tests
_errors: Any = import_module("pyspark.errors")
_grpc: Any = import_module("grpc")


class Spark(Engine):
    """A Spark cluster. Each query has its own session.

    Args:
        url: of the cluster's Spark Connect server.
        token: for this server; the connection uses TLS if it is given.
    """

    dialect = SparkDialect

    def __init__(self, url: str, token: str | None = None) -> None:
        parameters = "" if token is None else f"{';' if '/;' in url else '/;'}token={quote(token, safe='')}"
        self._url = url + parameters

    @contextmanager
    @override
    def _ask(
        self, table: Table, query: AggregateQuery, chosen: Chosen, work: Work, *, with_open: bool
    ) -> Generator[Rows, None, None]:
        try:
            session = _sessions.SparkSession(self._url)
            try:
                session.client.set_retry_policies([])  # Spark would retry for ten minutes; callers can retry
                session.conf.set("spark.sql.ansi.enabled", "true")
                work.begin(session.interruptAll, _errors.PySparkException, _grpc.RpcError)
                reader, newest = session.read.format("iceberg"), table.current_snapshot()
                is_newest = newest is not None and newest.snapshot_id == chosen.snapshot_id
                if not is_newest:
                    reader = reader.option("versionAsOf", str(chosen.snapshot_id))
                reader.load(table.metadata_location).createTempView("lake")
                session.sql(VIEW)
                yield partial(_rows, session)
            finally:
                # The session's own method ``stop`` writes to the log if the server is gone.
                with suppress(_errors.PySparkException, _grpc.RpcError):
                    session.client.release_session()
                session.client.close()
        except (_errors.PySparkException, _grpc.RpcError) as error:
            text = str(error).strip().partition("\n")[0]
            raise LakeUnavailable(f"Spark cannot read the lake now: see lake.spark ({text}).") from error


def _rows(session: Any, statement: Sql) -> Iterator[Any]:  # Any: pyspark's SparkSession and Row
    sql, parameters = statement.to_query()
    rows: Iterator[Any] = session.sql(sql, args=list(map(parameter, parameters))).toLocalIterator()
    return rows
