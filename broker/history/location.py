"""Where the history of a data directory is exported to, and under which node name.

The name is part of every segment's file name, and what is exported is recognised by it: so the
host's name is taken once, when the directory is new, and kept in the file `history.node` beside the
database. A container that gets a new host name at every start stays the same node. The members of
a cluster have one history, each some of its segments. Read next: `storage.history.segment_names`.
"""

import os
import re
import socket
from pathlib import Path
from typing import Final

from broker.configuration.config import ConfigError, Shell
from broker.configuration.option_types import NAME

NODE_FILE: Final = "history.node"
LOCK_FILE: Final = "history.lock"  # held by the process that writes segments
DEFAULT_DIRECTORY: Final = "history"
CHARACTERS_MAX: Final = 64
NOT_IN_A_NAME: Final = re.compile(r"[^A-Za-z0-9_.]")


class Place:
    """A directory of segments, and the node name of the broker that writes there."""

    __slots__ = ("directory", "lock", "node")

    def __init__(self, directory: Path, node: str, lock: Path) -> None:
        self.directory: Path = directory
        self.node: str = node
        self.lock: Path = lock


def clean(host: str) -> str:
    """Return a host name as a node's: letters, digits, `_` and `.`, the first no punctuation."""
    name = NOT_IN_A_NAME.sub("_", host).lstrip("_.")[:CHARACTERS_MAX]
    return name or "node"


def find(shell: Shell) -> Place:
    """Return the place of the configured data directory; changes nothing."""
    data_dir = Path(shell.data_dir)
    directory = (
        data_dir / DEFAULT_DIRECTORY if shell.history_dir is None else Path(shell.history_dir)
    )
    node = shell.history_node
    if node is None and shell.history_cluster is not None:
        node = clean(shell.history_cluster)
    if node is None:
        try:
            node = (data_dir / NODE_FILE).read_text(encoding="ascii").strip()
        except (OSError, UnicodeDecodeError):
            node = ""
        if NAME.fullmatch(node) is None:
            node = clean(socket.gethostname())
    return Place(directory.absolute(), node, (data_dir / LOCK_FILE).absolute())


def check(shell: Shell) -> None:
    """Raise `ConfigError` naming the key if the place cannot be used; changes nothing."""
    place = find(shell)
    where = place.directory
    while not where.exists() and where != where.parent:
        where = where.parent  # it would be made there
    if not where.is_dir():
        raise ConfigError(f"history.dir = {str(place.directory)!r}: {where} is not a directory")
    if not os.access(where, os.R_OK | os.W_OK | os.X_OK):
        raise ConfigError(
            f"history.dir = {str(place.directory)!r}: {where}: expected to be readable and "
            f"writable by user {os.geteuid()}"
        )
    witness = shell.history_witness
    if witness is not None and Path(witness).is_dir():
        raise ConfigError(f"history.witness = {witness!r}: a directory, expected a file")


def settle(shell: Shell) -> Place:
    """Return the place after making its directory and storing its name.

    Raises `ConfigError` naming the key when the directory cannot be written to.
    """
    check(shell)
    place = find(shell)
    try:
        place.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as problem:
        raise ConfigError(f"history.dir = {str(place.directory)!r}: {problem.strerror}") from None
    if shell.history_node is None:
        remember(shell, place.node)
    return place


def remember(shell: Shell, node: str) -> None:
    """Store the name beside the database, unless it is there already."""
    file = Path(shell.data_dir) / NODE_FILE
    try:
        if not file.exists() or file.read_bytes().strip() != node.encode():
            file.write_text(f"{node}\n", encoding="ascii")
    except OSError as problem:
        raise ConfigError(f"{file}: cannot be written: {problem.strerror}") from None
