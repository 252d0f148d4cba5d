"""Runs of the plugin over a mail server: what is due goes out once, whatever fails in between."""

import csv
import ssl
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, Gauge

from auditord.testing import FakePluginContext
from auditord_builtin.utilisation import auditord_metrics, auditord_plugins
from auditord_builtin.utilisation import mail as mailing
from auditord_builtin.utilisation.config import UtilisationConfig
from auditord_builtin.utilisation.mail import MailFault
from auditord_builtin.utilisation.running import NotDelivered, Unwritable
from tests.host_certificates import Authority
from tests.mail_server import Mailbox, mail_server
from tests.utilisation_jobs import JANUARY, job, mixed_jobs

pytestmark = pytest.mark.anyio

FEBRUARY = JANUARY + timedelta(days=31)
(UTILISATION,) = (each.load() for each in auditord_plugins())
HOUR, DAY = timedelta(hours=1), timedelta(days=1)
BOSS, DEPUTY = "boss@example.org", "deputy@example.org"


class Killed(BaseException):
    """The process is gone."""


@dataclass
class Interrupted(FakePluginContext):
    """Dies instead of saving the state for the ``dies_at``-th time."""

    dies_at: int = 0
    saved: int = 0
    states: list[Any] = field(default_factory=list[Any])

    async def save_state(self, state: Any) -> None:
        self.saved += 1
        if self.saved == self.dies_at:
            raise Killed
        self.states.append(state)
        await super().save_state(state)


@pytest.fixture(autouse=True)
def _quick_retries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mailing, "RETRIES", 1)
    monkeypatch.setattr(mailing, "RETRY_WAIT", timedelta(milliseconds=1))


def context(state: Any = None, **options: Any) -> Interrupted:
    return Interrupted(instance="monthly", stored=mixed_jobs(), moment=FEBRUARY + DAY, state=state, **options)


def configured(folder: Path | None, mailbox: Mailbox | None = None, **options: Any) -> UtilisationConfig:
    document: dict[str, Any] = {"wait_for_sites": "0s", **options}
    if folder is not None:
        document["csv"] = {"folder": str(folder)}
    if mailbox is not None:
        server = {"host": "127.0.0.1", "port": mailbox.port, "security": "none"}
        mail: dict[str, Any] = {
            "sender": "accounting@example.org",
            "recipients": [BOSS, DEPUTY],
            **options.get("mail", {}),
        }
        document["mail"] = {**mail, "server": {**server, **mail.get("server", {})}}
    return UtilisationConfig.model_validate(document)


def files(folder: Path) -> Sequence[str]:
    return sorted(path.name for path in folder.iterdir())


async def test_a_month_is_written_and_mailed_once(tmp_path: Path) -> None:
    async with mail_server(Mailbox()) as mailbox:
        config, plugin = configured(tmp_path, mailbox), context()
        await UTILISATION.run(config, plugin)
        await UTILISATION.run(config, plugin)
        plugin.moment += 20 * DAY
        await UTILISATION.run(config, plugin)
    assert files(tmp_path) == ["monthly-2026-01.csv"]
    assert [mail["To"] for mail in mailbox.mails] == [BOSS, DEPUTY]
    assert len(plugin.summed) == 2  # of the month, and whether later jobs are known


async def test_an_absurd_score_keeps_no_report_back(tmp_path: Path) -> None:
    """Some programs write the largest number there is where they know none."""
    async with mail_server(Mailbox()) as mailbox:
        plugin = context()
        plugin.stored = [*mixed_jobs(), job("absurd", {"Cores": 8}, seconds=10**6, score=1.7976931348623157e308)]
        await UTILISATION.run(configured(tmp_path, mailbox), plugin)
    assert files(tmp_path) == ["monthly-2026-01.csv"]
    assert [mail["To"] for mail in mailbox.mails] == [BOSS, DEPUTY]


