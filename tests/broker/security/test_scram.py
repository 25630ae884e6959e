"""SCRAM-SHA-256 against its RFC, a foreign client, and clients that make things up."""

import base64
import hashlib
import hmac
from collections.abc import Callable

import pytest
import scramp  # type: ignore[import-untyped]
from hypothesis import given, settings
from hypothesis import strategies as st
from scramp.utils import saslprep  # type: ignore[import-untyped]

from broker.security import scram
from broker.security.scram import Account, ScramExchange
from mqtt import reasons
from session.ports import STEP_CONTINUE, STEP_REFUSED, STEP_SUCCESS, Step

# The example of RFC 7677, section 3.
SALT = base64.b64decode("W22ZaJ0SNY7soEsUEjb6gQ==")
CLIENT_NONCE = "rOprNGfwEbeRWgbNEkqO"
OUR_NONCE = "%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0"
CLIENT_FIRST = f"n,,n=user,r={CLIENT_NONCE}".encode()
SERVER_FIRST = f"r={CLIENT_NONCE}{OUR_NONCE},s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096".encode()
PROOF = "dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
CLIENT_FINAL = f"c=biws,r={CLIENT_NONCE}{OUR_NONCE},p={PROOF}".encode()
SERVER_FINAL = b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="


def account(name: str, password: str, *, iterations: int = 4096) -> Account:
    """Return the account of a user with this password."""
    ready = scram.prepared(password).encode()
    stored_key, server_key = scram.derive(ready, SALT, iterations)
    return Account(
        name, iterations=iterations, salt=SALT, stored_key=stored_key, server_key=server_key
    )


def nobody(name: str) -> Account:
    """Return an account that nobody can prove, as `Accounts` makes them up."""
    return Account("", iterations=4096, salt=SALT, stored_key=b"s" * 32, server_key=b"k" * 32)


def server(*accounts: Account, nonce: str = OUR_NONCE) -> ScramExchange:
    """Return the server's side for these users."""
    by_name = {one.name: one for one in accounts}
    return ScramExchange(lambda name: by_name.get(name) or nobody(name), nonce)


def say(exchange: ScramExchange, data: bytes | None) -> Step:
    """Return the answer to a message of the client; there is exactly one, at once."""
    steps: list[Step] = []
    exchange.step(data, steps.append)
    (step,) = steps
    return step


def is_refused(step: Step) -> bool:
    """Tell whether the step says no, and nothing else."""
    return (step.outcome, step.data, step.identity, step.reason_code) == (
        STEP_REFUSED,
        None,
        "",
        reasons.NOT_AUTHORIZED,
    )


def test_the_example_of_the_rfc_byte_for_byte() -> None:
    exchange = server(account("user", "pencil"))
    first = say(exchange, CLIENT_FIRST)
    assert (first.outcome, first.data) == (STEP_CONTINUE, SERVER_FIRST)
    final = say(exchange, CLIENT_FINAL)
    assert (final.outcome, final.data, final.identity) == (STEP_SUCCESS, SERVER_FINAL, "user")


@pytest.mark.parametrize(
    ("name", "password"),
    [
        ("anna", "right"),
        ("a,b=c", "x,y=z"),
        ("IX", "\u2168"),  # both are the same text to SASLprep
        ("bén", "pass\u00a0wörd\u00ad"),
        ("user", " "),
    ],
)
@pytest.mark.parametrize("iterations", [4096, 15_000])
def test_a_foreign_client_proves_its_password_and_checks_ours(
    name: str, password: str, iterations: int
) -> None:
    exchange = server(account(name, password, iterations=iterations))
    client = scramp.ScramClient(["SCRAM-SHA-256"], name, password)
    first = say(exchange, client.get_client_first().encode())
    assert first.data is not None
    client.set_server_first(first.data.decode())
    final = say(exchange, client.get_client_final().encode())
    assert (final.outcome, final.identity) == (STEP_SUCCESS, name)
    assert final.data is not None
    client.set_server_final(final.data.decode())


def test_names_are_compared_as_saslprep_maps_them() -> None:
    exchange = server(account("IX", "pencil"))
    first = say(exchange, f"n,,n=\u2168\u00ad,r={CLIENT_NONCE}".encode())
    assert first.outcome == STEP_CONTINUE
    proof = proof_of("pencil", f"n=\u2168\u00ad,r={CLIENT_NONCE}", first)
    assert say(exchange, proof).identity == "IX"


