"""Addresses with options: how they are written, and which ones are refused with what to do."""

from pathlib import Path

import pytest
from pydantic import ValidationError

from auditord.config.listen import ListenTls, TcpListen, UnixListen, to_option
from auditord.config.model import ApiSection

FILES = {"certificate": "/tls/host.pem", "key": "/tls/host.key"}
SECURE = {"address": "0.0.0.0:8443", "tls": FILES}


def listen(*entries: object) -> tuple[TcpListen | UnixListen, ...]:
    return ApiSection.model_validate({"listen": list(entries)}).listen


def test_a_section_names_the_files_of_tls() -> None:
    (address,) = listen(SECURE)
    tls = ListenTls(certificate=Path("/tls/host.pem"), key=Path("/tls/host.key"))
    assert address == TcpListen("0.0.0.0", 8443, tls=tls)  # noqa: S104 only parsed
    assert tls.client_ca is None


def test_clients_are_asked_for_certificates_where_an_authority_is_named() -> None:
    (address,) = listen({"address": "[::]:8443", "tls": {**FILES, "client_ca": "/tls/ca.pem"}})
    assert isinstance(address, TcpListen)
    assert address.tls is not None
    assert (address.tls.client_ca, address.tls.client_certificate) == (Path("/tls/ca.pem"), "required")
    assert len(address.tls.files) == 3


def test_a_unix_socket_has_a_mode() -> None:
    assert listen({"address": "unix:/run/a.sock", "mode": "0666"}) == (UnixListen(Path("/run/a.sock"), 0o666),)


@pytest.mark.parametrize("entry", ["127.0.0.1:80", "unix:/run/a.sock", SECURE, {"address": "unix:/a", "mode": "0600"}])
def test_what_is_shown_can_be_written(entry: object) -> None:
    (address,) = listen(entry)
    assert listen(to_option(address)) == (address,)
    assert ApiSection(listen=(address,)).model_dump(mode="json")["listen"] == [entry]


@pytest.mark.parametrize(
    ("entry", "said"),
    [
        ({"address": "unix:/a", "tls": FILES}, "cannot use tls"),
        ({"address": "127.0.0.1:1", "mode": "0600"}, "mode is for unix sockets"),
        ({"address": "unix:/a", "mode": "rw"}, "pattern"),
        ({"address": "nowhere"}, "not a listen address"),
        ({"address": "127.0.0.1:1", "tls": {}}, "certificate"),
        ({"addres": "127.0.0.1:1"}, "addres"),
    ],
)
def test_what_makes_no_sense_is_refused(entry: object, said: str) -> None:
    with pytest.raises(ValidationError, match=said):
        listen(entry)


def test_the_place_of_a_fault_is_named() -> None:
    with pytest.raises(ValidationError) as raised:
        listen({"address": "127.0.0.1:1", "tls": {**FILES, "client_certificate": "maybe"}})
    assert raised.value.errors()[0]["loc"][:2] == ("listen", 0)
    assert raised.value.errors()[0]["loc"][-2:] == ("tls", "client_certificate")


def test_a_port_alone_is_one_of_this_host() -> None:
    for listen in (8001, "8001"):
        addresses = ApiSection.model_validate({"listen": listen}).listen
        assert [str(each) for each in addresses] == ["127.0.0.1:8001", "[::1]:8001"]
    assert [str(each) for each in ApiSection.model_validate({"listen": [8001]}).listen] == ["127.0.0.1:8001"]
    assert [str(each) for each in ApiSection.model_validate({"listen": "unix:/run/x"}).listen] == ["unix:/run/x"]


@pytest.mark.parametrize("listen", [70000, True, -1, [True], "x"])
def test_what_is_no_port_is_refused(listen: object) -> None:
    with pytest.raises(ValidationError):
        ApiSection.model_validate({"listen": listen})
