"""The alarms in etc/prometheus, by promtool; and that they speak of metrics that there are."""

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any, Final

import click
import pytest
import yaml

from auditord.cli import auditord
from tests.references.sources import exposed

FOLDER: Final = Path(__file__).parents[2] / "etc/prometheus"
RULES: Final = FOLDER / "auditord.rules.yml"
SUITE: Final = FOLDER / "auditord.rules.test.yml"
_METRIC: Final = re.compile(r"\bauditord_[a-z_]+\b")
_REGULAR: Final = re.compile(r'\{__name__=~"([^"]*)"\}')

_CALL: Final = re.compile(r"\bauditord ([a-z]+(?: [a-z]+)?(?:(?: --[a-z]+)* NAME)?(?: --[a-z-]+)*)")

needs_promtool = pytest.mark.skipif(shutil.which("promtool") is None, reason="needs tests/services/prometheus-install")


def rules() -> list[dict[str, Any]]:
    [group] = yaml.safe_load(RULES.read_text())["groups"]
    found: list[dict[str, Any]] = group["rules"]
    return found


def promtool(*words: str) -> str:
    ended = subprocess.run(("promtool", *words), capture_output=True, text=True, cwd=FOLDER, check=False, timeout=900)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout


@pytest.mark.slow  # half a minute of promtool's work
@needs_promtool
def test_the_rules_are_valid_and_each_fires_when_it_should() -> None:
    assert f"{len(rules())} rules found" in promtool("check", "rules", RULES.name)
    assert "SUCCESS" in promtool("test", "rules", SUITE.name)


@needs_promtool
def test_the_example_of_a_scrape_is_a_configuration() -> None:
    promtool("check", "config", "--syntax-only", "prometheus.yml")
    [job] = yaml.safe_load((FOLDER / "prometheus.yml").read_text())["scrape_configs"]
    assert job["job_name"] == "auditord"
    assert {f'job="{job["job_name"]}"' in rule["expr"] for rule in rules() if "job=" in rule["expr"]} == {True}


def test_every_alarm_is_tested_both_ways_and_says_what_to_do() -> None:
    calm, *firing = yaml.safe_load(SUITE.read_text())["tests"]
    names = [rule["alert"] for rule in rules()]
    assert [each["alertname"] for each in calm["alert_rule_test"]] == names
    assert [each["name"] for each in firing] == [f"{name} fires" for name in names]
    for rule in rules():
        assert rule["annotations"].keys() == {"summary", "remedy"}
        assert rule["labels"]["severity"] in {"critical", "warning"}


def test_the_alarms_speak_of_metrics_that_there_are() -> None:
    metrics = set(exposed())
    known = {each.name for each in metrics} | {f"{each.name}_total" for each in metrics if each.type == "counter"}
    for rule in rules():
        expression = _REGULAR.sub("", rule["expr"])
        assert set(_METRIC.findall(expression)) - known == set(), rule["alert"]
        for pattern in _REGULAR.findall(rule["expr"]):
            assert len([name for name in known if re.fullmatch(pattern, name)]) == 2


def test_the_remedies_name_commands_that_there_are() -> None:
    remedies = [rule["annotations"]["remedy"].replace("{{ $labels.task }}", "NAME") for rule in rules()]
    for words in [call.split() for remedy in remedies for call in _CALL.findall(remedy)]:
        command: click.Command | None = auditord
        while isinstance(command, click.Group):
            command = command.get_command(click.Context(auditord), words.pop(0))
        assert command is not None, words
        if "NAME" in words:  # what follows other commands is text
            command.make_context("auditord", words)
