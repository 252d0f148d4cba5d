"""The catalog of the table is where the record store is, and stays where it was."""

from collections.abc import Callable
from pathlib import Path

import psycopg
import pytest
from pyiceberg.catalog.sql import SqlCatalog

from auditord.archive.catalog import CatalogTable
from auditord.errors import StoreUnavailable
from tests.integration.archive.host import CORES, RECORDS, Host, ids


def tables(url: str) -> list[tuple[str, str, str]]:
    with psycopg.connect(url) as connection:
        return connection.execute(
            "SELECT catalog_name, table_namespace, table_name FROM auditord.iceberg_tables"
        ).fetchall()


def test_a_record_store_in_postgresql_has_the_catalog_as_well(
    new_postgres_url: Callable[[], str], tmp_path: Path
) -> None:
    url = new_postgres_url()
    host = Host(tmp_path, store=url)
    host.run("archive", "run")
    assert tables(url) == [("auditord", "auditord", "records")]
    assert not (tmp_path / "archive" / "catalog.db").exists()
    assert "90 of 90 archived records" in host.run("archive", "verify").output
    assert "90 records are archived" in host.run("archive", "list").output
    found = ids(host.run("archive", "query", "--sort", "start_time", "--output", "ndjson").stdout)
    assert found == [each.record_id for each in RECORDS]
    catalog = SqlCatalog(
        "auditord",
        uri=url.replace("postgresql://", "postgresql+psycopg://") + "?options=-csearch_path%3Dauditord",
        init_catalog_tables="false",
    )
    assert catalog.load_table("auditord.records").scan().count() == 90
    catalog.close()


def test_a_catalog_that_is_there_already_goes_on_being_used(
    new_postgres_url: Callable[[], str], tmp_path: Path
) -> None:
    url = new_postgres_url()
    host = Host(tmp_path, RECORDS[:60])
    host.run("archive", "run")
    host.run("database", "copy", "--to", url)
    host.use(url)
    host.add(*RECORDS[60:])
    host.run("archive", "run")
    assert "90 of 90 archived records" in host.run("archive", "verify").output
    assert tables(url) == []
    used = host.run("report", "usage", "--from", "2021-01-01", "--to", "2021-12-31", "--by", "none", "--output", "json")
    assert f'"core-hours": {2 * CORES}' in used.stdout


def test_a_catalog_that_does_not_know_the_table_is_named_with_what_to_do(tmp_path: Path) -> None:
    host = Host(tmp_path)
    host.run("archive", "run")
    (tmp_path / "archive" / "catalog.db").unlink()
    for words in (("archive", "query"), ("archive", "verify"), ("records", "--include", "archive")):
        done = host.run(*words, fails=True)
        assert isinstance(done.exception, StoreUnavailable)
        assert "mend archive.folder and archive.catalog" in str(done.exception)


def test_a_thread_that_goes_on_behind_the_end_leaves_no_connection_open(new_postgres_url: Callable[[], str]) -> None:
    """As that of roll-ups, which read the archive when a command ends."""
    properties = {"type": "sql", "uri": new_postgres_url().replace("postgresql://", "postgresql+psycopg://")}
    table = CatalogTable("auditord.records", "file:///archive", properties, "archive", "archive.folder")
    catalog = table.connected()
    assert isinstance(catalog, SqlCatalog)
    table.close()
    with catalog.engine.connect() as used:
        connection: object = used.connection.dbapi_connection
        assert isinstance(connection, psycopg.Connection)
        seen = [connection.closed]
    assert [*seen, connection.closed] == [False, True]
    with pytest.raises(StoreUnavailable, match="it was closed"):
        table.connected()
