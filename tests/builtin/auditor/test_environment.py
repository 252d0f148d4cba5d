"""A container that was set up for AUDITOR: its variables work, and each is reported with ours to write instead."""

from collections.abc import Callable
from pathlib import Path

import pytest

from auditord.config.loading import Loaded, load_with_sources, load_without_instances
from auditord.errors import ConfigurationError
from auditord.hooks import load_hooks

Load = Callable[..., Loaded]

PASSWORD = {"AUDITOR_DATABASE__PASSWORD": "p"}
KINDS = load_hooks([]).kinds
EVERYWHERE = {"AUDITOR_APPLICATION__ADDR": "0.0.0.0"}  # noqa: S104 nothing is bound


@pytest.fixture
def load(tmp_path: Path) -> Load:
    """Return a function that loads a text as the configuration file, with the environment given by keyword."""

    def load(text: str, **environ: str) -> Loaded:
        path = tmp_path / "a.yml"
        path.write_text(text)
        return load_with_sources([path], KINDS, {"HOME": "/home/me", **environ}, lambda _: None)

    return load


def test_a_containers_variables_are_understood(load: Load, caplog: pytest.LogCaptureFixture) -> None:
    loaded = load(
        "logging: {level: debug}",
        AUDITOR_APPLICATION__ADDR="127.0.0.1, ::1",
        AUDITOR_APPLICATION__PORT="8080",
        AUDITOR_DATABASE__HOST="db",
        AUDITOR_DATABASE__PORT="5433",
        AUDITOR_DATABASE__USERNAME="a@site",
        AUDITOR_DATABASE__PASSWORD="sesame, open",  # noqa: S106 it is one, of nothing
        AUDITOR_DATABASE__DATABASE_NAME="accounting",
        AUDITOR_DATABASE__REQUIRE_SSL="true",
        AUDITOR_LOG_LEVEL="WARN",
    )
    configuration = loaded.configuration
    assert [str(address) for address in configuration.api.listen] == ["127.0.0.1:8080", "[::1]:8080"]
    assert configuration.store.url == "postgresql://a%40site@db:5433/accounting"
    assert configuration.store.password is not None
    assert configuration.store.password.get_secret_value() == "sesame, open"
    assert (configuration.store.sslmode, configuration.logging.level) == ("require", "warning")
    assert str(loaded.document.origin(("logging", "level"))) == "environment variable AUDITOR_LOG_LEVEL"
    for ours in (
        """AUDITORD_API__LISTEN=["127.0.0.1:8080", "[::1]:8080"]""",
        "AUDITORD_STORE__URL=postgresql://a%40site@db:5433/accounting",
        "AUDITORD_STORE__PASSWORD=file:/path",
        "AUDITORD_STORE__SSLMODE=require",
        "AUDITORD_LOGGING__LEVEL=warning",
    ):
        assert ours in caplog.text
    assert "sesame" not in caplog.text


def test_what_is_not_said_is_auditors_default(load: Load) -> None:
    assert load("", **PASSWORD).configuration.store.url == "postgresql://postgres@localhost:5432/auditor"
    assert str(load("", AUDITOR_APPLICATION__PORT="8001").configuration.api.listen[0]) == "127.0.0.1:8001"


def test_a_password_alone_goes_to_the_database_of_the_file(load: Load) -> None:
    store = load("store: {url: postgresql://u@h/d}", **PASSWORD).configuration.store
    assert store.url == "postgresql://u@h/d"
    assert store.password is not None


def test_our_own_variable_wins(load: Load, caplog: pytest.LogCaptureFixture) -> None:
    loaded = load("", AUDITOR_LOG_LEVEL="debug", AUDITORD_LOGGING__LEVEL="error")
    assert loaded.configuration.logging.level == "error"
    assert "AUDITOR_LOG_LEVEL: ignored, because AUDITORD_LOGGING__LEVEL is set" in caplog.text


@pytest.mark.parametrize(
    ("name", "value"),
    [("LOG_LEVEL", "loud"), ("APPLICATION__PORT", "eight"), ("DATABASE__PORT", ""), ("DATABASE__REQUIRE_SSL", "no?")],
)
def test_a_value_that_auditor_would_refuse_is_refused(load: Load, name: str, value: str) -> None:
    with pytest.raises(ConfigurationError, match=f"environment variable AUDITOR_{name}: AUDITOR would refuse"):
        load("", **{f"AUDITOR_{name}": value})


def test_an_open_address_needs_a_word_of_ours(load: Load) -> None:
    with pytest.raises(ConfigurationError, match="allow_insecure: true"):
        load("", **EVERYWHERE)
    allowed = load("", **EVERYWHERE, AUDITORD_API__ALLOW_INSECURE="true")
    assert str(allowed.configuration.api.listen[0]) == "0.0.0.0:8000"


def test_what_auditors_server_alone_knows_is_reported_and_anything_else_is_nobodys_business(
    load: Load, caplog: pytest.LogCaptureFixture
) -> None:
    load("", AUDITOR_TLS_CONFIG__USE_TLS="true", AUDITOR_ENVIRONMENT="production", AUDITOR_SITE="x")
    assert [record.args for record in caplog.records] == [
        ("AUDITOR_ENVIRONMENT", "AUDITOR"),
        ("AUDITOR_TLS_CONFIG__USE_TLS", "AUDITOR"),
    ]


def test_a_command_that_loads_no_kinds_leaves_the_variables_to_one_that_does() -> None:
    """Else it would open another record store than the daemon."""
    assert load_without_instances([], {"HOME": "/home/me", **PASSWORD}, lambda _: None) is None
    assert load_without_instances([], {"HOME": "/home/me"}, lambda _: None) is not None