def proof_of(password: str, bare: str, first: Step, header: str = "biws") -> bytes:
    """Return the client-final message of a client that did everything right."""
    assert first.data is not None
    nonce = first.data.split(b",")[0].decode()[2:]
    without_proof = f"c={header},r={nonce}"
    about = f"{bare},{first.data.decode()},{without_proof}"
    salted = hashlib.pbkdf2_hmac("sha256", password.encode(), SALT, 4096)
    client_key = hmac.digest(salted, b"Client Key", "sha256")
    stored_key = hashlib.sha256(client_key).digest()
    signature = hmac.digest(stored_key, about.encode(), "sha256")
    proof = bytes(a ^ b for a, b in zip(client_key, signature, strict=True))
    return f"{without_proof},p={base64.b64encode(proof).decode()}".encode()


@pytest.mark.parametrize(
    ("header", "encoded"),
    [("n,,", "biws"), ("y,,", "eSws"), ("n,a=user,", "bixhPXVzZXIs")],
)
def test_a_client_may_say_that_it_could_bind_channels_or_that_it_acts_for_itself(
    header: str, encoded: str
) -> None:
    exchange = server(account("user", "pencil"))
    bare = f"n=user,r={CLIENT_NONCE}"
    first = say(exchange, (header + bare).encode())
    final = say(exchange, proof_of("pencil", bare, first, encoded))
    assert final.outcome == STEP_SUCCESS


def test_the_header_may_not_change_between_the_messages() -> None:
    """What a man in the middle would do who hides that channel binding is there."""
    exchange = server(account("user", "pencil"))
    bare = f"n=user,r={CLIENT_NONCE}"
    first = say(exchange, f"y,,{bare}".encode())
    assert is_refused(say(exchange, proof_of("pencil", bare, first, "biws")))


def test_extensions_we_do_not_know_are_skipped_but_proved() -> None:
    exchange = server(account("user", "pencil"))
    bare = f"n=user,r={CLIENT_NONCE},x=ignored,y=="
    first = say(exchange, f"n,,{bare}".encode())
    assert say(exchange, proof_of("pencil", bare, first)).outcome == STEP_SUCCESS


@pytest.mark.parametrize(
    "message",
    [
        b"\xff",
        b"n",
        b"n,,",
        b"n,n=user,r=abc",
        b"p=tls-unique,,n=user,r=abc",
        b"p=tls-exporter,,n=user,r=abc",
        b"x,,n=user,r=abc",
        b",,n=user,r=abc",
        b"n,a=other,n=user,r=abc",
        b"n,b=user,n=user,r=abc",
        b"n,,m=1,n=user,r=abc",
        b"n,,r=abc,n=user",
        b"n,,n=user",
        b"n,,n=,r=abc",
        b"n,,n=user,r=",
        b"n,,n=user,r=a c",
        b"n,,n=user,r=\xc3\xa9",
        b"n,,n=us=er,r=abc",
        b"n,,n=us=2,r=abc",
        b"n,,n=us\0er,r=abc",
        b"n,,n=user,r=abc,",
        b"n,,n=user,r=abc,1=x",
        b"n,,n=user,r=abc,x=",
        b"n,,n=user,r=" + b"a" * 1024,
    ],
)
def test_a_malformed_first_message_is_refused(message: bytes) -> None:
    assert is_refused(say(server(account("user", "pencil")), message))


@pytest.mark.parametrize(
    "change",
    [
        lambda m: m[:-1],
        lambda m: m.replace(b"p=d", b"p=e"),
        lambda m: m.replace(b"p=d", b"p=\xc3\xa9"),
        lambda m: m.replace(b"c=biws", b"c=eSws"),
        lambda m: m.replace(b"c=biws", b"c=!!!!"),
        lambda m: m.replace(b"r=r", b"r=R"),
        lambda m: m.replace(b"k0,", b","),
        lambda m: m.replace(b"k0,p", b"k0,x=added,p"),
        lambda m: m.replace(b"k0,p", b"k0,p=AAAA,p"),
        lambda m: m.replace(b",p=", b",q="),
        lambda m: m + b",x=more",
        lambda m: m + b"\n",
        lambda m: m.replace(b"=,", b"").replace(PROOF.encode(), base64.b64encode(bytes(31))),
        lambda m: b"",
        lambda m: b"\xff",
        lambda m: m + b"=" * 1024,
    ],
)
def test_a_final_message_that_is_not_the_right_one_is_refused(
    change: Callable[[bytes], bytes],
) -> None:
    exchange = server(account("user", "pencil"))
    say(exchange, CLIENT_FIRST)
    assert change(CLIENT_FINAL) != CLIENT_FINAL
    assert is_refused(say(exchange, change(CLIENT_FINAL)))


