"""Who may publish and receive what: mosquitto's format and order of judgement, and odd names.

The reference is a list of rules looked at one by one; the policy's trees have to agree with it.
"""

from itertools import product
from typing import Final

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from broker.security.acl import AclError, AclPolicy, Node, Rules, Section, parse
from mqtt.topics import matches

LEVELS: Final = ("a", "b", "c9", "anna", "")
TOPICS: Final = tuple(
    topic
    for depth in (1, 2, 3)
    for topic in map("/".join, product((*LEVELS, "$s"), repeat=depth))
    if topic
)


def policy(*lines: str) -> AclPolicy:
    """Return the policy of a file of these lines."""
    return AclPolicy(parse("\n".join(lines), "acl file x"))


def rights(rules: AclPolicy, identity: str, client_id: str, topic: str) -> str:
    """Return what the client may do with a topic, as "r", "w", "rw" or ""."""
    return "r" * rules.may_receive(identity, client_id, topic) + "w" * rules.may_publish(
        identity, client_id, topic
    )


# The format.


@pytest.mark.parametrize(
    ("line", "topic", "allowed"),
    [
        ("topic a", "a", "rw"),
        ("topic readwrite a", "a", "rw"),
        ("topic read", "read", "rw"),  # a topic called "read"
        ("  topic read a", "a", "r"),
        ("topic   read    a b  ", "a b", "r"),
        ("topic read a b", "a b", "r"),
        ("topic read a \t\r", "a", "r"),
        ("topic read deny x", "deny x", "r"),  # a topic called "deny x"
        ("topic read //", "//", "r"),
        ("topic deny $SYS/#", "$SYS/broker", ""),
        ("topic read $share/g/a", "$share/g/a", "r"),
        ("topic write a\nuser a b\ntopic read a", "a", "w"),  # the rest is for "a b"
        ("topic write a\nuser #x\ntopic read a", "a", "w"),
        ("topic write a\nuser a:b\ntopic read a", "a", "w"),
        ("pattern read a/%c/%u/#", "a/c9/anna/x", "r"),
        ("pattern read no/substitution", "no/substitution", "r"),
        ("topic read a%c", "a%c", "r"),  # only `pattern` substitutes
        ("topic read a\n# comment", "a", "r"),
        ("topic read a\n#comment", "a", "r"),
        ("topic read a\n", "a", "r"),
        ("topic read a\n   ", "a", "r"),
        ("topic read " + "/" * 200, "/" * 200, "r"),
    ],
)
def test_lines_mosquitto_reads_mean_the_same_here(line: str, topic: str, allowed: str) -> None:
    rules = policy(line)
    identity = "anna" if line.startswith("pattern") else ""
    assert rights(rules, identity, "c9", topic) == allowed
    assert rights(rules, identity, "c9", "another") == ""


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ("topic", "expected a topic filter"),
        ("topic   ", "expected a topic filter"),
        ("pattern", "expected a topic filter"),
        ("user", "expected a name after 'user'"),
        ("user  ", "expected a name after 'user'"),
        ("topic a b", "'a': expected 'read', 'write', 'readwrite' or 'deny'"),
        ("topic READ a", "'READ': expected 'read'"),
        ("topic none a", "'none': expected 'read'"),
        ("topic \tread a", r"'\tread': expected 'read'"),
        ("topic read a#", "'#' must be a whole level"),
        ("topic read a/#/b", "'#' must be last"),
        ("topic read a # comment", "'#' must be a whole level"),
        ("pattern read a+/%c", "'+' must be a whole level"),
        ("topic read a\0b", "U+0000"),
        ("topic read a\x01b", "control characters"),
        ("user a\x7f", "control characters"),
        ("topic read " + "/" * 201, "202 levels: expected at most 201"),
        ("topic read " + "x" * 65_536, "65536 bytes"),
        ("pattern read a/%c-x", "level '%c-x': expected '%c' or '%u' to be the whole level"),
        ("pattern read %c%u", "expected '%c' or '%u' to be the whole level"),
        ("topics read a", "'topics': expected 'topic', 'user' or 'pattern'"),
        ("TOPIC read a", "'TOPIC': expected"),
        ("topic\tread\ta", "expected 'topic'"),
        ("\ttopic read a", "expected 'topic'"),
        (" # indented", "'#': expected"),
        ("\ufefftopic read a", "expected 'topic'"),
        ("allow all", "'allow': expected"),
    ],
)
def test_a_garbled_line_is_an_error_that_names_file_and_line(line: str, complaint: str) -> None:
    with pytest.raises(AclError) as caught:
        parse(f"topic read good\n\n{line}\ntopic read more", "acl file /etc/acl")
    assert str(caught.value).startswith("acl file /etc/acl line 3: ")
    assert complaint in str(caught.value)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 200


