"""Listen addresses in the configuration."""

from collections.abc import Callable
from ipaddress import IPv6Address, ip_address
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias

import msgspec
from msgspec.structs import replace
from pydantic import Field, GetCoreSchemaHandler, GetJsonSchemaHandler, model_validator
from pydantic_core import CoreSchema, core_schema

from auditord_hookspecs import Section

_MAX_PORT = 65_535
_FORMS = "write host:port, [IPv6 address]:port or unix:/path"


class ListenTls(Section):
    """TLS at one address. The files are read again when they change, so a renewed certificate needs no restart."""

    certificate: Path = Field(
        description="PEM file of the server's certificate, with the intermediate certificates up to a CA."
    )
    key: Path | None = Field(
        default=None, description="PEM file of the certificate's key, unless it is in the same file."
    )
    client_ca: Path | None = Field(
        default=None,
        description="PEM file of the CAs of client certificates. Without it, no client certificate is requested.",
    )
    client_certificate: Literal["required", "optional"] = Field(
        default="required", description="Whether a client certificate is required or optional, with client_ca."
    )

    @property
    def files(self) -> tuple[Path, ...]:
        """The configured files."""
        return tuple(file for file in (self.certificate, self.key, self.client_ca) if file is not None)


class TcpListen(msgspec.Struct, frozen=True):
    """A TCP address.

    Args:
        port: 0 lets the system choose.
        optional: skip this address if the host lacks its family. Only default addresses are optional. An address that
            an operator wrote must work, or the daemon does not start.
    """

    host: str
    port: int
    optional: bool = False
    tls: ListenTls | None = None

    @property
    def is_loopback(self) -> bool:
        """True if only this host can connect. Names other than localhost may stand for any address."""
        try:
            address = ip_address(self.host)
        except ValueError:
            return self.host.lower() == "localhost"
        mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
        return (mapped or address).is_loopback

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class UnixListen(msgspec.Struct, frozen=True):
    """A unix socket."""

    path: Path
    mode: int = 0o660

    def __str__(self) -> str:
        return f"unix:{self.path}"


class ListenSection(Section):
    """An address with options."""

    address: str = Field(description="host:port, [IPv6 address]:port or unix:/path.")
    tls: ListenTls | None = Field(default=None, description="Serve this address with TLS.")
    mode: str | None = Field(
        default=None, pattern="^0?[0-7]{3}$", description='Access mode of a unix socket, in quotes; default "0660".'
    )

    @model_validator(mode="after")
    def _fits(self) -> "ListenSection":
        if isinstance(parse_listen(self.address), UnixListen):
            if self.tls is not None:
                raise ValueError("a unix socket cannot use tls: remove it")
        elif self.mode is not None:
            raise ValueError("mode is for unix sockets only: remove it")
        return self

    def resolve(self) -> TcpListen | UnixListen:
        """Return the address."""
        match parse_listen(self.address):
            case UnixListen(path):
                return UnixListen(path) if self.mode is None else UnixListen(path, int(self.mode, 8))
            case TcpListen(host, port):
                return TcpListen(host, port, tls=self.tls)


def parse_listen(value: str) -> TcpListen | UnixListen:
    """Parse ``127.0.0.1:8000``, ``[::1]:8000`` or ``unix:/run/auditord/api.sock``.

    Raises:
        ValueError: the text has another form.
    """
    if value.startswith("unix:"):
        path = value.removeprefix("unix:")
        if not path.startswith("/"):
            raise ValueError(f"'unix:{path}' needs an absolute path, such as unix:/run/auditord/api.sock")
        return UnixListen(Path(path))
    host, colon, port = value.rpartition(":")
    if not (host and colon and port.isascii() and port.isdigit() and int(port) <= _MAX_PORT):
        raise ValueError(f"'{value}' is not a listen address: {_FORMS}")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
        if not isinstance(ip_address(host), IPv6Address):
            raise ValueError(f"'{value}': only an IPv6 address may be in brackets")
    elif ":" in host:
        raise ValueError(f"'{value}': write an IPv6 address in brackets, such as [::1]:8000")
    return TcpListen(host, int(port))


def to_option(address: TcpListen | UnixListen) -> str | dict[str, Any]:  # Any: plain values
    """Return an address as written in the configuration: text unless it has options."""
    match address:
        case TcpListen(tls=None) | UnixListen(mode=0o660):
            return str(address)
        case UnixListen(mode=mode):
            return {"address": str(address), "mode": f"{mode:04o}"}
        case TcpListen(tls=tls):
            return {"address": str(address), "tls": tls and tls.model_dump(mode="json", exclude_defaults=True)}


def stands_for_itself(name: str) -> bool:
    """Return whether a host name cannot be rebound by others: an address, a name without a dot, or localhost."""
    if "." not in name or name.endswith(".localhost"):
        return True
    try:
        ip_address(name)
    except ValueError:
        return False
    return True


class _Readable:
    """Lets pydantic parse an address: text, or a section with the address and its options."""

    def __get_pydantic_core_schema__(self, _source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_wrap_validator_function(
            _read,
            handler.generate_schema(ListenSection),
            serialization=core_schema.plain_serializer_function_ser_schema(to_option),
        )

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        examples = ["127.0.0.1:8000", "[::1]:8000", "unix:/run/auditord/api.sock"]
        return {"anyOf": [{"type": "string", "examples": examples}, {"type": "integer"}, handler(schema)]}


def to_list(value: Any) -> Any:  # Any: the value in the file
    """Return a single address as a list, and a port as the default addresses with that port."""
    if isinstance(value, bool) or not isinstance(value, int | str):
        return value
    if str(value).isdigit() and int(value) <= _MAX_PORT:
        return tuple(replace(each, port=int(value)) for each in DEFAULT_LISTEN if isinstance(each, TcpListen))
    return (value,)


def _read(value: Any, section: Callable[[Any], ListenSection]) -> TcpListen | UnixListen:  # Any: the value in the file
    if isinstance(value, TcpListen | UnixListen):
        return value
    if (isinstance(value, int) and not isinstance(value, bool)) or (isinstance(value, str) and value.isdigit()):
        value = f"127.0.0.1:{value}"
    return parse_listen(value) if isinstance(value, str) else section(value).resolve()


Listen: TypeAlias = Annotated[TcpListen | UnixListen, _Readable()]

DEFAULT_LISTEN: tuple[TcpListen | UnixListen, ...] = (
    TcpListen("127.0.0.1", 8000),
    TcpListen("::1", 8000, optional=True),
)
"""Loopback only. The second address is skipped on a host without IPv6."""
