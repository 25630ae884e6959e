"""Access control: parses mosquitto's `acl_file` and is the policy made of it.

The rules are trees with a node for each topic level. `%c` and `%u` are branches of their own, taken
when a level equals the client identifier or user name. No rule is ever built from a client's name,
so that no name can act as a wildcard. Must never grant what no line grants: an empty file denies
everything, a line that cannot be read is an `AclError`. Pure, and asked at every delivery; there is
no cache. Read next: `broker.security.access_files` (who reads the file, and when).

The order is mosquitto's: first the `topic` lines of the client's user (those for anonymous clients
if it has none), then the `pattern` lines, which hold for all; in each, `deny` before grants. What
no line mentions is denied.
"""

from typing import Final

from mqtt.topics import filter_problem, split_shared

READ: Final = 1
WRITE: Final = 2
DENY: Final = 4

ACCESS: Final = {"read": READ, "write": WRITE, "readwrite": READ | WRITE, "deny": DENY}

LEVELS_MAX: Final = 201  # of a rule: 200 slashes, mosquitto's limit too
_BLANKS: Final = " \t\n\v\f\r"  # what isspace() of C takes off the end of a line
_USER_LINE: Final = "user "
_NEXT_USER: Final = "\nuser "
_CONTROL: Final = frozenset(map(chr, [*range(0x20), 0x7F]))

# What a rule needs to apply: nothing, the client identifier, the user name, or both. `Node.reach`
# holds a bit for each of the four that occurs below.
_CLIENT: Final = 1
_USER: Final = 2


class AclError(Exception):
    """An access control list that cannot be used; the message is one line, naming the line."""


class Node:
    """One level of the rules of a tree, and all that may follow it."""

    __slots__ = ("below", "children", "client", "here", "plus", "reach", "user")

    def __init__(self) -> None:
        self.here: int = 0  # access of the rules that end with this level
        self.below: int = 0  # access of the rules that go on with "#": this level and all below
        self.children: dict[str, Node] = {}
        self.plus: Node | None = None  # "+"
        self.client: Node | None = None  # "%c"
        self.user: Node | None = None  # "%u"
        self.reach: int = 0  # what the rules that grant reading, from here on, need

    def add(self, topic_filter: str, access: int, *, is_pattern: bool) -> None:
        """Enter a rule; called on the root."""
        levels = topic_filter.split("/")
        is_subtree = levels[-1] == "#"
        if is_subtree:
            levels.pop()
        node, path, needs = self, [self], 0
        for level in levels:
            if level == "+":
                node.plus = following = node.plus or Node()
            elif is_pattern and level == "%c":
                node.client = following = node.client or Node()
                needs |= _CLIENT
            elif is_pattern and level == "%u":
                node.user = following = node.user or Node()
                needs |= _USER
            else:
                following = node.children.setdefault(level, Node())
            node = following
            path.append(node)
        if is_subtree:
            node.below |= access
        else:
            node.here |= access
        if access & READ:
            for node in path:
                node.reach |= 1 << needs


class Section:
    """The rules of one user, of anonymous clients, or of all (`pattern`)."""

    __slots__ = ("denies", "grants")

    def __init__(self) -> None:
        self.denies: Node | None = None
        self.grants: Node | None = None

    def add(self, topic_filter: str, access: int, *, is_pattern: bool) -> None:
        """Enter a rule."""
        if access == DENY:
            self.denies = tree = self.denies or Node()
        else:
            self.grants = tree = self.grants or Node()
        tree.add(topic_filter, access, is_pattern=is_pattern)


class Block:
    """A `user` line and the `topic` lines after it, as they were read."""

    __slots__ = ("count", "section", "user")

    def __init__(self, user: str, section: Section, count: int) -> None:
        self.user: str = user
        self.section: Section = section
        self.count: int = count  # of topic lines


