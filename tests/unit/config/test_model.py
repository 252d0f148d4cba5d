from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from auditord.config.listen import DEFAULT_LISTEN, TcpListen, UnixListen
from auditord.config.merging import default_state_dir
from auditord.config.model import ApiSection, Configuration, DatabaseMetricsSection
from auditord.config.sizes import format_size, parse_size
from auditord.config.store_url import sqlite_path
from auditord.duplicates import Duplicates


def test_a_list_without_addresses_is_refused() -> None:
    with pytest.raises(ValidationError, match="enabled: false"):
        ApiSection.model_validate({"listen": []})


def test_only_the_state_folder_must_be_known() -> None:
    configuration = Configuration.model_validate({"state_dir": "/srv/a"})
    assert configuration.store.url == "sqlite:////srv/a/records.db"
    assert configuration.api == ApiSection(enabled=True, duplicates=Duplicates.SAME_RUN, max_body=64 << 20)
    assert configuration.shutdown.grace == timedelta(seconds=30)
    assert configuration.counted_keys == ["group_id", "site_id"]
    assert not configuration.collectors


def test_any_state_folder_has_a_url_for_its_records() -> None:
    configuration = Configuration.model_validate({"state_dir": "/srv/100% #1?"})
    assert sqlite_path(configuration.store.url) == Path("/srv/100% #1?/records.db")


@pytest.mark.parametrize("url", ["sqlite:records.db", "mysql://u:geheim@db/x", "/x.db"])
def test_a_store_that_cannot_be_opened_is_refused_without_its_password(url: str) -> None:
    with pytest.raises(ValidationError, match="sqlite:///path/to/file") as refused:
        Configuration.model_validate({"state_dir": "/srv/a", "store": {"url": url}})
    assert "geheim" not in refused.value.errors()[0]["msg"]


def test_a_written_store_wins_over_the_state_folder() -> None:
    written = {"state_dir": "/srv/a", "store": {"url": "sqlite:////srv/b.db"}}
    assert Configuration.model_validate(written).store.url == "sqlite:////srv/b.db"


def test_the_default_addresses_differ_from_the_same_ones_written() -> None:
    written = ApiSection.model_validate({"listen": ["127.0.0.1:8000", "[::1]:8000"]})
    assert [getattr(address, "optional", None) for address in ApiSection().listen] == [False, True]
    assert [getattr(address, "optional", None) for address in written.listen] == [False, False]
    assert [str(address) for address in written.listen] == [str(address) for address in DEFAULT_LISTEN]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("0.0.0.0:80", TcpListen("0.0.0.0", 80)),  # noqa: S104 only parsed
        ("[::]:0", TcpListen("::", 0)),
        ("head1.example.org:8000", TcpListen("head1.example.org", 8000)),
        ("unix:/run/a.sock", UnixListen(Path("/run/a.sock"))),
    ],
)
def test_addresses_read_and_print_the_same(text: str, expected: TcpListen | UnixListen) -> None:
    (address,) = ApiSection.model_validate({"listen": [text]}).listen
    assert address == expected
    assert str(address) == text


@pytest.mark.parametrize(
    "text", [":8000", "::1:8000", "[127.0.0.1]:1", "[::x]:1", "h:65536", "h:", "h:-1", "unix:a", "unix:", ""]
)
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(ValidationError):
        ApiSection.model_validate({"listen": [text]})


@pytest.mark.parametrize(
    ("text", "size"), [("64MiB", 64 << 20), ("10 MB", 10_000_000), ("4096", 4096), (4096, 4096), ("1kB", 1000)]
)
def test_sizes_have_units(text: str | int, size: int) -> None:
    assert ApiSection.model_validate({"max_body": text}).max_body == size
    assert parse_size(str(format_size(size))) == size


@pytest.mark.parametrize("value", ["64 MiBs", "1.5MiB", "-1", -1, 0, "M", "", True, None])
def test_what_is_no_size_is_refused(value: Any) -> None:
    with pytest.raises(ValidationError):
        ApiSection.model_validate({"max_body": value})


def test_intervals_are_longer_than_nothing() -> None:
    with pytest.raises(ValidationError, match="longer than 0s"):
        DatabaseMetricsSection.model_validate({"interval": "0s"})


@pytest.mark.parametrize(
    ("environ", "uid", "expected"),
    [
        ({"STATE_DIRECTORY": "/var/lib/x:/var/lib/y", "HOME": "/h"}, 0, "/var/lib/x"),
        ({"HOME": "/root"}, 0, "/var/lib/auditord"),
        ({"HOME": "/h", "XDG_STATE_HOME": "/s"}, 5, "/s/auditord"),
        ({"HOME": "/h"}, 5, "/h/.local/state/auditord"),
    ],
)
def test_the_state_folder_follows_systemd_then_the_user(environ: dict[str, str], uid: int, expected: str) -> None:
    assert default_state_dir(environ, uid) == Path(expected)


def test_the_services_user_finds_the_services_files_whatever_home_is_given(tmp_path: Path) -> None:
    owner = tmp_path.stat().st_uid
    assert default_state_dir({"HOME": "/root"}, owner, tmp_path) == tmp_path
    assert default_state_dir({"HOME": "/h"}, owner + 1, tmp_path) == Path("/h/.local/state/auditord")


def test_a_relative_state_folder_is_refused() -> None:
    with pytest.raises(ValidationError, match="absolute"):
        Configuration.model_validate({"state_dir": "var"})
