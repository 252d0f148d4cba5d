"""Where the API listens: addresses as the configuration writes them."""

from dataclasses import dataclass
from ipaddress import IPv6Address, ip_address
from pathlib import Path
from typing import Annotated, Any, TypeAlias

from pydantic import BeforeValidator, PlainSerializer, WithJsonSchema

_MAX_PORT = 65_535
_FORMS = "write host:port, [IPv6 address]:port or unix:/path"


@dataclass(frozen=True, slots=True)
class TcpListen:
    """A TCP address.

    Args:
        host: an IP address without brackets, or a name.
        port: 0 lets the system choose.
        optional: skip this address where the host lacks its family. Only the default list has such addresses: what an
            operator wrote must work, or the daemon does not start.
    """

    host: str
    port: int
    optional: bool = False

    @property
    def is_loopback(self) -> bool:
        """Whether only this host can connect; a name may stand for any address, but for localhost."""
        try:
            address = ip_address(self.host)
        except ValueError:
            return self.host.lower() == "localhost"
        mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
        return (mapped or address).is_loopback

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True)
class UnixListen:
    """A unix socket.

    Args:
        path: absolute.
        mode: who may connect; the configuration cannot say.
    """

    path: Path
    mode: int = 0o660

    def __str__(self) -> str:
        return f"unix:{self.path}"


def parse_listen(value: Any) -> Any:  # Any: whatever stood in the file
    """Read ``127.0.0.1:8000``, ``[::1]:8000`` or ``unix:/run/auditord/api.sock``.

    Raises:
        ValueError: the text is none of these.
    """
    if not isinstance(value, str):
        return value
    if value.startswith("unix:"):
        return _unix(value.removeprefix("unix:"))
    host, colon, port = value.rpartition(":")
    if not (host and colon and port.isascii() and port.isdigit() and int(port) <= _MAX_PORT):
        raise ValueError(f"'{value}' is no address to listen on: {_FORMS}")
    return TcpListen(_host(host, value), int(port))


def _unix(path: str) -> UnixListen:
    if not path.startswith("/"):
        raise ValueError(f"'unix:{path}' needs an absolute path, such as unix:/run/auditord/api.sock")
    return UnixListen(Path(path))


def _host(host: str, value: str) -> str:
    if host.startswith("[") and host.endswith("]"):
        if not isinstance(ip_address(host[1:-1]), IPv6Address):
            raise ValueError(f"'{value}': only an IPv6 address stands in brackets")
        return host[1:-1]
    if ":" in host:
        raise ValueError(f"'{value}': an IPv6 address stands in brackets, such as [::1]:8000")
    return host


Listen: TypeAlias = Annotated[
    TcpListen | UnixListen,
    BeforeValidator(parse_listen),
    PlainSerializer(str, return_type=str),
    WithJsonSchema({"type": "string", "examples": ["127.0.0.1:8000", "[::1]:8000", "unix:/run/auditord/api.sock"]}),
]

DEFAULT_LISTEN: tuple[TcpListen | UnixListen, ...] = (
    TcpListen("127.0.0.1", 8000),
    TcpListen("::1", 8000, optional=True),
)
"""Loopback only; a host without IPv6 goes without the second one."""
