"""Tokens: told once, kept as hashes, over when they expire or are removed."""

from pathlib import Path

import pytest

from broker.admin.access import tokens
from broker.admin.access.private_file import AccessFileError
from broker.admin.access.roles import Role
from broker.admin.access.tokens import NAME_OF_FILE, Tokens


def add(made: Tokens, name: str, role: Role = Role.VIEWER) -> str:
    return made.add(name, role, payloads=False, now_ms=1000, expires_ms=5000)


def test_a_token_is_found_until_the_moment_it_expires(tmp_path: Path) -> None:
    made = Tokens(tmp_path)
    text = add(made, "ann", Role.OPERATOR)
    found = made.find(text, 4999)
    assert found is not None
    assert (found.name, found.role, found.payloads) == ("ann", Role.OPERATOR, False)
    assert made.find(text, 5000) is None
    assert [each.name for each in made.all()] == ["ann"]


def test_only_the_token_itself_is_one(tmp_path: Path) -> None:
    made = Tokens(tmp_path)
    text = add(made, "ann")
    for wrong in ("", text[:-1], text + "x", text.upper(), "ann", "hf_", "\udcff", "x" * 100_000):
        assert made.find(wrong, 2000) is None
    assert made.find(made.all()[0].digest, 2000) is None


def test_the_file_does_not_have_the_token(tmp_path: Path) -> None:
    made = Tokens(tmp_path)
    text = add(made, "ann")
    assert text.startswith("hf_") and len(text) == 46
    assert text.removeprefix("hf_") not in (tmp_path / NAME_OF_FILE).read_text()


def test_tokens_are_different_and_removed_one_by_one(tmp_path: Path) -> None:
    made = Tokens(tmp_path)
    first, second = add(made, "ann"), add(made, "bob")
    assert first != second
    made.remove("ann")
    assert made.find(first, 2000) is None
    assert made.find(second, 2000) is not None
    with pytest.raises(AccessFileError, match="no token 'ann'"):
        made.remove("ann")


def test_a_name_is_taken_once_and_has_to_be_one(tmp_path: Path) -> None:
    made = Tokens(tmp_path)
    add(made, "ann")
    with pytest.raises(AccessFileError, match="there is a token 'ann' already"):
        add(made, "ann")
    with pytest.raises(AccessFileError, match="expected letters, digits"):
        add(made, "an n")
    assert len(made.all()) == 1


def test_there_are_not_more_than_a_limit(tmp_path: Path) -> None:
    made = Tokens(tmp_path)
    entries = [
        {"name": f"t{number}", "role": "viewer", "payloads": False, "sha256": f"{number}"}
        | {"created_ms": 1, "expires_ms": 2}
        for number in range(tokens.TOKENS_MAX)
    ]
    with made._file.change() as kept:
        kept += entries
    with pytest.raises(AccessFileError, match="there are 1000 tokens already"):
        add(made, "one-more")


def test_an_entry_that_cannot_be_understood_lets_nobody_in(tmp_path: Path) -> None:
    made = Tokens(tmp_path)
    text = add(made, "ann")
    path = tmp_path / NAME_OF_FILE
    path.write_text(path.read_text().replace('"viewer"', '"root"'))
    with pytest.raises(AccessFileError, match="cannot be understood"):
        made.find(text, 2000)
