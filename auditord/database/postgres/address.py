"""Which server, which database, and how to get in: from the configuration to what libpq wants."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import psycopg
from psycopg.conninfo import conninfo_to_dict

from auditord.config.model import StoreSection
from auditord.errors import ConfigurationError

_TLS: Final = ("sslmode", "sslrootcert", "sslcert", "sslkey")

_DEFAULTS: Final = {
    # A server that is gone without a word is noticed in seconds, not in hours.
    "connect_timeout": "5",
    "keepalives_idle": "10",
    "keepalives_interval": "5",
    "keepalives_count": "3",
    "tcp_user_timeout": "30000",
    "application_name": "auditord",
}


@dataclass(frozen=True, slots=True)
class Address:
    """A database that can be connected to.

    Args:
        where: server and database for messages, without secrets.
        parameters: libpq's; they may hold the password, and are never printed.
        connections: how many there may be for short statements, and again for long answers.
    """

    where: str
    parameters: Mapping[str, Any] = field(repr=False)  # Any: as psycopg types them
    connections: int


def address_of(section: StoreSection) -> Address:
    """The address that the configuration says.

    Raises:
        ConfigurationError: libpq does not understand the URL.
    """
    try:
        parameters = conninfo_to_dict(section.url)
    except psycopg.Error as error:
        raise ConfigurationError(f"store.url: {str(error).strip()}") from error
    parameters.update({name: str(getattr(section, name)) for name in _TLS if getattr(section, name) is not None})
    if section.password is not None:
        parameters["password"] = section.password.get_secret_value()
    where = f"{parameters.get('dbname', '')} at {_host(parameters)}"
    return Address(where, _DEFAULTS | parameters, section.pool_size)


def _host(parameters: Mapping[str, Any]) -> str:
    host, port = str(parameters.get("host", "the local socket")), parameters.get("port")
    return f"{host}:{port}" if port else host