async def test_what_a_mail_is_made_of(tmp_path: Path) -> None:
    async with mail_server(Mailbox()) as mailbox:
        await UTILISATION.run(configured(tmp_path, mailbox, title="Übersicht"), context())
    mail = mailbox.mails[0]
    assert mail["Subject"] == "Übersicht 2026-01"
    assert mail["From"] == "accounting@example.org"
    assert mail["Auto-Submitted"] == "auto-generated"
    plain, page = mail.get_body(("plain",)), mail.get_body(("html",))
    assert plain is not None
    assert page is not None
    assert "physics" in plain.get_content()
    assert "<h2" in page.get_content()
    (attached,) = mail.iter_attachments()
    assert attached.get_filename() == "monthly-2026-01.csv"
    assert attached.get_content().splitlines() == (tmp_path / "monthly-2026-01.csv").read_text().splitlines()
    assert len({mail["Message-ID"] for mail in mailbox.mails}) == 2


async def test_a_period_is_not_due_before_it_has_settled(tmp_path: Path) -> None:
    plugin = context()
    plugin.moment = FEBRUARY + DAY - timedelta(microseconds=1)
    await UTILISATION.run(configured(tmp_path), plugin)
    assert files(tmp_path) == ["monthly-2025-12.csv"]
    plugin.moment = FEBRUARY + DAY
    await UTILISATION.run(configured(tmp_path), plugin)
    assert files(tmp_path) == ["monthly-2025-12.csv", "monthly-2026-01.csv"]


async def test_a_server_that_is_down_costs_no_file_and_each_mail_goes_out_once(tmp_path: Path) -> None:
    async with mail_server(Mailbox()) as mailbox:
        pass
    config, plugin = configured(tmp_path, mailbox), context()
    for _ in range(2):
        with pytest.raises(MailFault, match=r"127\.0\.0\.1:\d+ cannot be reached"):
            await UTILISATION.run(config, plugin)
    assert files(tmp_path) == ["monthly-2026-01.csv"]
    async with mail_server(mailbox):
        plugin.moment += HOUR
        await UTILISATION.run(config, plugin)
        await UTILISATION.run(config, plugin)
    assert [mail["To"] for mail in mailbox.mails] == [BOSS, DEPUTY]


async def test_a_recipient_who_is_refused_does_not_stop_others_and_is_tried_on_five_days(tmp_path: Path) -> None:
    async with mail_server(Mailbox(answers={BOSS: ["550 no such user"]})) as mailbox:
        config, plugin = configured(tmp_path, mailbox), context()
        for number in range(1, 6):
            with pytest.raises(NotDelivered, match=rf"{BOSS}: .* says 550 no such user \(try {number} of 5\)"):
                await UTILISATION.run(config, plugin)
            plugin.moment += DAY - HOUR
            await UTILISATION.run(config, plugin)  # not yet again
            plugin.moment += HOUR
        del mailbox.answers[BOSS]
        await UTILISATION.run(config, plugin)
    assert [mail["To"] for mail in mailbox.mails] == [DEPUTY]
    assert plugin.state["reports"]["open"] == {}


async def test_a_refused_recipient_whom_the_server_knows_again_gets_the_mail_once(tmp_path: Path) -> None:
    async with mail_server(Mailbox(answers={BOSS: ["550 no such user"]})) as mailbox:
        config, plugin = configured(tmp_path, mailbox), context()
        with pytest.raises(NotDelivered):
            await UTILISATION.run(config, plugin)
        del mailbox.answers[BOSS]
        for _ in range(3):
            plugin.moment += DAY
            await UTILISATION.run(config, plugin)
    assert [mail["To"] for mail in mailbox.mails] == [DEPUTY, BOSS]


@pytest.mark.parametrize("answer", ["450 come back later", "451 greylisted"])
async def test_a_busy_mailbox_is_tried_again_at_once_and_in_the_next_run(tmp_path: Path, answer: str) -> None:
    async with mail_server(Mailbox(answers={BOSS: [answer]})) as mailbox:
        config, plugin = configured(tmp_path, mailbox), context()
        with pytest.raises(NotDelivered, match=answer):
            await UTILISATION.run(config, plugin)
        mailbox.answers[BOSS] = [answer, "250 OK"]
        mailbox.answers.clear()
        await UTILISATION.run(config, plugin)
        await UTILISATION.run(config, plugin)
    assert [mail["To"] for mail in mailbox.mails] == [DEPUTY, BOSS]


async def test_a_passing_refusal_of_a_mail_is_over_after_a_retry(tmp_path: Path) -> None:
    async with mail_server(Mailbox(after_data=["451 disk full"])) as mailbox:
        await UTILISATION.run(configured(tmp_path, mailbox), context())
    assert [mail["To"] for mail in mailbox.mails] == [BOSS, DEPUTY]


