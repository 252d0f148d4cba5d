from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import SecretStr, TypeAdapter, ValidationError

from auditord_hookspecs import RunConfig, Secret, Section
from auditord_hookspecs.config import Duration, format_duration


class Service(Section):
    key: Secret


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("30s", timedelta(seconds=30)),
        ("1h30m", timedelta(minutes=90)),
        ("1.5d", timedelta(hours=36)),
        ("250ms", timedelta(milliseconds=250)),
        ("PT5M", timedelta(minutes=5)),
        ("P1DT1H", timedelta(hours=25)),
    ],
)
def test_durations_have_units(text: str, expected: timedelta) -> None:
    assert RunConfig.model_validate({"interval": text}).interval == expected


@pytest.mark.parametrize(
    "value", [5, 5.5, True, "5", "5 minutes", "1:30", "01:30:00", "-5m", "", "m", "P", "-PT5M", "0s"]
)
def test_what_is_no_duration_is_refused(value: Any) -> None:
    with pytest.raises(ValidationError):
        RunConfig.model_validate({"interval": value})


def test_a_number_without_a_unit_is_told_so() -> None:
    with pytest.raises(ValidationError, match="such as 300s, 300m"):
        RunConfig.model_validate({"interval": "300"})


_DURATIONS = TypeAdapter[timedelta](Duration)


@given(st.timedeltas(min_value=timedelta(days=-4_000), max_value=timedelta(days=4_000)))
def test_a_printed_duration_reads_back(duration: timedelta) -> None:
    assert _DURATIONS.validate_python(format_duration(duration)) == duration


def test_a_negative_duration_is_printed_with_a_sign_in_front() -> None:
    assert format_duration(timedelta(minutes=-5)) == "-PT300.000000S"


def test_interval_and_schedule_exclude_each_other() -> None:
    with pytest.raises(ValidationError, match="keep one"):
        RunConfig.model_validate({"interval": "5m", "schedule": "* * * * *"})


def test_a_schedule_is_checked_and_normalised() -> None:
    assert RunConfig.model_validate({"schedule": "0 4 * * 1"}).schedule == "0 4 * * mon"
    with pytest.raises(ValidationError, match="never occurs"):
        RunConfig.model_validate({"schedule": "0 0 31 2 *"})


def test_a_secret_is_resolved_where_the_host_loads_it() -> None:
    def resolve(reference: str) -> SecretStr | None:
        return SecretStr("sesame") if reference == "env:KEY" else None

    context = {"resolve_secret": resolve}
    assert Service.model_validate({"key": "env:KEY"}, context=context).key.get_secret_value() == "sesame"
    assert Service.model_validate({"key": "plain"}, context=context).key.get_secret_value() == "plain"


def test_a_secret_built_by_hand_is_the_text_itself_and_never_printed() -> None:
    service = Service.model_validate({"key": "env:KEY"})
    assert service.key.get_secret_value() == "env:KEY"
    assert "KEY" not in repr(service) + service.model_dump_json()
