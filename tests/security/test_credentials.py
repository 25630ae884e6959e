"""Passwords: C16 of docs/security.md. Work is counted, not timed."""

import hmac
import secrets
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from broker.security import password_hashes, scram
from broker.security.accounts import Accounts
from broker.security.authenticators import WAITING_CHECKS_MAX, PasswordFile
from broker.security.password_hashes import StoredHash, parse
from conformance.scram import ScramClient
from mqtt import reasons
from mqtt.packets import Connack, Connect
from session.ports import Verdict
from tests.broker.event_loop import Loop
from tests.broker.security.stored import ARGON2ID, MOSQUITTO_6, MOSQUITTO_7, SCRAM
from tests.durability.rawclient import RawClient
from tests.durability.scene import Scene
from tests.security.files import PASSWORD
from tests.stand_in import replace_in

Start = Callable[..., Scene]
KEY: Final = b"k" * 32
KINDS: Final = {"six": MOSQUITTO_6, "seven": MOSQUITTO_7, "scram": SCRAM, "argon": ARGON2ID}
BAD_LOGINS: Final = 24


def test_c16_bad_logins_do_not_keep_others_waiting(tmp_path: Path, start_broker: Start) -> None:
    """A CPU bomb: one thread hashes, and the loop goes on. Judged by the order of answers."""
    path = tmp_path / "passwords"
    path.write_text(f"ann:{password_hashes.hasher().hash(PASSWORD.decode())}\nbob:{MOSQUITTO_6}\n")
    scene = start_broker(HOLDFAST__AUTH__PASSWORD_FILE=str(path), HOLDFAST__AUTH__HASH_THREADS="1")
    witness = scene.client("witness")
    witness.connect(username="bob", password=PASSWORD)
    attackers = []
    for number in range(BAD_LOGINS):
        attacker = scene.client(f"attacker{number}")
        attacker.open()
        attackers.append(attacker)
    before = scene.broker.rss_bytes()
    for attacker in attackers:
        attacker.send(Connect(attacker.client_id, username="ann", password=b"wrong"))
    answered_at_pings = []
    for _ in range(3):
        witness.ping()
        failed = scene.broker.metrics()['holdfast_connects_total{result="bad_credentials"}']
        answered_at_pings.append(failed)
    assert answered_at_pings[0] < BAD_LOGINS, "every ping waited for every hash"
    for attacker in attackers:
        assert attacker.expect(Connack).reason_code == reasons.BAD_USER_NAME_OR_PASSWORD
    assert scene.broker.rss_bytes() - before < 48 << 20  # 19 MiB a thread, not a login
    threads = list(Path(f"/proc/{scene.broker.pid}/task").glob("*/comm"))
    assert len(threads) < BAD_LOGINS


@pytest.fixture
def loop() -> Loop:
    return Loop()


@pytest.fixture
def file(loop: Loop) -> Iterator[PasswordFile]:
    users = {name: parse(line) for name, line in KINDS.items()}
    opened = PasswordFile(
        Accounts(users, KEY),
        allow_anonymous=False,
        threads_max=2,
        call_soon_threadsafe=loop.call_soon_threadsafe,
        new_nonce=lambda: secrets.token_urlsafe(24),
    )
    yield opened
    opened.close()


def test_c16_checks_that_wait_are_bounded_and_then_refused(file: PasswordFile, loop: Loop) -> None:
    go_on = threading.Event()
    at_work: set[str] = set()

    def slow(stored: StoredHash, password: bytes) -> bool:
        at_work.add(threading.current_thread().name)
        assert go_on.wait(60)
        return False

    file._verify = slow
    verdicts: list[Verdict] = []
    for _ in range(WAITING_CHECKS_MAX + 50):
        file.authenticate("c", "six", b"wrong", verdicts.append)
    assert [verdict.reason_code for verdict in verdicts] == [reasons.SERVER_BUSY] * 50
    go_on.set()
    for _ in range(WAITING_CHECKS_MAX):
        loop.run_one()
    assert len(verdicts) == WAITING_CHECKS_MAX + 50
    assert not any(verdict.ok for verdict in verdicts)
    assert len(at_work) <= 2


def test_c16_an_unknown_user_takes_the_path_of_a_wrong_password(
    file: PasswordFile, loop: Loop
) -> None:
    """EMQX CVE-2021-46434: one hash each, of a cost that some user has, and the same answer."""
    computed: list[tuple[int, tuple[int, ...]]] = []

    def counted(stored: StoredHash, password: bytes) -> bool:
        computed.append((stored.scheme, stored.cost))
        return stored.text == MOSQUITTO_6 and password == PASSWORD

    file._verify = counted
    costs = {(parse(line).scheme, parse(line).cost) for line in KINDS.values()}
    strangers: dict[str, tuple[int, tuple[int, ...]]] = {}
    for turn in range(2):
        for name in [*KINDS, *(f"stranger{number}" for number in range(100))]:
            verdicts: list[Verdict] = []
            before = len(computed)
            file.authenticate("c", name, b"wrong", verdicts.append)
            assert not verdicts  # not at once
            loop.run_one()
            (verdict,) = verdicts
            assert not verdict.ok and verdict.identity == ""
            assert verdict.reason_code == reasons.BAD_USER_NAME_OR_PASSWORD
            assert len(computed) == before + 1
            if name not in KINDS:
                assert strangers.setdefault(name, computed[-1]) == computed[-1], turn
    assert set(strangers.values()) == costs  # none stands out by what it costs


def test_c16_on_the_wire_an_unknown_user_looks_like_a_wrong_password(
    tmp_path: Path, start_broker: Start
) -> None:
    path = tmp_path / "passwords"
    path.write_text(f"ann:{MOSQUITTO_6}\n")
    scene = start_broker(HOLDFAST__AUTH__PASSWORD_FILE=str(path))
    for version, code in ((5, reasons.BAD_USER_NAME_OR_PASSWORD), (4, 4)):
        answers = []
        for name in ("ann", "nobody", "", "ANN", "ann "):
            client = RawClient(scene.broker.port, "c", version=version)
            connack = client.connect(username=name, password=b"wrong", reason=code)
            client.expect_closed()
            answers.append(repr(connack))
        assert len(set(answers)) == 1, answers


@pytest.mark.parametrize("kind", KINDS)
def test_c16_secrets_are_compared_in_constant_time(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """mosquitto 1.4.15. The only thing that looks at a key is `hmac.compare_digest`."""
    stored = parse(KINDS[kind])
    compared: list[bytes] = []

    def compare(first: Any, second: Any) -> bool:
        compared.append(second)
        return True

    replace_in(monkeypatch, password_hashes, "hmac", compare_digest=compare)
    assert password_hashes.verify(stored, b"wrong")  # it alone decides
    assert len(compared) == 1
    assert len(compared[0]) == len(stored.key)


def test_c16_scram_compares_its_proof_in_constant_time(monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[int] = []

    def compare(first: Any, second: Any) -> bool:
        compared.append(len(first))
        return hmac.compare_digest(first, second)

    replace_in(monkeypatch, scram, "hmac", compare_digest=compare)
    accounts = Accounts({"user": parse(SCRAM)}, KEY)
    for name in ("user", "nobody"):
        client = ScramClient(name, "wrong")
        exchange = scram.ScramExchange(accounts.scram_account, "nonce")
        steps: list[Any] = []
        exchange.step(client.first(), steps.append)
        exchange.step(client.final(steps[-1].data), steps.append)
        assert steps[-1].reason_code >= 0x80
    assert compared == [scram.KEY_BYTES] * 2