@pytest.mark.parametrize("dies_at", [1, 2, 3, 4])
async def test_killed_at_any_save_every_mail_goes_out_and_at_most_one_twice(tmp_path: Path, dies_at: int) -> None:
    async with mail_server(Mailbox()) as mailbox:
        config = configured(tmp_path, mailbox)
        killed = context(dies_at=dies_at)
        with pytest.raises(Killed):
            await UTILISATION.run(config, killed)
        await UTILISATION.run(config, context(killed.state))
    sent = [mail["To"] for mail in mailbox.mails]
    assert set(sent) == {BOSS, DEPUTY}
    again = {2: 1, 3: 1}.get(dies_at, 0)  # killed between the server's yes and the note of it
    assert len(sent) == 2 + again
    assert len({mail["Message-ID"] for mail in mailbox.mails}) == 2
    assert files(tmp_path) == ["monthly-2026-01.csv"]


async def test_a_report_waits_for_a_site_whose_records_may_be_late(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config, plugin = configured(tmp_path, wait_for_sites="3d"), context()
    await UTILISATION.run(config, plugin)
    assert files(tmp_path) == []
    assert (
        "the report on 2026-01 waits, at most until 2026-02-05T00:00:00+00:00: no later job of B is known"
        in caplog.text
    )
    plugin.stored = [*mixed_jobs(), job("late", {"Cores": 1}, stop=FEBRUARY, site_id="B")]
    await UTILISATION.run(config, plugin)
    assert files(tmp_path) == ["monthly-2026-01.csv"]


async def test_a_store_without_jobs_is_not_a_month_without_jobs(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    plugin = context({"reports": {"reported_until": JANUARY.isoformat()}})
    plugin.stored = []
    config = configured(tmp_path, wait_for_sites="3d")
    await UTILISATION.run(config, plugin)
    assert files(tmp_path) == []
    assert "no later job of any site is known" in caplog.text
    plugin.stored = [job("later", {"Cores": 1}, stop=FEBRUARY, site_id="A")]
    await UTILISATION.run(config, plugin)
    assert files(tmp_path) == ["monthly-2026-01.csv"]


async def test_jobs_without_a_site_may_be_late_as_well(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    config, plugin = configured(tmp_path, wait_for_sites="3d"), context()
    plugin.stored = [job("first", {"Cores": 1}, group_id="physics")]
    await UTILISATION.run(config, plugin)
    assert files(tmp_path) == []
    assert "no later job of any site is known" in caplog.text
    plugin.stored = [*plugin.stored, job("later", {"Cores": 1}, stop=FEBRUARY, group_id="physics")]
    await UTILISATION.run(config, plugin)
    assert files(tmp_path) == ["monthly-2026-01.csv"]


async def test_the_first_report_waits_until_old_jobs_have_been_read(tmp_path: Path) -> None:
    before, later = job("old", {"Cores": 1}, site_id="A"), job("new", {"Cores": 1}, stop=FEBRUARY + DAY, site_id="A")
    config, plugin = configured(tmp_path, wait_for_sites="7d"), context()
    plugin.moment = FEBRUARY + 20 * DAY
    for stored in ([], [later], [before]):
        plugin.stored = stored
        await UTILISATION.run(config, plugin)
        plugin.moment += HOUR
    assert files(tmp_path) == []
    plugin.stored = [before, later]
    await UTILISATION.run(config, plugin)
    assert (tmp_path / "monthly-2026-01.csv").read_text().splitlines()[1].startswith("2026-01,total,,,,1,1.0,")


@pytest.mark.parametrize(
    "reported",
    [
        {},
        {"reported_until": JANUARY.isoformat()},
        {"reported_until": JANUARY.isoformat(), "waiting_since": (FEBRUARY + 300 * DAY).isoformat()},  # a wrong clock
    ],
)
async def test_after_an_outage_a_report_waits_until_old_jobs_have_been_read(
    tmp_path: Path, reported: dict[str, str]
) -> None:
    config, plugin = configured(tmp_path, wait_for_sites="2d"), context({"reports": reported})
    plugin.moment = FEBRUARY + 20 * DAY
    for reports in (0, 0, 1):
        await UTILISATION.run(config, plugin)
        assert len(files(tmp_path)) == reports
        plugin.moment += DAY


async def test_reports_do_not_come_later_and_later_because_of_a_site_that_was_shut_down(tmp_path: Path) -> None:
    config = configured(tmp_path, period="week", wait_for_sites="10d", sites=["A", "gone"])
    plugin = context({"reports": {"reported_until": (FEBRUARY + DAY).isoformat()}})
    plugin.stored = [
        job("old", {"Cores": 1}, site_id="A"),
        job("new", {"Cores": 1}, stop=FEBRUARY + 99 * DAY, site_id="A"),
    ]
    for day in range(71):
        plugin.moment = FEBRUARY + (1 + day) * DAY + config.settle
        await UTILISATION.run(config, plugin)
    assert len(files(tmp_path)) == 8  # of the ten weeks that are over, all but those that ended in the last ten days


async def test_a_listed_site_without_any_job_is_not_a_site_that_used_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = configured(tmp_path, wait_for_sites="2d", sites=["A", "C"])
    plugin = context({"reports": {"reported_until": JANUARY.isoformat()}})
    await UTILISATION.run(config, plugin)
    assert "no later job of C is known" in caplog.text
    assert files(tmp_path) == []


async def test_a_refused_recipient_need_not_wait_for_a_silent_site_again(tmp_path: Path) -> None:
    async with mail_server(Mailbox(answers={BOSS: ["550 gone"]})) as mailbox:
        config, plugin = configured(tmp_path, mailbox, wait_for_sites="1d"), context()
        await UTILISATION.run(config, plugin)
        plugin.moment += DAY
        with pytest.raises(NotDelivered):
            await UTILISATION.run(config, plugin)
        del mailbox.answers[BOSS]
        plugin.moment += DAY
        await UTILISATION.run(config, plugin)
    assert [mail["To"] for mail in mailbox.mails] == [DEPUTY, BOSS]


async def test_a_site_that_stays_silent_is_reported_in_the_end_and_named() -> None:
    async with mail_server(Mailbox()) as mailbox:
        config, plugin = configured(None, mailbox, wait_for_sites="3d"), context()
        for _ in range(4):
            await UTILISATION.run(config, plugin)
            plugin.moment += DAY
    body = mailbox.mails[0].get_body(("plain",))
    assert body is not None
    assert "No later job of B is known" in body.get_content()
    assert len(mailbox.mails) == 2


async def test_after_an_outage_every_month_is_reported_in_order(tmp_path: Path) -> None:
    async with mail_server(Mailbox()) as mailbox:
        config, plugin = configured(tmp_path, mailbox), context()
        await UTILISATION.run(config, plugin)
        plugin.moment += 90 * DAY
        await UTILISATION.run(config, plugin)
    assert files(tmp_path) == [f"monthly-2026-0{month}.csv" for month in (1, 2, 3, 4)]
    assert [mail["Subject"][-7:] for mail in mailbox.to(BOSS)] == ["2026-01", "2026-02", "2026-03", "2026-04"]


@pytest.mark.parametrize("with_files", [True, False])
async def test_a_mail_that_met_a_busy_server_is_not_forgotten_once_a_later_one_went_out(
    tmp_path: Path, *, with_files: bool
) -> None:
    async with mail_server(Mailbox()) as mailbox:
        config, plugin = configured(tmp_path if with_files else None, mailbox), context()
        await UTILISATION.run(config, plugin)
        mailbox.mails.clear()
        plugin.moment += 60 * DAY
        mailbox.after_data += ["451 busy"] * 2  # the first mail, and its retry
        with pytest.raises(NotDelivered, match="451 busy"):
            await UTILISATION.run(config, plugin)
        assert [mail["Subject"][-7:] for mail in mailbox.to(BOSS)] == ["2026-03"]
        await UTILISATION.run(config, plugin)
        await UTILISATION.run(config, plugin)
    assert [mail["Subject"][-7:] for mail in mailbox.to(BOSS)] == ["2026-03", "2026-02"]
    assert [mail["Subject"][-7:] for mail in mailbox.to(DEPUTY)] == ["2026-02", "2026-03"]
    assert plugin.state["reports"]["open"] == {}


async def test_a_folder_that_is_not_there_mails_nothing(tmp_path: Path) -> None:
    async with mail_server(Mailbox()) as mailbox:
        config, plugin = configured(tmp_path / "missing", mailbox), context()
        with pytest.raises(Unwritable, match=r"monthly-2026-01\.csv cannot be written: No such file"):
            await UTILISATION.run(config, plugin)
    assert mailbox.mails == []
    assert plugin.state is None


async def test_a_dry_run_shows_what_would_be_done_and_does_nothing(tmp_path: Path) -> None:
    async with mail_server(Mailbox()) as mailbox:
        plugin = context(dry_run=True)
        users = {"address": "{user}@example.org"}
        await UTILISATION.run(configured(tmp_path, mailbox, mail={"users": users}), plugin)
    shown = "\n".join(plugin.shown)
    assert f"would write {tmp_path}/monthly-2026-01.csv" in shown
    assert f"would mail to {BOSS}:" in shown
    assert "would mail to" in shown
    assert "Utilisation 2026-01" in shown
    assert (mailbox.mails, files(tmp_path), plugin.saved) == ([], [], 0)


USERS: dict[str, Any] = {
    "recipients": [],
    "users": {"address": "{user}@example.org", "addresses": {"ann": "a@example.net"}},
}


def weekly(*more: str) -> Interrupted:
    stop = FEBRUARY - DAY
    names = ["ann", "bob", "bad@name", "-flag", *more]
    held = [job(name, {"Cores": 2, "TotalCPU": 900}, stop=stop, site_id="A", user_id=name) for name in names]
    idle = job("idle", {"Cores": 1}, seconds=60, stop=stop, site_id="A", user_id="eve")
    nobody = job("nobody", {"Cores": 9}, stop=stop, site_id="A")
    plugin = context()
    plugin.stored, plugin.moment = [*held, idle, nobody], FEBRUARY + 2 * DAY
    return plugin


async def test_users_get_a_weekly_mail_about_their_own_jobs_alone() -> None:
    async with mail_server(Mailbox()) as mailbox:
        config, plugin = configured(None, mailbox, mail=USERS), weekly()
        for _ in range(3):
            await UTILISATION.run(config, plugin)
            plugin.moment += DAY
    assert [mail["To"] for mail in mailbox.mails] == ["a@example.net", "bob@example.org"]
    assert mailbox.mails[1]["Subject"] == "Utilisation: your jobs 2026-W05"
    body = mailbox.mails[1].get_body(("plain",))
    assert body is not None
    text = body.get_content()
    assert "Possible savings: 1.8 of 2.0 core hours" in text
    assert "ann" not in str(mailbox.mails[1])


async def test_users_get_the_report_on_the_week_before_their_site_was_shut_down() -> None:
    async with mail_server(Mailbox()) as mailbox:
        config, plugin = configured(None, mailbox, mail=USERS, wait_for_sites="7d"), weekly()
        plugin.state = {"users": {"reported_until": (FEBRUARY - 6 * DAY).isoformat()}}
        for _ in range(14):
            await UTILISATION.run(config, plugin)
            plugin.moment += DAY
    assert [mail["Subject"] for mail in mailbox.to("bob@example.org")] == ["Utilisation: your jobs 2026-W05"]


async def test_a_user_who_left_fails_no_run_and_an_old_week_is_dropped(caplog: pytest.LogCaptureFixture) -> None:
    async with mail_server(Mailbox(answers={"bob@example.org": ["550 gone"]})) as mailbox:
        config, plugin = configured(None, mailbox, mail=USERS), weekly()
        await UTILISATION.run(config, plugin)
        assert "550 gone (try 1 of 5)" in caplog.text
        del mailbox.answers["bob@example.org"]
        plugin.moment += 14 * DAY
        await UTILISATION.run(config, plugin)
    assert [mail["To"] for mail in mailbox.mails] == ["a@example.net"]
    assert plugin.state["users"]["open"] == {}


async def test_without_csv_and_mail_nothing_is_asked() -> None:
    plugin = context()
    await UTILISATION.run(UtilisationConfig(), plugin)
    assert plugin.summed == []


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


def server_side(authority: Authority) -> ssl.SSLContext:
    host = authority.issue("mx", old_style_key=False)
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(host.certificate, host.key)
    return tls


async def test_starttls_with_a_password(authority: Authority) -> None:
    login = {"security": "starttls", "user": "auditord", "password": "secret", "ca": str(authority.file)}
    async with mail_server(Mailbox(), tls=server_side(authority), password=True) as mailbox:
        await UTILISATION.run(configured(None, mailbox, mail={"server": login}), context())
        assert mailbox.logins == [(b"auditord", b"secret")]
        with pytest.raises(MailFault, match="says 535"):
            await UTILISATION.run(configured(None, mailbox, mail={"server": {**login, "password": "x"}}), context())
    assert len(mailbox.mails) == 2


@pytest.mark.parametrize("security", ["starttls", "ssl"])
async def test_a_server_is_trusted_if_the_authority_vouches_for_it(security: str, authority: Authority) -> None:
    options = {"security": security, "ca": str(authority.file)}
    async with mail_server(Mailbox(), tls=server_side(authority), implicit=security == "ssl") as mailbox:
        await UTILISATION.run(configured(None, mailbox, mail={"server": options}), context())
        assert len(mailbox.mails) == 2
        with pytest.raises(MailFault, match=r"cannot be trusted: .*is server\.ca right"):
            await UTILISATION.run(configured(None, mailbox, mail={"server": {**options, "ca": None}}), context())
    assert len(mailbox.mails) == 2


async def test_starttls_is_never_left_out(tmp_path: Path) -> None:
    async with mail_server(Mailbox()) as mailbox:
        with pytest.raises(MailFault, match="lacks a feature that the options require: STARTTLS"):
            await UTILISATION.run(configured(tmp_path, mailbox, mail={"server": {"security": "starttls"}}), context())
    assert mailbox.mails == []


async def test_metrics_tell_what_came_of_mails() -> None:
    registry = CollectorRegistry()
    for instrument in auditord_metrics():
        registry.register(instrument)

    def mails(outcome: str) -> float:
        return (
            registry.get_sample_value("auditord_utilisation_mails_total", {"task": "metrics", "outcome": outcome}) or 0
        )

    async with mail_server(Mailbox(answers={BOSS: ["550 gone"]})) as mailbox:
        plugin = context()
        plugin.instance = "metrics"
        with pytest.raises(NotDelivered):
            await UTILISATION.run(configured(None, mailbox), plugin)
    assert (mails("sent"), mails("refused"), mails("failed")) == (1, 1, 0)
    until = registry.get_sample_value("auditord_utilisation_reported_until_timestamp_seconds", {"task": "metrics"})
    assert until == FEBRUARY.timestamp()


async def test_the_end_of_the_reported_time_is_known_after_a_restart(tmp_path: Path) -> None:
    (gauge,) = [each for each in auditord_metrics() if isinstance(each, Gauge)]
    plugin = context()
    await UTILISATION.run(configured(tmp_path), plugin)
    gauge.clear()
    await UTILISATION.run(configured(tmp_path), plugin)
    (metric,) = gauge.collect()
    assert [(sample.labels["task"], sample.value) for sample in metric.samples] == [("monthly", FEBRUARY.timestamp())]


async def test_a_link_in_the_folder_leads_to_no_other_file(tmp_path: Path) -> None:
    folder, other = tmp_path / "reports", tmp_path / "other"
    folder.mkdir()
    other.write_text("precious")
    part = ".monthly-2026-01.csv.0123456789abcdef.part"
    for name in ("monthly-2026-01.csv", part, ".monthly-2026-01.csv.part"):
        (folder / name).symlink_to(other)
    await UTILISATION.run(configured(folder), context())
    assert other.read_text() == "precious"
    assert files(folder) == [".monthly-2026-01.csv.part", "monthly-2026-01.csv"]
    assert not (folder / "monthly-2026-01.csv").is_symlink()


async def test_the_file_is_replaced_as_a_whole(tmp_path: Path) -> None:
    (tmp_path / "monthly-2026-01.csv").write_text("old")
    (tmp_path / ".monthly-2026-01.csv.0123456789abcdef.part").write_text("of a killed run" * 10_000)
    await UTILISATION.run(configured(tmp_path), context())
    assert files(tmp_path) == ["monthly-2026-01.csv"]
    with (tmp_path / "monthly-2026-01.csv").open(newline="") as file:
        assert next(csv.DictReader(file))["level"] == "total"
