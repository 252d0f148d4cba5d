"""Tokens: shown once, kept as hashes, over when their time is or when somebody says so."""

import json
import os
import re
import stat
from datetime import timedelta
from pathlib import Path

import anyio
import pytest
from click.testing import CliRunner, Result

from auditord.testing import FakeCommandContext
from auditord.web.access.authorisation import HostAuthenticatorContext
from auditord_builtin.access.tokens import FILE, TokenFile, TokenFileUnusable, TokensConfig, open_tokens, token_command
from auditord_hookspecs import AccessRefused, Credentials, Identity


@pytest.fixture
def host(command_context: FakeCommandContext, tmp_path: Path) -> FakeCommandContext:
    command_context.state_dir = tmp_path
    return command_context


def run(host: FakeCommandContext, *arguments: str) -> Result:
    return CliRunner().invoke(token_command, arguments, obj=host)


def made(host: FakeCommandContext, *arguments: str) -> str:
    result = run(host, "create", *arguments)
    assert result.exit_code == 0, result.output
    return result.stdout.strip()


def listed(host: FakeCommandContext) -> list[dict[str, object]]:
    found: list[dict[str, object]] = json.loads(run(host, "list", "--output", "json").stdout)
    return found


def asked(host: FakeCommandContext, *tokens: str, later: timedelta = timedelta(0)) -> list[Identity | str | None]:
    """The answer of an open authenticator to each."""

    async def ask() -> list[Identity | str | None]:
        context = HostAuthenticatorContext("tokens", "tokens", lambda: host.now() + later, state_dir=host.state_dir)
        found: list[Identity | str | None] = []
        async with open_tokens(TokensConfig(), context) as authenticate:
            for token in tokens:
                try:
                    found.append(await authenticate(Credentials(token=token)))
                except AccessRefused as error:
                    found.append(str(error))
        return found

    return anyio.run(ask)


def test_a_login_link_has_the_token_where_no_server_sees_it(host: FakeCommandContext) -> None:
    link = made(host, "alice", "--role", "reader", "--link", "https://auditord.example.org/usage/")
    address, _, token = link.partition("#token=")
    assert address == "https://auditord.example.org/usage/login"
    assert asked(host, token) == [Identity("alice", ("reader",), "alice")]
    result = run(host, "create", "bob", "--role", "reader", "--link", "https://a.example.org", "--output", "json")
    found = json.loads(result.stdout)
    assert found["link"] == f"https://a.example.org/login#token={found['token']}"


def test_a_token_is_let_in_with_its_roles(host: FakeCommandContext) -> None:
    token = made(host, "kit", "--role", "writer", "--role", "reader")
    assert asked(host, token) == [Identity("kit", ("writer", "reader"), "kit")]


def test_only_a_hash_is_kept_and_nobody_else_may_read_it(host: FakeCommandContext) -> None:
    token = made(host, "kit", "--role", "writer")
    file = host.state_dir / FILE
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert token.split("_", 2)[2] not in file.read_text()  # the secret, which may hold underscores as well
    assert token not in run(host, "list").output
    assert file.stat().st_uid == host.state_dir.stat().st_uid == os.geteuid()


def test_what_is_wrong_with_a_token_is_never_the_token(host: FakeCommandContext) -> None:
    token = made(host, "kit", "--role", "writer")
    for wrong in (token[:-1], token + "x", token.swapcase(), "auditord_", "auditord_x_y"):
        (answer,) = asked(host, wrong)
        assert answer is None or (isinstance(answer, str) and wrong not in answer)
        assert wrong.startswith("auditord_") is (answer is not None)


def test_tokens_of_others_are_left_to_others(host: FakeCommandContext) -> None:
    assert asked(host, "eyJ.eyJ.x", "ghp_1234") == [None, None]


def test_a_token_ends(host: FakeCommandContext) -> None:
    short = made(host, "a", "--role", "reader", "--valid", "1d")
    long = made(host, "b", "--role", "reader", "--valid", "never")
    assert asked(host, short, later=timedelta(hours=23)) == [Identity("a", ("reader",), "a")]
    expired, kept = asked(host, short, long, later=timedelta(days=1))
    assert isinstance(expired, str)
    assert "expired" in expired
    assert kept == Identity("b", ("reader",), "b")


