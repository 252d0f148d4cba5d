"""``auditord report utilisation``, without a host."""

import json
from datetime import timedelta

import pytest
from click.testing import CliRunner, Result

from auditord.testing import FakeCommandContext
from auditord_builtin.utilisation import auditord_commands
from auditord_builtin.utilisation.config import UtilisationConfig
from tests.utilisation_jobs import JANUARY, job, mixed_jobs


@pytest.fixture
def host(command_context: FakeCommandContext) -> FakeCommandContext:
    command_context.plugins["monthly"] = ("utilisation", UtilisationConfig())
    command_context.plugin_context.stored = mixed_jobs()
    command_context.plugin_context.moment = JANUARY + timedelta(days=40)
    return command_context


def report(host: FakeCommandContext, *arguments: str) -> Result:
    (declared,) = auditord_commands()
    group = declared.load()
    return CliRunner().invoke(group, ["utilisation", *arguments], obj=host)


def test_the_last_month_by_default_and_nothing_is_done(host: FakeCommandContext) -> None:
    result = report(host)
    assert result.output.startswith("Utilisation 2026-01\n")
    assert host.plugin_context.dry_run
    assert host.plugin_context.state is None


def test_one_site_as_json(host: FakeCommandContext) -> None:
    rows = json.loads(report(host, "--site", "A", "--month", "2026-01", "--output", "json").output)["rows"]
    assert {row["site"] for row in rows} == {None, "A"}


def test_a_week_and_a_month_that_is_not_over(host: FakeCommandContext) -> None:
    assert report(host, "--month", "2026-W02").output.startswith("Utilisation 2026-W02\n")
    so_far = report(host, "monthly", "--month", "2026-02")
    assert so_far.output.startswith("Utilisation 2026-02 (not over yet)\n")


@pytest.mark.parametrize(("output", "begin"), [("csv", "period,level,site"), ("html", "<!DOCTYPE html>")])
def test_every_form_goes_to_standard_output(host: FakeCommandContext, output: str, begin: str) -> None:
    result = report(host, "--output", output)
    assert result.exit_code == 0
    assert result.stdout.startswith(begin)


def test_a_page_lists_fifty_users_of_a_site_by_default(host: FakeCommandContext) -> None:
    host.plugin_context.stored = [
        job(f"j{at}", {"Cores": at}, site_id="A", group_id="g", user_id=f"user-{at}") for at in range(1, 71)
    ]
    page = report(host, "--output", "html").stdout
    assert (page.count(">user-"), page.count("and 20 more")) == (50, 1)
    assert report(host, "--output", "html", "--most-rows", "69").stdout.count("and 1 more") == 1
    assert report(host, "--output", "html", "--most-rows", "100").stdout.count(">user-") == 70
    assert report(host).stdout.count("user-") == 70
    assert "    and 67 more\n" in report(host, "--most-rows", "3").stdout
    assert report(host, "--most-rows", "0").exit_code == 2


def test_a_month_that_is_none_is_refused(host: FakeCommandContext) -> None:
    result = report(host, "--month", "2026-13")
    assert result.exit_code == 2
    assert "'2026-13' is not in the calendar" in result.output
    assert host.opened == []