def test_lines_may_end_as_on_other_systems() -> None:
    rules = AclPolicy(parse("topic read a\r\nuser u\r\ntopic write b\r\n", "x"))
    assert rights(rules, "", "c", "a") == "r"
    assert rights(rules, "u", "c", "b") == "w"


@pytest.mark.parametrize("text", ["", "\n\n", "# nothing\n", "user anna\n", "topic deny a\n"])
def test_a_file_without_grants_denies_everything(text: str) -> None:
    rules = AclPolicy(parse(text, "x"))
    assert not rules.is_open
    for identity in ("", "anna"):
        for topic in ("a", "b/c", "$SYS/broker/uptime"):
            assert rights(rules, identity, "c", topic) == ""
            assert not rules.may_subscribe(identity, "c", topic)
        assert not rules.may_subscribe(identity, "c", "#")


# Judgement.


def test_topics_before_the_first_user_are_for_the_nameless_only() -> None:
    rules = policy("topic read a", "user anna", "topic write a", "user ben", "topic a")
    assert [rights(rules, who, "c", "a") for who in ("", "anna", "ben", "zoe")] == [
        "r", "w", "rw", "",
    ]  # fmt: skip


def test_sections_of_the_same_user_add_up() -> None:
    rules = policy("user u", "topic read x", "user v", "topic read z", "user u", "topic write x")
    assert rights(rules, "u", "c", "x") == "rw"


def test_patterns_are_everybodys_wherever_they_stand() -> None:
    rules = policy("user u", "pattern read public/#", "topic write x")
    assert [rights(rules, who, "c", "public/a") for who in ("", "u", "v")] == ["r", "r", "r"]


@pytest.mark.parametrize(
    "lines",
    [
        ("topic a/#", "topic deny a/secret"),
        ("topic deny a/secret", "topic a/#"),
        ("topic deny a/secret", "pattern a/#"),
        ("pattern deny a/secret", "pattern a/#"),
        ("pattern a/+", "pattern deny +/secret"),
    ],
)
def test_deny_wins_whatever_the_order_of_the_lines(lines: tuple[str, ...]) -> None:
    rules = policy(*lines)
    assert rights(rules, "", "c", "a/secret") == ""
    assert rights(rules, "", "c", "a/other") == "rw"


def test_a_topic_grant_of_the_user_comes_before_a_pattern_that_denies() -> None:
    """mosquitto looks at a user's own lines first."""
    rules = policy("pattern deny a/secret", "pattern a/#", "user u", "topic read a/#")
    assert rights(rules, "u", "c", "a/secret") == "r"
    assert rights(rules, "v", "c", "a/secret") == ""