def test_a_revoked_token_is_refused_by_an_authenticator_that_is_open(host: FakeCommandContext) -> None:
    token, other = made(host, "kit", "--role", "writer"), made(host, "kit", "--role", "writer")
    token_id = token.split("_")[1]

    async def ask() -> None:
        context = HostAuthenticatorContext("tokens", "tokens", host.now, state_dir=host.state_dir)
        async with open_tokens(TokensConfig(), context) as authenticate:
            assert await authenticate(Credentials(token=token)) is not None
            assert run(host, "revoke", token_id).exit_code == 0
            with pytest.raises(AccessRefused):
                await authenticate(Credentials(token=token))
            assert await authenticate(Credentials(token=other)) is not None

    anyio.run(ask)
    assert [each["id"] for each in listed(host)] == [other.split("_")[1]]


def test_the_list_says_whose_and_what_for(host: FakeCommandContext) -> None:
    made(host, "kit", "--role", "writer", "--valid", "30d")
    (token,) = listed(host)
    assert token.keys() == {"id", "name", "roles", "created", "expires"}
    assert (token["name"], token["roles"]) == ("kit", ["writer"])
    head, line = run(host, "list").stdout.splitlines()
    assert (head.split(), line.split()[1:4]) == (["id", "name", "roles", "validity"], ["kit", "writer", "until"])
    assert re.search(r":\d\dZ$", line)


def test_a_file_of_others_names_the_remedy(host: FakeCommandContext, monkeypatch: pytest.MonkeyPatch) -> None:
    made(host, "kit", "--role", "writer")

    def refuse(path: Path) -> bytes:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "read_bytes", refuse)  # tests may be root's
    assert str(run(host, "list").exception).endswith("run this as root or as the daemon's user")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("create", "kit"), "--role"),
        (("create", "kit", "--role", "wizard"), "no role 'wizard' (there are: reader, writer)"),
        (("create", "two words", "--role", "reader"), "letters, digits"),
        (("create", "kit", "--role", "reader", "--valid", "7"), "7m or 1h30m, or never"),
        (("create", "kit", "--role", "reader", "--valid", "0s"), "never"),
        (("create", "kit", "--role", "reader", "--link", "example.org"), "such as https://auditord.example.org"),
        (("create", "kit", "--role", "reader", "--link", "https://example.org/?a=b"), "the address of the page"),
        (("revoke", "nothing"), "no token nothing"),
    ],
    ids=str,
)
def test_mistakes_are_named(host: FakeCommandContext, arguments: tuple[str, ...], said: str) -> None:
    result = run(host, *arguments)
    assert result.exit_code == 2
    assert said in result.output
    assert not (host.state_dir / FILE).exists()


def test_a_file_that_cannot_be_read_lets_nobody_in(host: FakeCommandContext) -> None:
    token = made(host, "kit", "--role", "writer")
    (host.state_dir / FILE).write_text("{")
    with pytest.raises(TokenFileUnusable, match="cannot be read"):
        asked(host, token)
    with pytest.raises(TokenFileUnusable):
        TokenFile(host.state_dir).change(lambda _: [])
    assert (host.state_dir / FILE).read_text() == "{"


def test_the_first_token_may_be_made_before_the_first_start(host: FakeCommandContext, tmp_path: Path) -> None:
    host.state_dir = tmp_path / "not/yet"
    assert listed(host) == []
    token = made(host, "kit", "--role", "writer")
    assert asked(host, token) == [Identity("kit", ("writer",), "kit")]
    assert stat.S_IMODE(host.state_dir.stat().st_mode) & 0o027 == 0


def test_a_folder_that_cannot_be_made_is_reported_with_the_remedy(host: FakeCommandContext, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    host.state_dir = tmp_path / "file/state"
    result = run(host, "create", "kit", "--role", "writer")
    assert isinstance(result.exception, TokenFileUnusable)
    assert "run this as the daemon's user, who must be allowed to write to" in str(result.exception)