class Rules:
    """The rules of one file. Never changed once they are read: two files may share sections."""

    __slots__ = ("blocks", "count", "nameless", "patterns", "users")

    def __init__(self) -> None:
        # By their text: those that say all there is of their user, and nothing of others.
        self.blocks: dict[str, Block] = {}
        self.nameless: Section = Section()  # `topic` lines before the first `user`
        self.users: dict[str, Section] = {}
        self.patterns: Section = Section()
        self.count: int = 0  # topic and pattern lines


class AclPolicy:
    """Judges by the rules of one file at a time; `session.ports.Policy`."""

    def __init__(self, rules: Rules) -> None:
        self.rules: Rules = rules  # replaced as a whole at a reload; the next question sees it
        self.is_open: bool = False

    def may_publish(self, identity: str, client_id: str, topic: str) -> bool:
        """Return whether a rule lets the client write to `topic`, and none forbids it."""
        return self._may(WRITE, identity, client_id, topic)

    def may_receive(self, identity: str, client_id: str, topic: str) -> bool:
        """Return whether a rule lets the client read `topic`, and none forbids it."""
        return self._may(READ, identity, client_id, topic)

    def may_subscribe(self, identity: str, client_id: str, topic: str) -> bool:
        """Return whether the client may hold a subscription to the topic filter `topic`.

        Refused only where no topic the filter matches could ever be received; whatever it does
        match is asked about again at each delivery. A shared filter counts as the filter in it.
        """
        shared = split_shared(topic)
        topic_filter = shared[1] if shared else topic
        levels = topic_filter.split("/")
        is_subtree = levels[-1] == "#"
        if not is_subtree and "+" not in levels:
            return self._may(READ, identity, client_id, topic_filter)
        if is_subtree:
            levels.pop()
        own = self._section(identity)
        if _forbids(own.denies, levels, client_id, identity, is_subtree=is_subtree):
            return False
        if _reaches(own.grants, levels, client_id, identity, is_subtree=is_subtree):
            return True
        patterns = self.rules.patterns
        if is_ambiguous(client_id) or is_ambiguous(identity):
            return False
        if _forbids(patterns.denies, levels, client_id, identity, is_subtree=is_subtree):
            return False
        return _reaches(patterns.grants, levels, client_id, identity, is_subtree=is_subtree)

    def _section(self, identity: str) -> Section:
        if not identity:
            return self.rules.nameless
        return self.rules.users.get(identity, _NOTHING)

    def _may(self, access: int, identity: str, client_id: str, topic: str) -> bool:
        levels = topic.split("/")
        own = self._section(identity)
        if own.denies is not None and _forbids(
            own.denies, levels, client_id, identity, is_subtree=False
        ):
            return False
        if own.grants is not None and _grants(own.grants, levels, client_id, identity) & access:
            return True
        patterns = self.rules.patterns
        if patterns.grants is None or is_ambiguous(client_id) or is_ambiguous(identity):
            return False
        if _forbids(patterns.denies, levels, client_id, identity, is_subtree=False):
            return False
        return _grants(patterns.grants, levels, client_id, identity) & access != 0


def parse(text: str, name: str, known: Rules | None = None) -> Rules:
    """Return the rules of the file whose content is `text`; `AclError` names `name` and the line.

    What mosquitto refuses is refused, and what it reads is read as it does, but for names and
    topics with control characters and for `%c` or `%u` beside other text in a level: those are
    errors here.

    Users whose lines are the same as in `known`, an earlier result, are taken over: that takes a
    tenth of the time.
    """
    rules = Rules()
    repeated: set[str] = set()  # users whose lines stand in several places
    users, blocks = rules.users, rules.blocks
    taken = {} if known is None else known.blocks
    # With an empty line 0 in front every line of a user begins alike.
    at = number = counted = 0
    whole = "\n" + text
    for lines in whole.split(_NEXT_USER):
        block = taken.get(lines)
        if block is None:
            number += whole.count("\n", counted, at)
            counted = at
            read = _USER_LINE + lines if at else lines
            block = _read_block(rules, read, name, number, repeated, is_shared=known is not None)
            if block is not None:
                blocks[lines] = block
        elif block.user in users:
            repeated.add(block.user)
        else:
            users[block.user] = block.section
            blocks[lines] = block
            rules.count += block.count
        if repeated and known is not None:
            return parse(text, name)
        at += len(lines) + len(_NEXT_USER)
    if repeated:
        rules.blocks = {
            lines: block for lines, block in rules.blocks.items() if block.user not in repeated
        }
    return rules