@pytest.mark.parametrize(
    ("rule", "topic", "matched"),
    [
        ("a/#", "a", True),
        ("a/#", "a/b/c", True),
        ("a/#", "ab", False),
        ("+", "a", True),
        ("+", "/", False),
        ("+/b", "/b", True),
        ("a/+/c", "a//c", True),
        ("a/+/c", "a/c", False),
        ("//", "//", True),
        ("#", "$SYS/x", False),
        ("+/x", "$SYS/x", False),
        ("$SYS/#", "$SYS/x", True),
        ("$SYS/#", "$SYSX", False),
        ("a", "A", False),
    ],
)
def test_rules_match_as_filters_do(rule: str, topic: str, matched: bool) -> None:
    rules = policy(f"topic {rule}")
    assert rules.may_publish("", "c", topic) is matched
    assert matches(rule, topic) is matched


# Names that clients give themselves.

NAMES: Final = st.text(st.sampled_from("ab+#/$.*[]\\%cu^x\x85é"), min_size=1, max_size=6)


@settings(deadline=None)
@given(client_id=NAMES, other=NAMES, rest=st.sampled_from(["", "/t", "/t/u"]))
def test_a_client_pattern_grants_the_topics_whose_level_is_the_client_id_and_no_others(
    client_id: str, other: str, rest: str
) -> None:
    rules = policy("pattern dev/%c/#")
    for name in (client_id, other):
        levels = f"dev/{name}{rest}".split("/")
        is_level = levels[1] == client_id and "+" not in client_id and "#" not in client_id
        assert rights(rules, "", client_id, "/".join(levels)) == ("rw" if is_level else "")


@settings(deadline=None)
@given(username=NAMES, client_id=NAMES, other=NAMES)
def test_a_user_pattern_grants_the_topics_whose_level_is_the_user_name_and_no_others(
    username: str, client_id: str, other: str
) -> None:
    rules = policy("pattern read home/%u/+")
    odd = any(mark in username + client_id for mark in "+#")
    for name in (username, client_id, other):
        levels = f"home/{name}/x".split("/")
        granted = levels[1:] == [username, "x"] and not odd
        assert rules.may_receive(username, client_id, "/".join(levels)) is granted


@pytest.mark.parametrize("name", ["+", "#", "a/b", "a/#", "/", "x+"])
def test_an_odd_name_gives_no_access_to_others_topics(name: str) -> None:
    rules = policy("pattern dev/%c/#", "pattern home/%u/#", "topic own")
    for topic in ("dev/a", "dev/a/b", "dev/x", "home/a/b", f"dev/{name}", "dev//"):
        assert rights(rules, name, "c", topic) == ""
        assert rights(rules, "", name, topic) == ""
    assert not rules.may_subscribe("", name, "dev/a/#")
    assert not rules.may_subscribe("", name, "dev/#")
    assert rights(rules, "", name, "own") == "rw"


def test_an_empty_user_name_is_no_level() -> None:
    rules = policy("pattern %u/x", "pattern a/%u")
    assert rights(rules, "", "c", "/x") == rights(rules, "", "c", "a/") == ""
    assert not rules.may_subscribe("", "c", "#")


def test_a_client_that_calls_itself_sys_sees_nothing_of_it() -> None:
    rules = policy("pattern %c/#", "pattern %u/x")
    assert rights(rules, "$SYS", "$SYS", "$SYS/x") == ""
    assert rights(rules, "u", "c", "c/x") == "rw"


def test_only_patterns_substitute() -> None:
    rules = policy("topic read %c/x")
    assert rights(rules, "", "c", "c/x") == ""
    assert rights(rules, "", "c", "%c/x") == "r"


def test_what_a_name_holds_is_not_substituted_again() -> None:
    rules = policy("pattern %u/%c")
    assert rights(rules, "%c", "z", "%c/z") == "rw"
    assert rights(rules, "%c", "z", "z/z") == ""
    assert rights(rules, "u", "%u", "u/u") == ""


def test_an_odd_name_does_not_get_around_a_denial() -> None:
    rules = policy("pattern deny secret/%c/#", "pattern deny private/%u", "pattern #")
    assert rights(rules, "u", "a/b", "secret/a/b/x") == ""
    assert rights(rules, "a/b", "c", "private/a/b") == "rw"  # another depth: not what it denies
    assert rights(rules, "a/b", "c", "private/a") == ""
    assert rights(rules, "u", "c", "secret/other/x") == "rw"
    assert rights(rules, "u", "a+b", "elsewhere") == ""  # as mosquitto: nothing by patterns


