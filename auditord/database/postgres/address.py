"""The address of a database: make the parameters of libpq from the configuration."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import psycopg
from psycopg.conninfo import conninfo_to_dict

from auditord.config.model import StoreSection
from auditord.config.secrets import latest
from auditord.errors import ConfigurationError

_TLS: Final = ("sslmode", "sslrootcert", "sslcert", "sslkey")

APPLICATION: Final = "auditord"
"""The name of this program's sessions in ``pg_stat_activity``."""

_DEFAULTS: Final = {
    # They detect in seconds that a server is gone, instead of hours.
    "connect_timeout": "5",
    "keepalives_idle": "10",
    "keepalives_interval": "5",
    "keepalives_count": "3",
    "tcp_user_timeout": "30000",
    "application_name": APPLICATION,
}


@dataclass(frozen=True, slots=True)
class Address:
    """A database that can be connected to.

    Args:
        where: server and database for messages, without secrets.
        connections: the maximum number of connections for short statements, and the same for long answers.
        parameters: returns libpq's parameters, which are never printed. The password is read anew each time.
    """

    where: str
    connections: int
    parameters: Callable[[], Mapping[str, Any]] = field(repr=False)  # Any: as psycopg types them


def address_of(section: StoreSection) -> Address:
    """Return the configured address.

    Raises:
        ConfigurationError: libpq does not understand the URL.
    """
    try:
        parameters = conninfo_to_dict(section.url)
    except psycopg.Error as error:
        raise ConfigurationError(f"store.url: {str(error).strip()}") from error
    parameters.update({name: str(getattr(section, name)) for name in _TLS if getattr(section, name) is not None})
    password = section.password

    def read() -> Mapping[str, Any]:  # Any: as psycopg types them
        return _DEFAULTS | parameters | ({} if password is None else {"password": latest(password)})

    host, port = str(parameters.get("host", "the local socket")), parameters.get("port")
    where = f"{parameters.get('dbname', '')} at {host}" + (f":{port}" if port else "")
    return Address(where, section.pool_size, read)
