"""Pseudonyms: the same for the same name and key, and in every way into the records."""

import hashlib
import hmac
import json
import re
from datetime import UTC, datetime
from pathlib import Path
from urllib.request import Request, urlopen

import pytest
from pydantic import SecretStr, ValidationError

from auditord.testing import EPOCH
from auditord.testing.daemon import StartDaemon
from auditord_builtin.privacy.pseudonyms import KIND, PseudonymsConfig
from auditord_hookspecs import Record

KEY = "sixteen characters or more"


def changed(record: Record, **options: object) -> Record:
    return KIND.make(PseudonymsConfig.model_validate({"key": KEY, **options}))(record)


def record(**meta: tuple[str, ...]) -> Record:
    return Record("a-1", EPOCH, (), None, meta or None)


def of(name: str, key: str = KEY) -> str:
    return "u-" + hmac.new(key.encode(), name.encode(), hashlib.sha256).hexdigest()[:20]


def test_every_name_under_the_keys_becomes_its_pseudonym_and_nothing_else() -> None:
    made = changed(record(user_id=("alice", "bob"), user=("alice",), group_id=("alice",), site_id=("A",)))
    assert made.meta == {
        "user_id": (of("alice"), of("bob")),
        "user": (of("alice"),),
        "group_id": ("alice",),
        "site_id": ("A",),
    }
    assert (made.record_id, made.start_time) == ("a-1", EPOCH)


def test_what_was_changed_stays() -> None:
    once = changed(record(user_id=("alice",)))
    assert changed(once) == once


def test_a_user_who_is_named_like_a_pseudonym_gets_one_if_no_site_makes_them() -> None:
    named = of("alice")
    assert changed(record(user_id=(named,)), keep_pseudonyms=False).meta == {"user_id": (of(named),)}


def test_who_has_no_user_is_left_alone() -> None:
    for untouched in (record(), record(site_id=("A",))):
        assert changed(untouched) is untouched


def test_other_keys_of_meta_can_be_named() -> None:
    assert changed(record(subject=("/CN=Alice",), user_id=("alice",)), meta=["subject"]).meta == {
        "subject": (of("/CN=Alice"),),
        "user_id": ("alice",),
    }


def test_another_key_makes_other_pseudonyms() -> None:
    other = PseudonymsConfig(key=SecretStr("another key of enough characters"))
    assert KIND.make(other)(record(user_id=("alice",))) != changed(record(user_id=("alice",)))


def test_a_key_that_can_be_guessed_is_refused_and_not_shown() -> None:
    with pytest.raises(ValidationError, match="16 characters") as refused:
        PseudonymsConfig(key=SecretStr("guess-me"))
    assert "guess-me" not in str(refused.value)


def test_no_name_gets_past_whichever_way_a_record_comes(auditord_daemon: StartDaemon, tmp_path: Path) -> None:
    drop = tmp_path / "drop"
    drop.mkdir()
    (drop / "a.ndjson").write_text(json.dumps(wire("files-1")) + "\n")
    daemon = auditord_daemon(
        {
            "transforms": {"pseudonyms": {"kind": "pseudonyms", "key": KEY}},
            "collectors": {"files": {"kind": "files", "folder": str(drop), "settle": "0s"}},
        }
    )
    post(f"{daemon.url}/record", wire("one"))
    post(f"{daemon.url}/records", [wire("two"), wire("three")])
    post(f"{daemon.url}/api/v1/records", [wire("four")])
    daemon.finish_run("files")
    found = {each.record_id: each.meta for each in daemon.records()}
    assert set(found) >= {"one", "two", "three", "four"}
    assert len(found) == 5
    assert {(meta or {})["user_id"] for meta in found.values()} == {(of("alice"),)}
    post(f"{daemon.url}/record", wire("one"))  # the same run, so a success
    files = b"".join(path.read_bytes() for path in daemon.state_dir.glob("records.db*"))
    assert not re.search(rb"alice", files)


def wire(record_id: str) -> dict[str, object]:
    start = datetime(2026, 1, 1, tzinfo=UTC).isoformat()
    stop = datetime(2026, 1, 2, tzinfo=UTC).isoformat()
    meta = {"user_id": ["alice"], "site_id": ["A"]}
    return {"record_id": record_id, "start_time": start, "stop_time": stop, "components": [], "meta": meta}


def post(url: str, body: object) -> None:
    request = Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})  # noqa: S310 the daemon's own
    with urlopen(request, timeout=30) as answer:  # noqa: S310 the same
        assert answer.status == 200