# Subscriptions.


@pytest.mark.parametrize(
    ("lines", "topic_filter", "allowed"),
    [
        (("topic read a/b",), "a/b", True),
        (("topic read a/b",), "a/+", True),
        (("topic read a/b",), "#", True),
        (("topic read a/b",), "+/+/#", True),
        (("topic read a/b",), "a/b/#", True),
        (("topic read a/b",), "a", False),
        (("topic read a/b",), "+", False),
        (("topic read a/b",), "a/b/+", False),
        (("topic read a/b",), "b/#", False),
        (("topic read a/b",), "$share/g/a/+", True),
        (("topic read a/b",), "$share/g/b/+", False),
        (("topic read a/b",), "$share/a/b", False),
        (("topic write #",), "a", False),
        (("topic write #",), "#", False),
        (("topic read #",), "$SYS/#", False),
        (("topic read $SYS/#",), "$SYS/broker/+", True),
        (("topic read $SYS/#",), "#", False),
        (("topic read $SYS/#",), "+/broker/uptime", False),
        (("topic read +/b",), "a/#", True),
        (("topic read +/b",), "$x/+", False),
        (("topic read a/#",), "a", True),
        (("topic read a/#",), "+/x/+", True),
        (("pattern read d/%c/+",), "d/+/#", True),
        (("pattern read d/%c/+",), "d/c/x", True),
        (("pattern read d/%c/+",), "d/other/+", False),
        (("pattern read d/%u/+",), "d/#", False),  # for somebody without a user name
        (("topic read #", "topic deny s/#"), "s/#", False),
        (("topic read #", "topic deny s/#"), "s/+/x", False),
        (("topic read #", "topic deny s/#"), "s", False),
        (("topic read #", "topic deny s/#"), "+/x", True),
        (("topic read #", "topic deny s/+"), "s/#", True),
        (("topic read #", "topic deny s/+"), "s/+", False),
        (("topic read #", "topic deny s"), "s", False),
        (("topic read #", "topic deny s"), "s/#", True),
        (("topic read #", "topic deny #"), "#", False),
        (("pattern read #", "topic deny s/#"), "s/#", False),
        (("pattern read #", "pattern deny %c/#"), "c/#", False),
        (("topic read s/x", "pattern deny s/#"), "s/#", True),
    ],
)
def test_a_filter_is_refused_where_nothing_it_matches_may_be_read(
    lines: tuple[str, ...], topic_filter: str, allowed: bool
) -> None:
    assert policy(*lines).may_subscribe("", "c", topic_filter) is allowed


# Agreement with a naive judge.

Line = tuple[str | None, str, str]  # the user, "" for the nameless, None for a pattern; ...


def judge(lines: list[Line], access: str, identity: str, client_id: str, topic: str) -> bool:
    """Go through the lines as the man page says, comparing level by level."""
    for section in (identity, None):
        own = [line for line in lines if line[0] == section]
        if section is None and any(mark in identity + client_id for mark in "+#"):
            return False
        names = {} if section is not None else {"%c": client_id, "%u": identity}
        for _, word, rule in own:
            if word == "deny" and fits(rule.split("/"), topic.split("/"), names, loose=True):
                return False
        for _, word, rule in own:
            if access in word and fits(rule.split("/"), topic.split("/"), names):
                return True
    return False


def fits(rule: list[str], topic: list[str], names: dict[str, str], loose: bool = False) -> bool:
    """Compare a rule to a topic, by recursion."""
    if topic[0].startswith("$") and rule[0] in ("+", "#"):
        return False
    if topic[0].startswith("$") and rule[0] in names and not loose:
        return False
    return fits_from(rule, topic, names, loose)


