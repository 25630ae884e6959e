"""Users of a file, and that names which are not in it look as if they were."""

import base64
from collections import Counter

from broker.security import password_hashes, scram
from broker.security.accounts import Accounts
from broker.security.password_hashes import StoredHash, parse

KEY = b"k" * 32


def argon(memory_kib: int = 19_456) -> StoredHash:
    """Return an argon2id line of this cost."""
    return parse(f"$argon2id$v=19$m={memory_kib},t=2,p=1$c29tZXNhbHQ$CTFhFdXPJO1aFaMaO6Mm5Q")


def pbkdf2(iterations: int) -> StoredHash:
    """Return a line of mosquitto's of this cost."""
    return parse(f"$7${iterations}$AAAA${base64.b64encode(bytes(64)).decode()}")


def keys(iterations: int = 4096, salt: bytes = bytes(16), seed: bytes = b"s") -> StoredHash:
    """Return a SCRAM line."""
    encoded = base64.b64encode(seed * 32).decode()
    text = base64.b64encode(salt).decode()
    return parse(f"SCRAM-SHA-256${iterations}:{text}${encoded}:{encoded}")


def names(count: int) -> list[str]:
    """Return names that are in no file here."""
    return [f"stranger-{number}" for number in range(count)]


def test_a_user_is_found_by_the_exact_name() -> None:
    stored = argon()
    accounts = Accounts({"anna": stored}, KEY)
    assert accounts.stored("anna") is accounts.to_verify("anna") is stored
    for other in ("Anna", "anna ", "", "ann"):
        assert accounts.stored(other) is None
    assert len(accounts) == 1


def test_a_stranger_costs_what_some_user_costs_in_the_proportion_of_the_file() -> None:
    users = {f"a{n}": argon() for n in range(3)} | {"p": pbkdf2(101)}
    accounts = Accounts(users, KEY)
    found = Counter(accounts.to_verify(name).scheme for name in names(2000))
    assert found.keys() == {password_hashes.ARGON2ID, password_hashes.PBKDF2}
    assert 400 < found[password_hashes.PBKDF2] < 600


def test_a_stranger_costs_the_same_every_time_and_after_a_restart() -> None:
    users = {"a": argon(), "b": pbkdf2(1), "c": pbkdf2(1000), "d": keys()}
    backwards = dict(reversed(users.items()))
    for name in names(50):
        costs = {
            accounts.to_verify(name).cost
            for accounts in (Accounts(users, KEY), Accounts(backwards, KEY))
        }
        assert len(costs) == 1


def test_a_new_user_changes_the_cost_of_few_strangers() -> None:
    users = {f"u{n}": argon() if n % 2 else pbkdf2(1000) for n in range(200)}
    before, after = Accounts(users, KEY), Accounts({**users, "new": argon()}, KEY)
    changed = [n for n in names(1000) if before.to_verify(n).cost != after.to_verify(n).cost]
    assert len(changed) < 20


def test_who_stands_in_for_whom_cannot_be_foreseen_without_the_key() -> None:
    users = {"a": argon(), "b": pbkdf2(1)}
    one, other = Accounts(users, KEY), Accounts(users, b"x" * 32)
    assert [one.to_verify(n).scheme for n in names(64)] != [
        other.to_verify(n).scheme for n in names(64)
    ]


def test_without_any_user_a_stranger_costs_what_we_would_write() -> None:
    accounts = Accounts({}, KEY)
    assert accounts.to_verify("anna").cost == parse(password_hashes.hasher().hash("x")).cost
    assert not password_hashes.verify(accounts.to_verify("anna"), b"")


def test_users_who_are_gone_or_have_another_password_are_revoked() -> None:
    old = Accounts({"kept": argon(), "gone": argon(), "changed": argon(), "other": keys()}, KEY)
    new = Accounts(
        {"kept": argon(), "changed": argon(65_536), "other": argon(), "new": keys()}, KEY
    )
    assert old.revoked_by(new) == {"gone", "changed", "other"}
    assert old.revoked_by(old) == Accounts({}, KEY).revoked_by(old) == frozenset()


def test_scram_is_offered_when_somebody_can_use_it() -> None:
    assert not Accounts({"a": argon(), "b": pbkdf2(1)}, KEY).offers_scram
    assert Accounts({"a": argon(), "b": keys()}, KEY).offers_scram


def test_a_user_of_scram_gets_what_the_file_says() -> None:
    account = Accounts({"anna": keys(5000, b"0123456789", b"z")}, KEY).scram_account("anna")
    assert (account.name, account.iterations, account.salt) == ("anna", 5000, b"0123456789")
    assert (account.stored_key, account.server_key) == (b"z" * 32, b"z" * 32)


def test_a_user_of_scram_is_found_by_the_prepared_name() -> None:
    accounts = Accounts({"\u2168": keys()}, KEY)
    assert accounts.scram_account(scram.mapped("\u2168")).name == "\u2168"
    assert accounts.scram_account("IX").name == "\u2168"


def test_a_stranger_and_a_user_without_scram_get_a_salt_of_their_own_that_stays() -> None:
    users = {"anna": keys(5000, bytes(20)), "ben": argon()}
    accounts, restarted = Accounts(users, KEY), Accounts({**users, "new": argon()}, KEY)
    seen = set()
    for name in ("ben", *names(50)):
        account = accounts.scram_account(name)
        assert (account.name, account.iterations, len(account.salt)) == ("", 5000, 20)
        again = restarted.scram_account(name)
        assert (again.salt, again.stored_key) == (account.salt, account.stored_key)
        seen.add((account.salt, account.stored_key, account.server_key))
    assert len(seen) == 51


def test_a_salt_of_any_length_is_made_up() -> None:
    account = Accounts({"anna": keys(1, bytes(100))}, KEY).scram_account("nobody")
    assert len(account.salt) == 100
    assert account.salt[:32] != account.salt[32:64]


def test_a_stranger_has_an_account_even_where_nobody_uses_scram() -> None:
    """The last user of SCRAM may go while an exchange is under way."""
    account = Accounts({"ben": argon()}, KEY).scram_account("ben")
    assert (account.name, account.iterations) == ("", scram.ITERATIONS)