@pytest.mark.parametrize("name", ["user", "nobody"])
def test_an_unknown_user_and_a_wrong_password_get_the_same_answers(name: str) -> None:
    exchange = server(account("user", "pencil"))
    bare = f"n={name},r={CLIENT_NONCE}"
    first = say(exchange, f"n,,{bare}".encode())
    assert (first.outcome, first.data) == (STEP_CONTINUE, SERVER_FIRST)
    assert is_refused(say(exchange, proof_of("wrong", bare, first)))


def test_nobodys_account_is_refused_whatever_is_proved() -> None:
    stored_key, server_key = scram.derive(b"pencil", SALT, 4096)
    made_up = Account("", iterations=4096, salt=SALT, stored_key=stored_key, server_key=server_key)
    exchange = ScramExchange(lambda name: made_up, OUR_NONCE)
    say(exchange, CLIENT_FIRST)
    assert is_refused(say(exchange, CLIENT_FINAL))


def test_a_password_revoked_during_the_exchange_is_refused() -> None:
    current = [account("user", "pencil")]
    exchange = ScramExchange(lambda name: current[-1], OUR_NONCE)
    say(exchange, CLIENT_FIRST)
    current.append(account("user", "changed"))
    assert is_refused(say(exchange, CLIENT_FINAL))


@pytest.mark.parametrize("nothing", [None, b""])
def test_a_client_that_says_nothing_is_asked_once(nothing: bytes | None) -> None:
    exchange = server(account("user", "pencil"))
    asked = say(exchange, nothing)
    assert (asked.outcome, asked.data) == (STEP_CONTINUE, None)
    assert say(exchange, CLIENT_FIRST).data == SERVER_FIRST
    again = server(account("user", "pencil"))
    say(again, nothing)
    assert is_refused(say(again, nothing))


@settings(deadline=None)
@given(
    messages=st.lists(
        st.one_of(
            st.none(),
            st.binary(max_size=80),
            st.text("npyrcsaiuxe=,23DC+ é\0", max_size=40).map(lambda text: text.encode()),
            st.text("nr=,abc", max_size=12).map(lambda text: b"n,,n=user,r=" + text.encode()),
        ),
        max_size=3,
    )
)
def test_whatever_a_client_says_it_is_not_let_in_without_a_proof(
    messages: list[bytes | None],
) -> None:
    exchange = server(account("user", "pencil"))
    for message in messages:
        step = say(exchange, message)
        assert step.outcome in (STEP_CONTINUE, STEP_REFUSED)
        if step.outcome == STEP_REFUSED:
            break


# SASLprep.


@pytest.mark.parametrize(
    ("text", "result"),
    [  # RFC 4013, section 3
        ("I\u00adX", "IX"),
        ("user", "user"),
        ("USER", "USER"),
        ("\u00aa", "a"),
        ("\u2168", "IX"),
        ("a\u3000b", "a b"),
        ("\u0627\u0627", "\u0627\u0627"),
    ],
)
def test_strings_are_prepared_as_the_rfc_shows(text: str, result: str) -> None:
    assert scram.prepared(text) == scram.mapped(text) == result


@pytest.mark.parametrize(
    "text",
    [
        "",
        "\u00ad",
        "\u0007",
        "\u0627\u0031",
        "a\u0627",
        "\u0627a\u0628",
        "\ue000",
        "\ud800",
        "😀",
        "\u2028",
    ],
)
def test_what_saslprep_prohibits_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="SASLprep"):
        scram.prepared(text)


@settings(deadline=None)
@given(st.text(max_size=12))
def test_a_foreign_implementation_prepares_strings_alike(text: str) -> None:
    try:
        expected = saslprep(text)
    except scramp.ScramException:
        expected = ""
    if expected:
        assert scram.prepared(text) == expected
    else:
        with pytest.raises(ValueError):
            scram.prepared(text)


def test_a_long_name_takes_no_long_time_to_look_up() -> None:
    """341 of these become 6,138 letters; only the tables of `prepared` would look at each."""
    asked: list[str] = []

    def find(name: str) -> Account:
        asked.append(name)
        return nobody(name)

    long = "\ufdfa" * 330
    exchange = ScramExchange(find, OUR_NONCE)
    assert say(exchange, f"n,,n={long},r=abc".encode()).outcome == STEP_CONTINUE
    assert len(asked[0]) == 330 * 18


def test_a_final_message_without_its_nonce_is_refused() -> None:
    exchange = server(account("user", "pencil"))
    say(exchange, CLIENT_FIRST)
    assert is_refused(say(exchange, f"c=biws,p={PROOF}".encode()))