def fits_from(rule: list[str], topic: list[str], names: dict[str, str], loose: bool) -> bool:
    if not rule or rule == ["#"]:
        return bool(rule) or not topic
    if not topic:
        return False
    wanted = names.get(rule[0], rule[0])
    if rule[0] in names:
        is_same = wanted != "" and (wanted == topic[0] or (loose and "/" in wanted))
    else:
        is_same = wanted in ("+", topic[0])
    return is_same and fits_from(rule[1:], topic[1:], names, loose)


@st.composite
def files(draw: st.DrawFn, words: tuple[str, ...]) -> list[Line]:
    """Draw the lines of a file over a few levels, so that rules meet."""
    plain = (*LEVELS, "$s", "+")
    lines: list[Line] = []
    for _ in range(draw(st.integers(0, 7))):
        section = draw(st.sampled_from(("", "anna", "a/b", None)))
        level = st.sampled_from((*plain, "%c", "%u") if section is None else plain)
        levels = draw(st.lists(level, min_size=1, max_size=3))
        if draw(st.booleans()):
            levels[-1] = "#"
        rule = "/".join(levels)
        if rule:
            lines.append((section, draw(st.sampled_from(words)), rule))
    return lines


def written(lines: list[Line]) -> AclPolicy:
    """Return the policy of the lines, each section in a place of its own."""
    text = [f"topic {word} {rule}" for section, word, rule in lines if section == ""]
    for section, word, rule in lines:
        if section:
            text += [f"user {section}", f"topic {word} {rule}"]
        elif section is None:
            text.insert(0, f"pattern {word} {rule}")
    return policy(*text)


IDENTITIES: Final = ("", "anna", "ben", "a/b", "a+", "$s")
CLIENT_IDS: Final = ("c9", "a", "a/b", "a#", "$s")


@settings(deadline=None)
@given(
    lines=files(("read", "write", "readwrite", "deny")),
    identity=st.sampled_from(IDENTITIES),
    client_id=st.sampled_from(CLIENT_IDS),
)
def test_the_trees_agree_with_a_judge_who_reads_line_by_line(
    lines: list[Line], identity: str, client_id: str
) -> None:
    rules = written(lines)
    for topic in TOPICS:
        expected = judge(lines, "read", identity, client_id, topic)
        assert rules.may_receive(identity, client_id, topic) is expected
        expected = judge(lines, "write", identity, client_id, topic)
        assert rules.may_publish(identity, client_id, topic) is expected


FILTERS: Final = (
    st.lists(st.sampled_from((*LEVELS, "$s", "+")), min_size=1, max_size=3)
    .map("/".join)
    .filter(bool)
    .flatmap(lambda stem: st.sampled_from((stem, stem + "/#", "#")))
)


@settings(deadline=None)
@given(
    lines=files(("read", "write", "deny")),
    topic_filter=FILTERS,
    identity=st.sampled_from(IDENTITIES),
    client_id=st.sampled_from(CLIENT_IDS),
)
def test_no_filter_is_refused_that_something_readable_matches(
    lines: list[Line], topic_filter: str, identity: str, client_id: str
) -> None:
    rules = written(lines)
    assume(not rules.may_subscribe(identity, client_id, topic_filter))
    for topic in TOPICS:
        if matches(topic_filter, topic):
            assert not rules.may_receive(identity, client_id, topic), topic


@settings(deadline=None)
@given(
    lines=files(("read", "write")),
    topic_filter=FILTERS,
    identity=st.sampled_from(("", "anna", "a/b", "a+")),  # names among the levels of TOPICS
    client_id=st.sampled_from(("c9", "a", "a/b", "a#")),
)
def test_where_nothing_is_denied_a_filter_is_allowed_only_if_something_readable_matches(
    lines: list[Line], topic_filter: str, identity: str, client_id: str
) -> None:
    rules = written(lines)
    assume(rules.may_subscribe(identity, client_id, topic_filter))
    assert any(
        rules.may_receive(identity, client_id, topic)
        for topic in ("", *TOPICS)  # "" is no topic, but "/#" and "+" could meet there
        if matches(topic_filter, topic)
    )


