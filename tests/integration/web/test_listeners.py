"""Addresses: what is bound, what is refused and in which words, what is left behind."""

import socket
import stat
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from auditord.config.listen import TcpListen, UnixListen
from auditord.errors import ConfigurationError
from auditord.web.listeners import bind_sockets

NOWHERE = "2001:db8::1"  # an address for documentation: no host has it


def bind(address: TcpListen | UnixListen) -> None:
    with bind_sockets([address]):
        pass


def test_every_address_becomes_a_url(tmp_path: Path) -> None:
    path = tmp_path / "api.sock"
    with bind_sockets([TcpListen("127.0.0.1", 0), UnixListen(path)]) as (tcp, unix):
        port = tcp.socket.getsockname()[1]
        assert port > 0
        assert [tcp.url, unix.url] == [f"http://127.0.0.1:{port}", f"unix:{path}"]


def test_ipv6_stands_beside_ipv4_on_one_port() -> None:
    with ExitStack() as stack:
        for _ in range(20):  # of IPv4, another process may have the port
            (six,) = stack.enter_context(bind_sockets([TcpListen("::1", 0)]))
            port = six.socket.getsockname()[1]
            assert six.url == f"http://[::1]:{port}"
            with suppress(ConfigurationError), bind_sockets([TcpListen("127.0.0.1", port)]) as (four,):
                assert four.url == f"http://127.0.0.1:{port}"
                return
    pytest.fail("an address of IPv6 is in the way of every one of IPv4")


def test_a_link_in_place_of_the_new_socket_opens_no_other_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    secret, path = tmp_path / "secret", tmp_path / "api.sock"
    secret.touch(mode=0o600)
    really_bind = socket.socket.bind

    def overtaken(sock: socket.socket, address: str) -> None:
        really_bind(sock, address)
        path.unlink()
        path.symlink_to(secret)

    monkeypatch.setattr(socket.socket, "bind", overtaken)
    with pytest.raises(ConfigurationError, match="another user has replaced the socket"):
        bind(UnixListen(path, mode=0o666))
    assert secret.stat().st_mode & 0o777 == 0o600


def test_a_unix_socket_is_for_owner_and_group_and_leaves_no_file(tmp_path: Path) -> None:
    path = tmp_path / "api.sock"
    with bind_sockets([UnixListen(path)]):
        assert stat.S_IMODE(path.stat().st_mode) == 0o660
    assert not path.exists()


def test_a_socket_that_a_killed_process_left_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "api.sock"
    with socket.socket(socket.AF_UNIX) as left_behind:
        left_behind.bind(str(path))
    with bind_sockets([UnixListen(path)]) as (sock,):
        sock.socket.listen()
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(str(path))


def test_a_socket_in_use_is_not_taken_away(tmp_path: Path) -> None:
    address = UnixListen(tmp_path / "api.sock")
    with bind_sockets([address]) as (sock,):
        sock.socket.listen()
        with pytest.raises(ConfigurationError, match="another process listens"):
            bind(address)
        assert address.path.exists()


def test_a_file_of_another_kind_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "api.sock"
    path.write_text("precious")
    with pytest.raises(ConfigurationError, match="not a socket"):
        bind(UnixListen(path))
    assert path.read_text() == "precious"


def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    with (
        pytest.raises(ConfigurationError, match="folder must exist"),
        bind_sockets([UnixListen(tmp_path / "a" / "b")]),
    ):
        pass


def test_a_path_that_is_too_long_is_explained(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="path too long: at most 107 bytes, so use a shorter path"):
        bind(UnixListen(tmp_path / ("x" * 110)))


def test_a_port_that_is_taken_gives_one_clear_message() -> None:
    with bind_sockets([TcpListen("127.0.0.1", 0)]) as (sock,):
        sock.socket.listen()
        address = TcpListen("127.0.0.1", sock.socket.getsockname()[1])
        with pytest.raises(ConfigurationError, match="another process listens there: find it with 'ss -ltnp"):
            bind(address)


def test_only_an_optional_address_may_be_missing() -> None:
    with bind_sockets([TcpListen("127.0.0.1", 0), TcpListen(NOWHERE, 0, optional=True)]) as sockets:
        assert len(sockets) == 1
    with pytest.raises(ConfigurationError, match="use an address of this host"):
        bind(TcpListen(NOWHERE, 0))


def test_a_host_that_is_not_known_is_named() -> None:
    with pytest.raises(ConfigurationError, match=r"nowhere\.invalid:8000'.*not known"):
        bind(TcpListen("nowhere.invalid", 8000))