def _read_block(
    rules: Rules, lines: str, name: str, first: int, repeated: set[str], *, is_shared: bool
) -> Block | None:
    """Enter the lines that begin with line number `first`; return them if they are one user's.

    A user who was entered before is added to `repeated`. With `is_shared` that ends it: sections
    of earlier rules, which are in force, must not get more.
    """
    section, user, count = rules.nameless, "", rules.count
    is_block = lines.startswith(_USER_LINE)
    for number, line in enumerate(lines.split("\n"), first):
        line = line.rstrip(_BLANKS)
        if not line or line.startswith("#"):
            continue
        keyword, _, rest = line.lstrip(" ").partition(" ")
        problem: str | None
        if keyword == "user":
            is_block = is_block and not user
            user = rest.strip(_BLANKS)
            problem = _user_problem(user)
            if user in rules.users:
                repeated.add(user)
                if is_shared:
                    return None
            section = rules.users.setdefault(user, Section())
        elif keyword == "topic":
            problem = _enter(section, rest, is_pattern=False)
            rules.count += 1
        elif keyword == "pattern":
            problem = _enter(rules.patterns, rest, is_pattern=True)
            rules.count += 1
            is_block = False
        else:
            problem = f"{_shown(keyword)}: expected 'topic', 'user' or 'pattern'"
        if problem is not None:
            raise AclError(f"{name} line {number}: {problem}")
    return Block(user, section, rules.count - count) if is_block and user else None


def is_ambiguous(name: str) -> bool:
    """Tell whether a client identifier or user name would be a wildcard as a level of a filter.

    Such a client gets nothing by `pattern` lines, as with mosquitto.
    """
    return "+" in name or "#" in name


def _user_problem(name: str) -> str | None:
    if not name:
        return "expected a name after 'user'"
    if not _CONTROL.isdisjoint(name):
        return f"user name {_shown(name)}: expected no control characters"
    return None


def _enter(section: Section, rest: str, *, is_pattern: bool) -> str | None:
    """Enter the rule `[ACCESS] FILTER`, or return what is wrong with it."""
    word, blank, topic_filter = rest.lstrip(" ").partition(" ")
    if not blank:
        word, topic_filter = "readwrite", word
    topic_filter = topic_filter.strip(_BLANKS)
    if not topic_filter:
        return "expected a topic filter"
    access = ACCESS.get(word)
    if access is None:
        return f"{_shown(word)}: expected 'read', 'write', 'readwrite' or 'deny'"
    problem = filter_problem(topic_filter)
    if problem is not None:
        return problem
    if not _CONTROL.isdisjoint(topic_filter):
        return f"topic filter {_shown(topic_filter)}: expected no control characters"
    levels = topic_filter.split("/")
    if len(levels) > LEVELS_MAX:
        return f"topic filter of {len(levels)} levels: expected at most {LEVELS_MAX}"
    if is_pattern:
        for level in levels:
            if ("%c" in level or "%u" in level) and level not in ("%c", "%u"):
                return f"level {_shown(level)}: expected '%c' or '%u' to be the whole level"
    section.add(topic_filter, access, is_pattern=is_pattern)
    return None