def test_deep_topics_and_many_rules_take_no_recursion() -> None:
    deep = "/".join("a" * 201)
    rules = policy(f"topic read {deep[:-2]}/#", "topic read +/+/+/#", "topic deny " + "+/" * 200)
    assert rules.may_receive("", "c", "/".join("a" * 32_000))
    assert rules.may_subscribe("", "c", "/".join("+" * 32_000) + "/#")


def test_new_rules_are_seen_by_the_next_question() -> None:
    rules = policy("topic a")
    assert rules.may_publish("", "c", "a")
    rules.rules = parse("topic b", "x")
    assert not rules.may_publish("", "c", "a")
    assert rules.may_publish("", "c", "b")


@pytest.mark.parametrize("pattern", ["pattern read %u/b", "pattern read %c/b"])
def test_a_plus_may_stand_for_the_name_of_the_client(pattern: str) -> None:
    rules = policy(pattern)
    assert rules.may_receive("anna", "c9", "anna/b") or rules.may_receive("anna", "c9", "c9/b")
    assert rules.may_subscribe("anna", "c9", "+/b")
    assert not rules.may_subscribe("anna", "c9", "+/c")


GOOD_LINES = [
    *(f"{blank}user {name}{end}" for blank in ("", " ") for name in "ab" for end in ("", " \r")),
    *(f"topic {access}{topic}" for access in ("", "deny ", "read ") for topic in ("t", "t/#")),
    *("pattern %u/t", "pattern deny %c", "# user a", ""),
]
LINES = st.sampled_from([*GOOD_LINES * 4, "user ", "topic"])


def dump(node: object) -> object:
    """Return all that rules, a section or a tree hold, as plain values."""
    if isinstance(node, Rules):
        users = {name: dump(section) for name, section in node.users.items()}
        return dump(node.nameless), users, dump(node.patterns), node.count
    if isinstance(node, Section):
        return dump(node.denies), dump(node.grants)
    if isinstance(node, Node):
        children = {level: dump(child) for level, child in node.children.items()}
        others = [dump(other) for other in (node.plus, node.client, node.user)]
        return node.here, node.below, node.reach, children, others
    return node


def read(text: str, known: Rules | None = None) -> Rules | str:
    """Return the rules, or what is said about a mistake."""
    try:
        return parse(text, "file", known)
    except AclError as problem:
        return str(problem)


@given(st.lists(st.lists(LINES, max_size=8), min_size=2, max_size=4), st.booleans())
@settings(max_examples=600)
def test_what_is_taken_over_from_the_rules_before_changes_nothing(
    versions: list[list[str]], grows: bool
) -> None:
    """A reload shares the sections of users whose lines have stayed, and changes none of them."""
    known: Rules | None = None
    for number in range(len(versions)):
        lines = versions[number]
        if grows:
            lines = [line for version in versions[: number + 1] for line in version]
        text = "\n".join(lines)
        wanted = read(text)
        before = dump(known)
        found = read(text, known)
        assert dump(found) == dump(wanted)
        assert dump(known) == before
        if isinstance(found, Rules):
            known = found


def test_the_section_of_a_user_whose_lines_have_stayed_is_taken_over() -> None:
    text = "topic t\nuser a\ntopic t\n# b follows\nuser b\ntopic t\nuser c\ntopic t"
    known = parse(text, "file")
    changed = parse(text.replace("b\ntopic t", "b\ntopic t/x"), "file", known)
    is_same = {name: changed.users[name] is known.users[name] for name in "abc"}
    assert is_same == {"a": True, "b": False, "c": True}
    with pytest.raises(AclError, match=r"^file line 6: "):
        parse(text.replace("user b\ntopic", "user b\ntropic"), "file", known)
