"""The lines of a password file: what other programs wrote is verified, what is damaged is found."""

import base64
import shutil
import subprocess
from pathlib import Path

import pytest
import scramp  # type: ignore[import-untyped]
from hypothesis import given, settings
from hypothesis import strategies as st

from broker.security import password_file, password_hashes, scram
from broker.security.password_hashes import parse, verify
from tests.broker.security.stored import ARGON2ID, MOSQUITTO_6, MOSQUITTO_7, SCRAM

KINDS = {
    ARGON2ID: b"password",
    MOSQUITTO_7: b"right pass",
    MOSQUITTO_6: b"right pass",
    SCRAM: b"pencil",
}


@pytest.mark.parametrize("line", KINDS)
def test_a_line_of_another_program_matches_its_own_password_only(line: str) -> None:
    stored = parse(line)
    assert stored.text == line
    assert verify(stored, KINDS[line])
    for wrong in (b"", b"wrong", KINDS[line] + b" ", KINDS[line].upper(), b"x" * 70_000):
        assert not verify(stored, wrong)


@pytest.mark.parametrize("kind", ["sha512-pbkdf2", "sha512"])
@pytest.mark.skipif(shutil.which("mosquitto_passwd") is None, reason="mosquitto is not installed")
def test_what_mosquitto_passwd_writes_today_is_verified(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "users"
    path.write_text("")
    users = {"anna": "right pass", "bén x": "pass wörd", "c#d": "$7$1$a$b"}
    for name, password in users.items():
        command = ["mosquitto_passwd", "-H", kind, "-b", str(path), name, password]
        subprocess.run(command, check=True, capture_output=True)
    found = password_file.load(str(path))
    assert list(found) == list(users)
    for name, stored in found.items():
        assert verify(stored, users[name].encode())
        assert not verify(stored, b"wrong")


def test_our_own_hashes_are_verified() -> None:
    stored = parse(password_hashes.hasher().hash("right"))
    assert stored.cost == (
        password_hashes.MEMORY_KIB,
        password_hashes.TIME_COST,
        password_hashes.LANES,
    )
    assert verify(stored, b"right")
    assert not verify(stored, b"wrong")


@pytest.mark.parametrize("password", ["pencil", "x, y=z", "wört", "pass\u00a0word\u00ad", "\u2168"])
def test_our_scram_lines_hold_the_keys_a_foreign_implementation_derives(password: str) -> None:
    salt = bytes(range(16))
    line = password_hashes.scram_line(password.encode(), salt)
    mechanism = scramp.ScramMechanism("SCRAM-SHA-256")
    expected = mechanism.make_auth_info(password, iteration_count=scram.ITERATIONS, salt=salt)
    stored = parse(line)
    assert (stored.salt, stored.key, stored.server_key, stored.cost[0]) == expected
    assert verify(stored, password.encode())
    assert not verify(stored, b"wrong")


@pytest.mark.parametrize("password", [b"\xff", b"", "\u0627a".encode(), "😀".encode(), b"a\x07"])
def test_a_password_that_clients_would_prepare_differently_gets_no_scram_line(
    password: bytes,
) -> None:
    with pytest.raises(ValueError):
        password_hashes.scram_line(password, bytes(16))


@pytest.mark.parametrize("password", ["😀", "\u0627a", "x" * 2000, "ö" * 2000, "a\x07"])
def test_a_password_that_cannot_be_prepared_is_compared_as_it_is(password: str) -> None:
    """As PostgreSQL does, whose lines these may be."""
    stored_key, server_key = scram.derive(password.encode(), b"salt", 1)
    keys = f"{base64.b64encode(stored_key).decode()}:{base64.b64encode(server_key).decode()}"
    assert verify(parse(f"SCRAM-SHA-256$1:c2FsdA==${keys}"), password.encode())


def test_an_argon2_hash_there_is_no_memory_for_matches_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from argon2 import exceptions, low_level

    def no_memory(*arguments: object, **settings: object) -> bytes:
        raise exceptions.HashingError("Memory allocation error")

    monkeypatch.setattr(low_level, "hash_secret_raw", no_memory)
    assert not verify(parse(ARGON2ID), b"password")


@pytest.mark.parametrize(
    "line",
    [
        "",
        "plain text",
        "$5$abc$def",
        "$argon2i$v=19$m=65536,t=2,p=1$c29tZXNhbHQ$CTFhFdXPJO0",
        "$argon2id$x",
        ARGON2ID.replace("v=19", "v=16"),
        ARGON2ID.replace("m=65536,", ""),
        ARGON2ID.replace("m=65536", "m=4"),
        ARGON2ID.replace("m=65536", "m=99999999"),
        ARGON2ID.replace("t=2", "t=0"),
        ARGON2ID.replace("t=2", "t=x"),
        ARGON2ID.replace("t=2", "x=2"),
        ARGON2ID.replace("p=1", "p=255"),
        ARGON2ID.replace("c29tZXNhbHQ", ""),
        ARGON2ID.replace("c29tZXNhbHQ", "c29!"),
        ARGON2ID[:-1],
        ARGON2ID + "$x",
        MOSQUITTO_7.replace("$101", ""),
        MOSQUITTO_7.replace("101", "0"),
        MOSQUITTO_7.replace("101", "-1"),
        MOSQUITTO_7.replace("101", "1e3"),
        MOSQUITTO_7.replace("101", "\u0661"),  # a digit, but not of this alphabet
        MOSQUITTO_7.replace("101", "10000001"),
        MOSQUITTO_7.replace("101", "9" * 5000),
        MOSQUITTO_7.replace("Qth3vz/lwrjfSJux", ""),
        MOSQUITTO_7[:-1],
        MOSQUITTO_7[:-4] + "====",
        MOSQUITTO_7[:-8] + "==",
        MOSQUITTO_7 + "$",
        MOSQUITTO_6.replace("$6$", "$6$101$"),
        MOSQUITTO_6[:-6],
        MOSQUITTO_6[:30] + "*" + MOSQUITTO_6[31:],
        SCRAM.replace("4096", "0"),
        SCRAM.replace("4096:", ""),
        SCRAM.replace("W22ZaJ0SNY7soEsUEjb6gQ==", ""),
        SCRAM.replace("W22ZaJ0SNY7soEsUEjb6gQ==", "W22"),
        SCRAM[:-4],
        SCRAM.rpartition(":")[0],
        SCRAM.replace("SHA-256", "SHA-1"),
        SCRAM + "$",
        SCRAM + ":",
    ],
)
def test_a_damaged_line_is_an_error_that_does_not_show_it(line: str) -> None:
    with pytest.raises(ValueError) as caught:
        parse(line)
    text = str(caught.value)
    assert "\n" not in text and len(text) < 160
    assert "int()" not in text  # said by us, not by whatever noticed first
    for secret in ("Qth3", "hbtj", "c29t", "CTFh", "W22Z", "WG5d", "plain text"):
        assert secret not in text


@pytest.mark.parametrize("line", KINDS)
def test_a_stored_hash_does_not_show_itself_in_a_traceback(line: str) -> None:
    assert line[-20:] not in repr(parse(line))


@settings(deadline=None)
@given(st.text("$:=,mtpv1960argon2idSCRAMSHA-25abAB+/ é", max_size=60))
def test_whatever_stands_in_a_line_it_is_understood_or_refused(text: str) -> None:
    for prefix in ("", "$7$", "$6$", "$argon2id$v=19$", "SCRAM-SHA-256$"):
        try:
            stored = parse(prefix + text)
        except ValueError:
            continue
        assert stored.text == prefix + text