def _grants(root: Node, levels: list[str], client_id: str, identity: str) -> int:
    """Return the access that the rules of a tree grant to a topic."""
    access = 0
    # Only a rule that names it grants a topic that starts with "$" [MQTT-4.7.2-1]; no wildcard
    # does, and neither does a client that calls itself "$SYS".
    is_reserved = levels[0][:1] == "$"
    nodes = [root]
    for level in levels:
        following: list[Node] = []
        for node in nodes:
            child = node.children.get(level)
            if child is not None:
                following.append(child)
            if is_reserved:
                continue
            access |= node.below
            if node.plus is not None:
                following.append(node.plus)
            if node.client is not None and level == client_id:
                following.append(node.client)
            if node.user is not None and identity and level == identity:
                following.append(node.user)
        if not following:
            return access
        is_reserved = False
        nodes = following
    for node in nodes:
        access |= node.here | node.below
    return access


def _forbids(
    root: Node | None, levels: list[str], client_id: str, identity: str, *, is_subtree: bool
) -> bool:
    """Return whether a rule of a tree of denials matches everything that a filter matches.

    `levels` are those of a topic, or of a filter without the "#" at its end (`is_subtree`). A name
    with "/" in it is no level; where a denial names it, any level is denied, so that nobody gets
    around one by an odd name.
    """
    if root is None:
        return False
    is_reserved = bool(levels) and levels[0][:1] == "$"
    any_client, any_user = "/" in client_id, "/" in identity
    nodes = [root]
    for level in levels:
        following: list[Node] = []
        for node in nodes:
            child = node.children.get(level)
            if child is not None:
                following.append(child)
            if not is_reserved:
                if node.below:
                    return True
                if node.plus is not None:
                    following.append(node.plus)
            if node.client is not None and (any_client or level == client_id):
                following.append(node.client)
            if node.user is not None and identity and (any_user or level == identity):
                following.append(node.user)
        if not following:
            return False
        is_reserved = False
        nodes = following
    return any(node.below or (node.here and not is_subtree) for node in nodes)


def _reaches(
    root: Node | None, levels: list[str], client_id: str, identity: str, *, is_subtree: bool
) -> bool:
    """Return whether some topic that a filter matches is one that a rule lets the client read.

    `levels` as for `_forbids`. Costs at most a look at each node of the tree.
    """
    if root is None:
        return False
    usable = _usable(client_id, identity)
    is_first = True
    nodes = [root]
    for level in levels:
        is_reserved = is_first and level[:1] == "$"
        following: list[Node] = []
        for node in nodes:
            if node.below & READ and not is_reserved:
                return True
            if level == "+":
                following.extend(_beneath(node, usable, is_first=is_first))
                continue
            child = node.children.get(level)
            if child is not None:
                following.append(child)
            if is_reserved:
                continue
            if node.plus is not None:
                following.append(node.plus)
            if node.client is not None and level == client_id:
                following.append(node.client)
            if node.user is not None and identity and level == identity:
                following.append(node.user)
        if not following:
            return False
        is_first = False
        nodes = following
    if is_subtree and is_first:  # "#" alone
        beneath = _beneath(root, usable, is_first=True)
        return root.below & READ != 0 or any(node.reach & usable for node in beneath)
    if is_subtree:
        return any(node.reach & usable for node in nodes)
    return any((node.here | node.below) & READ for node in nodes)


def _usable(client_id: str, identity: str) -> int:
    """Return which needs of rules (as in `Node.reach`) the client can meet by being a level."""
    needs = 0
    if "/" not in client_id:
        needs |= _CLIENT
    if identity and "/" not in identity:
        needs |= _USER
    usable = 0
    for need in range(4):
        if need & ~needs == 0:
            usable |= 1 << need
    return usable


def _beneath(node: Node, usable: int, *, is_first: bool) -> list[Node]:
    """Return the levels below `node` that "+" stands for; at the first level not those with "$"."""
    found = [child for level, child in node.children.items() if not (is_first and level[:1] == "$")]
    if node.plus is not None:
        found.append(node.plus)
    if node.client is not None and usable & (1 << _CLIENT):
        found.append(node.client)
    if node.user is not None and usable & (1 << _USER):
        found.append(node.user)
    return found


def _shown(text: str) -> str:
    shown = repr(text)
    return shown if len(shown) <= 60 else shown[:57] + "..."


_NOTHING: Final = Section()  # of a user without a section
