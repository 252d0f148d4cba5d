"""Getting in: passwords, TLS, certificates; and what is never printed of them."""

import subprocess
from collections.abc import Generator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import anyio
import psycopg
import pytest

from auditord.config.model import StoreSection
from auditord.config.secrets import ReferencedSecret
from auditord.database.postgres.address import address_of
from auditord.errors import StoreMisconfigured, StoreUnavailable
from auditord.store import Duplicates, Provenance, Verdict
from auditord.store.opening import open_store, open_store_for_reading
from auditord.store.postgres import PostgresRecordStore
from auditord.store.store import RecordStore
from auditord_hookspecs import Record
from tests.integration.postgres.test_faults import works
from tests.postgres_server import NoServer, OwnServer, migrate_database, own_server

START = datetime(2024, 2, 3, tzinfo=UTC)

pytestmark = pytest.mark.anyio


@dataclass(frozen=True)
class TlsServer:
    server: OwnServer
    folder: Path

    def section(self, user: str, options: Mapping[str, object], host: str = "localhost") -> StoreSection:
        url = f"postgresql://{user}@{host}:{self.server.port}/postgres"
        return StoreSection.model_validate({"url": url, **options})


def certificates(folder: Path) -> None:
    """An authority, the server's certificate for localhost, a client's for the user auditord."""

    def openssl(*arguments: str) -> None:
        subprocess.run(["openssl", *arguments], cwd=folder, check=True, capture_output=True)

    for name in ("ca", "other"):
        openssl("req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", f"/CN={name}", "-keyout", f"{name}.key",
                "-out", f"{name}.pem", "-days", "2")  # fmt: skip
    for name, subject in (("server", "localhost"), ("client", "auditord")):
        openssl("req", "-newkey", "rsa:2048", "-nodes", "-subj", f"/CN={subject}", "-keyout", f"{name}.key",
                "-out", f"{name}.csr")  # fmt: skip
        (folder / "names").write_text(f"subjectAltName=DNS:{subject}")
        openssl("x509", "-req", "-in", f"{name}.csr", "-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial",
                "-extfile", "names", "-out", f"{name}.pem", "-days", "2")  # fmt: skip


@pytest.fixture(scope="module")
def tls_server(tmp_path_factory: pytest.TempPathFactory) -> Generator[TlsServer, None, None]:
    folder = tmp_path_factory.mktemp("certificates")
    certificates(folder)
    try:
        with own_server() as server:
            with psycopg.connect(server.url) as connection:
                connection.execute("CREATE ROLE clerk LOGIN SUPERUSER PASSWORD 'ge:heim@1'")
            migrate_database(server.url)
            rules = (
                "hostnossl all auditord 127.0.0.1/32 trust\n"  # the fixture itself
                "hostssl all clerk samehost scram-sha-256\nhostssl all auditord samehost cert\n"
            )
            server.install(
                {name: (folder / name).read_text() for name in ("server.pem", "server.key", "ca.pem")}, rules
            )
            server.restart("ssl=on", "ssl_cert_file=server.pem", "ssl_key_file=server.key", "ssl_ca_file=ca.pem")
            yield TlsServer(server, folder)
    except NoServer as error:
        pytest.skip(str(error))


async def opens(section: StoreSection) -> None:
    store = PostgresRecordStore(address_of(section), ())
    try:
        await store.open()
        await store.check()
    finally:
        await store.close()


async def test_a_password_over_proven_tls(tls_server: TlsServer) -> None:
    tls = {"sslmode": "verify-full", "sslrootcert": tls_server.folder / "ca.pem"}
    section = tls_server.section("clerk", {**tls, "password": "ge:heim@1"})
    store = PostgresRecordStore(address_of(section), ())
    try:
        await store.open()
        record = Record("job", START, ())
        assert await store.add(record, Provenance(record.start_time), Duplicates.SAME_RUN) is Verdict.ADDED
    finally:
        await store.close()


async def test_a_certificate_in_place_of_a_password(tls_server: TlsServer) -> None:
    key = tls_server.folder / "client.key"
    key.chmod(0o600)
    tls = {"sslmode": "verify-full", "sslrootcert": tls_server.folder / "ca.pem"}
    await opens(tls_server.section("auditord", {**tls, "sslcert": tls_server.folder / "client.pem", "sslkey": key}))


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"password": "geheim-falsch"}, "password authentication failed"),
        ({"password": "ge:heim@1", "sslrootcert": "other.pem", "sslmode": "verify-full"}, "certificate verify failed"),
        ({"password": "ge:heim@1", "sslmode": "disable"}, "no pg_hba.conf entry|pg_hba.conf rejects"),
    ],
)
async def test_a_refusal_says_why_and_tells_no_secret(
    tls_server: TlsServer, options: Mapping[str, str], reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    given: dict[str, object] = {"sslmode": "require", **options}
    if "sslrootcert" in options:
        given["sslrootcert"] = tls_server.folder / options["sslrootcert"]
    with pytest.raises(StoreUnavailable, match=reason) as refused:
        async with open_store_for_reading(tls_server.section("clerk", given)):
            pytest.fail("opened")
    text = f"{refused.value} {refused.value.__cause__!r} {caplog.text}"
    assert "heim" not in text


async def test_a_name_that_the_certificate_does_not_have(tls_server: TlsServer) -> None:
    tls = {"sslmode": "verify-full", "sslrootcert": tls_server.folder / "ca.pem", "password": "ge:heim@1"}
    with pytest.raises(StoreUnavailable, match="does not match host name"):
        await opens(tls_server.section("clerk", tls, host="127.0.0.1"))


async def test_a_rotated_password_is_read_again(tls_server: TlsServer) -> None:
    kept = ["ge:heim@1"]
    password = ReferencedSecret(kept[0], lambda: kept[-1])
    section = tls_server.section("clerk", {"sslmode": "require", "password": password})
    with psycopg.connect(tls_server.server.url, autocommit=True) as administrator:
        try:
            async with open_store(section, counted_keys=()) as store:
                administrator.execute("ALTER ROLE clerk PASSWORD 'other:heim@2'")
                administrator.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'clerk'")
                with pytest.raises(StoreMisconfigured, match="password authentication failed"):
                    await until_refused(store)
                kept.append("other:heim@2")
                with anyio.fail_after(60):
                    while not await works(store):  # noqa: ASYNC110 it asks a server
                        await anyio.sleep(0.05)
        finally:
            administrator.execute("ALTER ROLE clerk PASSWORD 'ge:heim@1'")


async def until_refused(store: RecordStore) -> None:
    """Ask until the answer is another one than that the connection was lost."""
    with anyio.fail_after(60):
        while True:
            try:
                await store.check()
            except StoreMisconfigured:
                raise
            except StoreUnavailable:
                await anyio.sleep(0.05)
