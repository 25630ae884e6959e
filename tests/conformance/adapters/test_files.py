"""Password and access control files."""

from conformance.adapters.files import acl_lines, derived, listed, password_lines


def test_a_password_line_is_the_one_mosquitto_makes() -> None:
    (line,) = password_lines({"ann": "secret"}).splitlines()
    name, _, rest = line.partition(":")
    assert name == "ann"
    algorithm, rounds, salt, key = rest[1:].split("$")
    assert (algorithm, rounds, salt) == ("7", "101", "Y29uZm9ybWFuY2Uh")
    assert len(key) == 88
    assert derived({"ann": "secret"})["ann"] == (101, salt, key)
    assert derived(None) == {}


def test_denials_bind_the_nameless_only() -> None:
    assert acl_lines(["a/b"], ["ann"]).splitlines() == [
        "topic deny a/b",
        "topic readwrite #",
        "topic readwrite $SYS/#",
        "user ann",
        "topic readwrite #",
        "topic readwrite $SYS/#",
    ]


def test_an_option_that_is_a_list_or_nothing() -> None:
    assert listed(["a", "b"]) == ["a", "b"]
    assert listed(None) == []
    assert listed(True) == []
