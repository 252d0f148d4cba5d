import base64
from collections.abc import Sequence
from pathlib import Path

import pytest

from auditord_builtin.apel.config import SummaryLayout
from auditord_builtin.apel.messages import SummaryRow, render
from auditord_builtin.apel.sending import load_credentials, sign
from auditord_hookspecs.months import Month
from tests.host_certificates import Authority

MARCH = Month(2024, 3)


def rows(number: int, user: str, site: str = "SITE-A") -> Sequence[SummaryRow]:
    return [
        SummaryRow(
            layout=SummaryLayout.NORMALISED_4,
            site=site,
            month=MARCH,
            vo="atlas",
            submit_host="ce1.example.org",
            node_count=1,
            processors=8,
            benchmark="HEPscore23",
            service_level=None,
            jobs=1,
            wall=10**9 + each,
            cpu=10**9,
            earliest=1_709_293_600,
            latest=1_709_293_601,
            global_user_name=f"{user} {each}",
        )
        for each in range(number)
    ]


@pytest.mark.parametrize("user", ["/DC=org/DC=terena/CN=somebody", "=" * 200, "Jörg Müßig " * 20, "ж" * 240])
def test_no_message_is_larger_than_the_broker_takes_once_it_is_signed(user: str, tmp_path: Path) -> None:
    files = Authority(tmp_path).issue("ce.example.org")
    credentials = load_credentials(files.certificate, files.key)
    messages = render(rows(600, user), 150_000)
    sizes = [len(base64.b64encode(sign(message.text, credentials))) for message in messages]
    assert len(messages) > 1
    assert sum(message.records for message in messages) == 600
    assert max(sizes) <= 150_000
    assert max(sizes) > 75_000  # and not split into crumbs


def test_a_message_is_of_one_site() -> None:
    messages = render([*rows(2, "a", "SITE-B"), *rows(3, "a")])
    assert [(message.site, message.records) for message in messages] == [("SITE-A", 3), ("SITE-B", 2)]


def test_nothing_makes_no_message() -> None:
    assert render([]) == []
