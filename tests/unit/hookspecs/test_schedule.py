import pytest

from auditord_hookspecs.schedule import parse_schedule


@pytest.mark.parametrize(
    ("line", "normal"),
    [
        ("0 3 * * *", "0 3 * * *"),
        (" */5  0-6/2,12 * JAN-mar * ", "*/5 0-6/2,12 * jan-mar *"),
        ("5/15 * * * *", "5/15 * * * *"),
        ("0 0 1 */3 *", "0 0 1 */3 *"),
        ("0 0 29 2 *", "0 0 29 2 *"),
    ],
)
def test_a_cron_line_is_kept(line: str, normal: str) -> None:
    assert parse_schedule(line) == normal


@pytest.mark.parametrize(
    ("weekday", "names"),
    [
        ("0", "sun"),
        ("7", "sun"),
        ("1-5", "mon,tue,wed,thu,fri"),
        ("Mon-Sun", "sun,mon,tue,wed,thu,fri,sat"),
        ("5-7", "sun,fri,sat"),
        ("sat,sun", "sun,sat"),
        ("*/2", "sun,tue,thu,sat"),
    ],
)
def test_days_of_the_week_get_names_since_schedulers_number_them_differently(weekday: str, names: str) -> None:
    assert parse_schedule(f"0 0 * * {weekday}") == f"0 0 * * {names}"


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("0 3 * *", "4 fields"),
        ("0 0 3 * * *", "6 fields"),
        ("@daily", "1 fields"),
        ("60 * * * *", "minute"),
        ("* 24 * * *", "hour"),
        ("* * 0 * *", "day of the month"),
        ("* * * 13 *", "month"),
        ("* * * * 8", "day of the week"),
        ("* * * mon *", "month"),
        ("*/0 * * * *", "range of minutes"),
        ("*/60 * * * *", "range of minutes"),
        ("30-10 * * * *", "range of minutes"),
        ("*-5 * * * *", "minute"),
        ("1,,2 * * * *", "minute"),
        ("-1 * * * *", "minute"),
        ("\N{ARABIC-INDIC DIGIT ONE} * * * *", "minute"),
        ("0 0 1 * mon", "keep one"),
        ("0 0 30 2 *", "never occurs"),
        ("0 0 31 apr,jun *", "never occurs"),
    ],
)
def test_what_is_no_cron_line_is_refused_with_the_reason(line: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        parse_schedule(line)
