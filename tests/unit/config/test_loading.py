import os
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr

from auditord.config import merging
from auditord.config.documents import Origin
from auditord.config.kinds import InstalledKinds
from auditord.config.loading import Loaded, load_with_sources, read_disabled_hooks
from auditord.config.loading import load as load_configuration
from auditord.config.model import kind_of, source_of
from auditord.errors import ConfigurationError

Load = Callable[..., Loaded]


def no_secret(reference: str) -> SecretStr | None:
    return None if reference else SecretStr("")


def test_without_any_file_the_daemon_has_a_configuration(
    kinds: InstalledKinds, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(merging, "DEFAULT_FILE", tmp_path / "auditord.yml")
    configuration = load_configuration(None, kinds, {"STATE_DIRECTORY": "/s"}, no_secret)
    assert configuration.store.url == "sqlite:////s/records.db"


def test_the_folder_that_systemd_made_gets_a_socket_unless_a_list_was_written(load: Load) -> None:
    def listen(text: str) -> list[str]:
        return [str(each) for each in load(text, RUNTIME_DIRECTORY="/run/a:/run/b").configuration.api.listen]

    assert listen("") == ["127.0.0.1:8000", "[::1]:8000", "unix:/run/a/api.sock"]
    assert listen("api: {max_body: 1MiB}")[2:] == ["unix:/run/a/api.sock"]
    assert listen('api: {listen: ["127.0.0.1:1"]}') == ["127.0.0.1:1"]


def test_the_default_file_is_read_if_it_is_there(
    kinds: InstalledKinds, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(merging, "DEFAULT_FILE", tmp_path / "auditord.yml")
    (tmp_path / "auditord.yml").write_text("state_dir: /x\n")
    assert load_configuration(None, kinds, {}, no_secret).state_dir == Path("/x")


def test_a_file_that_was_asked_for_must_be_there(kinds: InstalledKinds, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"b\.yml: No such file"):
        load_configuration([tmp_path / "b.yml"], kinds, {"HOME": "/h"}, no_secret)


def test_an_instance_has_the_model_of_its_kind(load: Load) -> None:
    text = "collectors: {big: {kind: pages, path: /p, interval: 5m}, small: {kind: copies, enabled: false}}"
    collectors = load(text).configuration.collectors
    assert {name: kind_of(each) for name, each in collectors.items()} == {"big": "pages", "small": "copies"}
    big: Any = collectors["big"]
    assert (big.path, big.interval, big.enabled) == (Path("/p"), timedelta(minutes=5), True)
    assert not collectors["small"].enabled


def test_conf_d_is_merged_deeply_in_the_order_of_names(load: Load, tmp_path: Path) -> None:
    folder = tmp_path / "conf.d"
    folder.mkdir()
    (folder / "20.yml").write_text("collectors: {a: {interval: 2m}}\napi:\n")
    (folder / "10.yaml").write_text("collectors: {a: {interval: 1m, timeout: 1h}, b: {kind: copies}}\n")
    for left_over in ("30.yml.rpmsave", ".40.yml", "50.yml~"):
        (folder / left_over).write_text("collectors: {a: {interval: 9m}}\n")
    loaded = load("collectors: {a: {kind: copies, interval: 5m}}\napi: {enabled: false}\n")
    instance: Any = loaded.configuration.collectors["a"]
    assert (instance.interval, instance.timeout) == (timedelta(minutes=2), timedelta(hours=1))
    assert set(loaded.configuration.collectors) == {"a", "b"}
    assert not loaded.configuration.api.enabled
    assert loaded.document.origin(("collectors", "a", "interval")) == Origin(str(folder / "20.yml"), 1)


def test_what_lies_beside_two_files_wins_over_both(kinds: InstalledKinds, tmp_path: Path) -> None:
    for name, state_dir in (("a.yml", "/a"), ("b.yml", "/b"), ("conf.d/c.yml", "/c")):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(f"state_dir: {state_dir}\n")
    configuration = load_configuration([tmp_path / "a.yml", tmp_path / "b.yml"], kinds, {}, no_secret)
    assert configuration.state_dir == Path("/c")


def test_a_section_with_nothing_but_comments_wipes_out_nothing(load: Load) -> None:
    assert load("collectors:\n  # a: {kind: copies}\n").configuration.collectors == {}


def test_the_environment_wins_over_the_files(load: Load) -> None:
    text = "collectors: {a: {kind: copies, interval: 5m, paper: [A4]}}\napi: {max_body: 1MiB}"
    loaded = load(
        text,
        AUDITORD_COLLECTORS__A__INTERVAL="10m",
        AUDITORD_COLLECTORS__A__PAPER='["A3", "A5"]',
        AUDITORD_API__LISTEN='["127.0.0.1:0"]',
        AUDITORD_API__ENABLED="false",
        AUDITORD_STATE_DIR="/env",
    )
    instance: Any = loaded.configuration.collectors["a"]
    assert (instance.interval, instance.paper) == (timedelta(minutes=10), ("A3", "A5"))
    assert loaded.configuration.api.max_body == 1 << 20
    assert [str(each) for each in loaded.configuration.api.listen] == ["127.0.0.1:0"]
    assert not loaded.configuration.api.enabled
    assert loaded.configuration.store.url == "sqlite:////env/records.db"
    assert str(loaded.document.origin(("state_dir",))) == "environment variable AUDITORD_STATE_DIR"


def test_the_environment_alone_can_make_an_instance(load: Load) -> None:
    loaded = load("", AUDITORD_COLLECTORS__COPY__KIND="copies", AUDITORD_COLLECTORS__COPY__PAPER='["A3"]')
    instance: Any = loaded.configuration.collectors["copy"]
    assert instance.paper == ("A3",)


def test_an_option_of_the_environment_is_read_by_the_type_of_its_own_kind(load: Load) -> None:
    text = "collectors: {a: {kind: copies}, b: {kind: pages, path: /p}}"
    loaded = load(
        text,
        AUDITORD_COLLECTORS__A__PAPER='["[a]"]',
        AUDITORD_COLLECTORS__B__PAPER="[a-z]+",
        AUDITORD_COLLECTORS__B__RECORD_PREFIX="[1]",
    )
    a: Any = loaded.configuration.collectors["a"]
    b: Any = loaded.configuration.collectors["b"]
    assert (a.paper, b.paper, b.record_prefix) == (("[a]",), "[a-z]+", "[1]")


def test_a_whole_section_may_be_json_in_the_environment(load: Load) -> None:
    loaded = load("", AUDITORD_COLLECTORS='{"a": {"kind": "copies", "paper": ["A3"]}}')
    assert set(loaded.configuration.collectors) == {"a"}


def test_numbers_and_words_of_the_environment_stay_text_where_text_is_wanted(load: Load) -> None:
    options = {"KIND": "post", "TOKEN": "123", "CLASS": "true"}
    loaded = load("", **{f"AUDITORD_SENDERS__P__{name}": value for name, value in options.items()})
    sender: Any = loaded.configuration.senders["p"]
    assert (sender.token.get_secret_value(), sender.category) == ("123", "true")


def test_a_sender_says_what_it_carries(load: Load) -> None:
    loaded = load("senders: {a: {kind: post}, b: {kind: post, from: all}, c: {kind: post, from: api}}").configuration
    assert [source_of(sender) for sender in loaded.senders.values()] == ["collectors", "all", "api"]


def test_secrets_are_resolved(load: Load) -> None:
    text = "plugins: {m: {kind: mail, password: 'env:KEY'}, n: {kind: mail, password: plain}}"
    plugins: Any = load(text).configuration.plugins
    assert plugins["m"].password.get_secret_value() == "sesame"
    assert plugins["n"].password.get_secret_value() == "plain"


def test_a_secret_that_cannot_be_had_is_a_fault_like_others(kinds: InstalledKinds, tmp_path: Path) -> None:
    def fails(reference: str) -> SecretStr | None:
        raise ValueError(f"cannot read {reference}")

    (tmp_path / "a.yml").write_text("plugins:\n  m:\n    kind: mail\n    password: file:/no\n")
    with pytest.raises(ConfigurationError, match=r"a\.yml:4: plugins\.m\.password: cannot read file:/no"):
        load_with_sources([tmp_path / "a.yml"], kinds, {"HOME": "/h"}, fails)


def test_a_fault_never_carries_a_secret_in_its_cause(load: Load) -> None:
    with pytest.raises(ConfigurationError) as caught:
        load("plugins: {m: {kind: mail, password: [sesame]}}")
    assert "sesame" not in f"{caught.value}{caught.value.__cause__}"


def test_the_home_of_the_state_must_be_known(kinds: InstalledKinds, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "getuid", lambda: 1000)
    with pytest.raises(ConfigurationError, match="state_dir: this option is required"):
        load_configuration([], kinds, {}, no_secret)


def test_disabled_hooks_are_known_before_the_rest_is_checked(tmp_path: Path) -> None:
    (tmp_path / "a.yml").write_text("hooks: {disabled: [printers]}\ncollectors: {x: {kind: unknown}}\n")
    assert read_disabled_hooks([tmp_path / "a.yml"], {"AUDITORD_COLLECTORS__X__SITES": "not json"}) == ("printers",)
    environ = {"AUDITORD_HOOKS__DISABLED": '["pagelog"]'}
    assert read_disabled_hooks([tmp_path / "a.yml"], environ) == ("pagelog",)


def test_a_fault_in_the_hooks_section_is_reported_with_its_line(tmp_path: Path) -> None:
    (tmp_path / "a.yml").write_text("hooks:\n  disable: [printers]\n")
    with pytest.raises(ConfigurationError, match=r"a\.yml:2: hooks\.disable: .*did you mean 'disabled'"):
        read_disabled_hooks([tmp_path / "a.yml"], {})
