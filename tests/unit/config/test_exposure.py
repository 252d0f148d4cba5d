"""Without TLS and a login nobody beyond this host gets in, unless the configuration allows it in so many words."""

from collections.abc import Callable

import pytest
from click.testing import CliRunner

from auditord.cli import auditord
from auditord.config.listen import TcpListen
from auditord.config.loading import Loaded
from auditord.errors import ConfigurationError

Load = Callable[..., Loaded]


@pytest.mark.parametrize(
    "address", ["0.0.0.0:8000", "[::]:8000", "10.1.2.3:80", "[fd00::1]:80", "head.example.org:8000", "localhost.evil:1"]
)
def test_an_address_beyond_this_host_is_refused_with_the_two_lines(load: Load, address: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        load(f'api:\n  listen: ["127.0.0.1:1", "{address}"]\n')
    text = str(refused.value)
    assert f"a.yml:2: api.listen: '{address}' is reachable" in text
    mends, allows = text.splitlines()[1:]
    assert load(f"api:\n{mends}\n").configuration.api.listen == (
        TcpListen("127.0.0.1", 1),
        TcpListen("127.0.0.1", int(address.rpartition(":")[2])),
    )
    assert str(load(f'api:\n    listen: ["{address}"]\n{allows}\n').configuration.api.listen[0]) == address


@pytest.mark.parametrize(
    "address", ["127.0.0.1:8000", "127.8.0.1:0", "[::1]:8000", "[::ffff:127.0.0.1]:1", "LOCALHOST:8000", "unix:/run/a"]
)
def test_this_hosts_own_addresses_are_fine(load: Load, address: str) -> None:
    assert str(load(f'api: {{listen: ["{address}"]}}').configuration.api.listen[0]) == address


LOGIN = "authenticators: {site: {kind: badges}}\n"
SECURE = '{"address": "0.0.0.0:8443", "tls": {"certificate": "/host.pem"}}'


def test_no_plain_port_stands_beside_a_tls_one_unless_that_is_wanted(load: Load) -> None:
    listen = f'{SECURE}, "127.0.0.1:8000", "unix:/run/a.sock"'
    with pytest.raises(ConfigurationError, match=r"'127\.0\.0\.1:8000' has no TLS beside '0\.0\.0\.0:8443'") as refused:
        load(f"{LOGIN}api:\n    listen: [{listen}]\n")
    mends, allows = str(refused.value).splitlines()[1:]
    mended = load(f"{LOGIN}api:\n{mends}\n").configuration.api.listen
    assert [str(address) for address in mended] == ["0.0.0.0:8443", "unix:/run/a.sock"]
    assert len(load(f"api:\n    listen: [{listen}]\n{allows}\n").configuration.api.listen) == 3


@pytest.mark.parametrize(
    ("login", "address", "lacking"),
    [("", SECURE, "no login"), (LOGIN, '"0.0.0.0:8443"', "no TLS"), ("", '"0.0.0.0:8443"', "neither TLS nor a login")],
)
def test_other_hosts_come_in_with_tls_and_a_login_alone(load: Load, login: str, address: str, lacking: str) -> None:
    with pytest.raises(ConfigurationError, match=f"and there is {lacking}:") as refused:
        load(f"{login}api:\n    listen: [{address}]\n")
    mends, allows = str(refused.value).splitlines()[1:]
    load(f"{login}api:\n{mends}\n")
    load(f"{login}api:\n    listen: [{address}]\n{allows}\n")
    assert load(f"{LOGIN}api:\n    listen: [{SECURE}]\n").configuration.api.listen


def test_an_authenticator_that_is_switched_off_asks_nobody(load: Load) -> None:
    with pytest.raises(ConfigurationError, match="no login"):
        load(f"{LOGIN.replace('badges', 'badges, enabled: false')}api:\n    listen: [{SECURE}]\n")


def test_an_api_that_is_switched_off_may_say_anything(load: Load) -> None:
    assert not load('api: {enabled: false, listen: ["0.0.0.0:8000"]}').configuration.api.enabled


def test_the_environment_is_held_to_it_and_may_allow_it(load: Load) -> None:
    everywhere = '["0.0.0.0:8000"]'
    with pytest.raises(ConfigurationError, match=r"environment variable AUDITORD_API__LISTEN: api\.listen: '0"):
        load("", AUDITORD_API__LISTEN=everywhere)
    allowed = load("", AUDITORD_API__LISTEN=everywhere, AUDITORD_API__ALLOW_INSECURE="true")
    assert allowed.configuration.api.allow_insecure


def test_the_daemon_does_not_start() -> None:
    environment = {"HOME": "/h", "AUDITORD_API__LISTEN": '["0.0.0.0:8000"]'}
    refused = CliRunner(env=environment).invoke(auditord, ["run"])
    assert isinstance(refused.exception, ConfigurationError)
    assert "allow_insecure: true" in str(refused.exception)
