"""A PostgreSQL database in the configuration; the password is in no text that is printed."""

from typing import Any

import pytest
from pydantic import ValidationError

from auditord.config.model import StoreSection
from auditord.database.postgres.address import address_of


def section(**values: Any) -> StoreSection:
    return StoreSection.model_validate(values)


@pytest.mark.parametrize(
    ("url", "kept"),
    [
        ("postgresql://me:ge%3Aheim@db.example:5433/auditord", "postgresql://me@db.example:5433/auditord"),
        ("postgres://me:ge%3Aheim@/auditord?host=/run/pg", "postgres://me@/auditord?host=/run/pg"),
        ("postgresql://me@db.example/auditord?password=ge%3Aheim", "postgresql://me@db.example/auditord"),
        ("postgresql://db.example/a?user=me&password=ge%3Aheim&port=1", "postgresql://db.example/a?user=me&port=1"),
    ],
)
def test_a_password_in_the_url_becomes_a_secret(url: str, kept: str) -> None:
    found = section(url=url)
    assert found.url == kept
    assert found.password is not None
    assert found.password.get_secret_value() == "ge:heim"
    assert "heim" not in repr(found)
    assert "heim" not in found.model_dump_json()


def test_the_option_wins_over_the_url() -> None:
    found = section(url="postgresql://me:one@db/auditord", password="two")  # noqa: S106 a test
    assert "two" in address_of(found).parameters().values()


def test_a_fault_says_nothing_of_the_password() -> None:
    with pytest.raises(ValidationError) as caught:
        section(url="postgresql://me:geheim@db/auditord", pool_size=0)
    assert "geheim" not in str(caught.value)


def test_a_replica_has_no_password_of_its_own() -> None:
    with pytest.raises(ValidationError, match="remove the password") as caught:
        section(url="postgresql://me@db/auditord", replica="postgresql://me:geheim@other/auditord")
    assert "geheim" not in str(caught.value)


@pytest.mark.parametrize("name", ["password", "sslmode", "sslrootcert", "pool_size", "replica"])
def test_options_of_postgresql_are_refused_for_a_file(name: str) -> None:
    value = {
        "password": "x",
        "sslmode": "require",
        "sslrootcert": "/ca.pem",
        "pool_size": 5,
        "replica": "postgresql://db/a",
    }[name]
    with pytest.raises(ValidationError, match=f"{name} is for PostgreSQL only"):
        section(url="sqlite:////srv/records.db", **{name: value})


def test_an_address_is_what_libpq_wants() -> None:
    tls = {"sslmode": "verify-full", "sslrootcert": "/ca.pem", "sslcert": "/me.pem", "sslkey": "/me.key"}
    address = address_of(section(url="postgresql://me:geheim@db:5433/auditord?connect_timeout=2", **tls, pool_size=3))
    assert (address.where, address.connections) == ("auditord at db:5433", 3)
    wanted = {"host": "db", "port": "5433", "user": "me", "dbname": "auditord", "password": "geheim", **tls}
    assert wanted.items() <= address.parameters().items()
    assert address.parameters()["connect_timeout"] == "2"
    assert "geheim" not in repr(address)
