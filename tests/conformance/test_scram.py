"""The client's side of SCRAM-SHA-256, against the example of RFC 7677."""

import pytest

from conformance.scram import ScramClient, ScramError, parse

SERVER_FIRST = (
    b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
)
SERVER_FINAL = b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="


def test_the_example_of_the_rfc_comes_out_byte_for_byte() -> None:
    client = ScramClient("user", "pencil")
    assert client.first() == b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO"
    assert client.final(SERVER_FIRST) == (
        b"c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,"
        b"p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
    )
    client.verify(SERVER_FINAL)


def test_a_server_that_does_not_know_the_password_is_found_out() -> None:
    client = ScramClient("user", "crayon")
    client.final(SERVER_FIRST)
    with pytest.raises(ScramError, match="expected b'v="):
        client.verify(SERVER_FINAL)


def test_nothing_is_verified_before_the_proof() -> None:
    with pytest.raises(ScramError):
        ScramClient("user", "pencil").verify(b"v=")


@pytest.mark.parametrize(
    "server_first",
    [
        b"",
        b"\xff",
        b"e=other-error",
        b"r=other,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096",
        b"r=rOprNGfwEbeRWgbNEkqO,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096",
        b"r=rOprNGfwEbeRWgbNEkqOx,s=W22Z!,i=4096",
        b"r=rOprNGfwEbeRWgbNEkqOx,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=many",
        b"r=rOprNGfwEbeRWgbNEkqOx,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=0",
        b"r=rOprNGfwEbeRWgbNEkqOx,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=99999999",
    ],
)
def test_a_wrong_server_first_message_is_refused(server_first: bytes) -> None:
    with pytest.raises(ScramError):
        ScramClient("user", "pencil").final(server_first)


def test_names_are_escaped_and_values_may_hold_equals_signs() -> None:
    assert ScramClient("a,b=c", "").first() == b"n,,n=a=2Cb=3Dc,r=rOprNGfwEbeRWgbNEkqO"
    assert parse(b"r=x,s=YQ==") == {"r": "x", "s": "YQ=="}
