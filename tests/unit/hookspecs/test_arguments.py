"""Arguments of programs that are hidden, and others that stay readable."""

from shlex import split

import pytest

from auditord_hookspecs.arguments import HIDDEN, hide_in_text, hide_secrets


@pytest.mark.parametrize(
    ("arguments", "shown"),
    [
        (["sacct", "--password=abc def"], ["sacct", f"--password={HIDDEN}"]),
        (["x", "--Token", "abc", "-v"], ["x", "--Token", HIDDEN, "-v"]),
        (["x", "-password", "-abc"], ["x", "-password", HIDDEN]),
        (["x", "--pwd", "--verbose"], ["x", "--pwd", "--verbose"]),
        (["x", "--db.api-key=abc"], ["x", f"--db.api-key={HIDDEN}"]),
        (["env", "PGPASSWORD=abc", "psql"], ["env", f"PGPASSWORD={HIDDEN}", "psql"]),
        (["curl", "-H", "Authorization: Bearer abc"], ["curl", "-H", f"Authorization: Bearer {HIDDEN}"]),
        (["curl", "-H", "Proxy-Authorization: Basic abc"], ["curl", "-H", f"Proxy-Authorization: Basic {HIDDEN}"]),
        (["curl", "-H", "X-ApiKey: abc"], ["curl", "-H", f"X-ApiKey: {HIDDEN}"]),
        (["curl", "-H", "PRIVATE-TOKEN: abc"], ["curl", "-H", f"PRIVATE-TOKEN: {HIDDEN}"]),
        (["sh", "-c", "curl -H 'api-key: abc' x"], ["sh", "-c", f"curl -H 'api-key: {HIDDEN}' x"]),
        (["sh", "-c", "x --secret=abc --y"], ["sh", "-c", f"x --secret={HIDDEN} --y"]),
        (["sh", "-c", "x --secret 'a bc' --y"], ["sh", "-c", f"x --secret {HIDDEN} --y"]),
    ],
)
def test_values_of_options_that_look_like_secrets_are_hidden(arguments: list[str], shown: list[str]) -> None:
    assert hide_secrets(arguments) == shown


@pytest.mark.parametrize(
    "command",
    [
        "sacct --allusers --format=JobID,User -S 2026-01-01",
        "x --password-file=/etc/x --token-file /etc/y --secrets-dir /run/z",
        "x -pabc",  # nobody can tell a secret from another value behind a short option
        "ssh -i /etc/key head1 sacct",
        "condor_history -constraint 'JobStatus == 4'",
    ],
)
def test_other_arguments_are_shown(command: str) -> None:
    assert hide_secrets(split(command)) == split(command)
    assert hide_in_text(command) == command


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("sacct: unrecognized option '--password=abc'", f"sacct: unrecognized option '--password={HIDDEN}'"),
        ("scontrol update --token abc nice=1", f"scontrol update --token {HIDDEN} nice=1"),
        ("cannot read credential:secret_far: no token", "cannot read credential:secret_far: no token"),
        ("the password must be longer; give --token-file FILE", "the password must be longer; give --token-file FILE"),
    ],
)
def test_messages_that_quote_a_command_are_searched(text: str, shown: str) -> None:
    assert hide_in_text(text) == shown
