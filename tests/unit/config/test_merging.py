"""The state folder and the record store, read without models where the files say them plainly."""

import json
from pathlib import Path
from typing import Any

import click
import pytest

from auditord.cli.installation import load_configuration, load_place
from auditord.config.documents import SECTIONS
from auditord.config.merging import Place, plain_place
from auditord.config.model import Configuration
from auditord.errors import ConfigurationError


def written(folder: Path, sections: dict[str, Any]) -> Path:
    file = folder / "auditord.json"
    file.write_text(json.dumps(sections))
    return file


def test_the_sections_are_those_of_the_model() -> None:
    assert set(Configuration.model_fields) == SECTIONS


@pytest.mark.parametrize(
    "sections",
    [
        {},
        {"state_dir": "/srv/with space/auditord"},
        {"state_dir": "/srv/a/../b/"},
        {"store": {}},
        {"store": {"url": "sqlite:///srv/records%20of%20us.db"}},
        {"api": {"enabled": False}, "collectors": {"files": {"kind": "files", "folder": "/srv"}}},
    ],
)
def test_a_plain_place_is_that_of_the_models(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sections: dict[str, Any]
) -> None:
    monkeypatch.setenv("STATE_DIRECTORY", "/var/lib/one:/var/lib/two")
    file = written(tmp_path, sections)
    with click.Context(click.Command("records")) as context:
        context.meta["auditord.config"] = (file,)
        configuration = load_configuration()
    assert plain_place([file], {"STATE_DIRECTORY": "/var/lib/one:/var/lib/two"}) == Place(
        configuration.state_dir, configuration.store.url
    )


@pytest.mark.parametrize(
    ("sections", "environ"),
    [
        ({"state_dir": "relative"}, {}),
        ({"state_dir": ""}, {}),
        ({"state_dir": 5}, {}),
        ({"state_dir": ["/srv"]}, {}),
        ({"store": "sqlite:///srv/records.db"}, {}),
        ({"store": {"url": "sqlite://relative.db"}}, {}),
        ({"store": {"url": 5}}, {}),
        ({"store": {"url": "postgresql://db.example.org/auditor"}}, {}),
        ({"store": {"url": "sqlite:///srv/records.db", "pool_size": 3}}, {}),
        ({"sore": {}}, {}),
        ({}, {"AUDITORD_STATE_DIR": "/srv"}),
        ({}, {"AUDITOR_DATABASE__HOST": "db"}),
    ],
)
def test_all_else_is_for_the_models(tmp_path: Path, sections: dict[str, Any], environ: dict[str, str]) -> None:
    assert plain_place([written(tmp_path, sections)], {"HOME": "/home/me", **environ}) is None


def test_an_unknown_section_is_named_with_its_remedy(tmp_path: Path) -> None:
    with click.Context(click.Command("records")) as context:
        context.meta["auditord.config"] = (written(tmp_path, {"state_dir": "/srv", "sore": {}}),)
        with pytest.raises(ConfigurationError, match=r"auditord\.json:1: sore.*did you mean 'store'"):
            load_place()
