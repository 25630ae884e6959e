"""The password file and the ACL file: read together, checked, and only then put in force.

Must never leave the broker more open than it was: the broker does not start with a file that cannot
be read or parsed, and a reload that finds one changes nothing. A reload is done when it returns: no
packet is handled in between, so nobody is served by rules that the operator has replaced. Read
next: `broker.security.authenticators` and `broker.security.acl` (who judge),
`broker.security.password_file` (one of the files).
"""

import os
import secrets
import stat
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final

from broker.configuration.config import Config
from broker.observe.structured_log import Log
from broker.security import acl, password_file
from broker.security.accounts import Accounts
from broker.security.acl import AclError, AclPolicy, Rules
from broker.security.authenticators import (
    AllowAll,
    AllowAllPolicy,
    AllowNobody,
    PasswordFile,
    PlainNames,
)
from broker.security.password_hashes import StoredHash
from session.ports import Authenticator, Policy

ACL_BYTES_MAX: Final = 16 << 20  # half a million lines; a larger file is a mistaken path
KEY_BYTES: Final = 32
_READ: Final = stat.S_IRGRP | stat.S_IROTH
_WRITE: Final = stat.S_IWGRP | stat.S_IWOTH
KEY_FILE: Final = "auth-key"  # in the data directory


class AccessError(Exception):
    """A password or ACL file that cannot be used; the message is one line naming it."""


class Files:
    """What the configured files hold; None where none is configured."""

    __slots__ = ("accounts", "rules", "warnings")

    def __init__(
        self,
        password_path: str | None,
        acl_path: str | None,
        key: bytes,
        known: Mapping[str, StoredHash] = MappingProxyType({}),
        known_rules: Rules | None = None,
    ) -> None:
        """Read and check all of them; raise `AccessError`.

        `key` is for `Accounts`; the lines of `known` users and rules are not checked again.
        """
        self.accounts: Accounts | None = None
        self.rules: Rules | None = None
        self.warnings: list[str] = []
        if password_path is not None:
            try:
                self.accounts = Accounts(password_file.load(password_path, known), key)
            except password_file.PasswordFileError as problem:
                raise AccessError(str(problem)) from None
            self._look_at_mode("password file", password_path, _READ | _WRITE)
        if acl_path is not None:
            self.rules = _read_acl(acl_path, known_rules)
            self._look_at_mode("acl file", acl_path, _WRITE)
        if self.rules is not None and self.rules.users and password_path is None:
            self.warnings.append(
                f"acl file {acl_path}: rules for users, but no password file:"
                " a client is whoever it says, unless its certificate does"
            )

    def _look_at_mode(self, kind: str, path: str, unwanted: int) -> None:
        try:
            mode = stat.S_IMODE(os.stat(path).st_mode)
        except OSError:
            return  # replaced since it was read: the next reload looks again
        if mode & unwanted:
            self.warnings.append(
                f"{kind} {path}: mode {mode:04o} lets others {_deeds(mode & unwanted)} it"
            )


class Loaded:
    """What a reload has put in force."""

    __slots__ = ("counts", "revoked", "warnings")

    def __init__(
        self, counts: dict[str, int], revoked: frozenset[str], warnings: list[str]
    ) -> None:
        self.counts: dict[str, int] = counts  # for the log
        self.revoked: frozenset[str] = revoked  # users that are gone or have another password
        self.warnings: list[str] = warnings


class Access:
    """The authenticator and the policy of a configuration, and their reload."""

    def __init__(
        self,
        config: Config,
        *,
        key: bytes,
        call_soon_threadsafe: Callable[..., object],
        new_nonce: Callable[[], str] = lambda: secrets.token_urlsafe(24),
    ) -> None:
        """Read the files; raise `AccessError`. `key` as for `Accounts`; the rest as `PasswordFile`.

        `warnings` holds what the operator should be told, one line each.
        """
        shell = config.shell
        self._password_path: Final = shell.password_file
        self._acl_path: Final = shell.acl_file
        self._key: Final = key
        self._password_file: PasswordFile | None = None
        self._acl_policy: AclPolicy | None = None
        # Without passwords a name is only a claim; it counts where ACL rules use names.
        self.authenticator: Authenticator = AllowAll(names_count=self._acl_path is not None)
        self.policy: Policy = AllowAllPolicy()
        files = self._read()
        self.warnings: list[str] = files.warnings
        if files.accounts is not None:
            self._password_file = PasswordFile(
                files.accounts,
                allow_anonymous=config.settings.allow_anonymous,
                threads_max=shell.hash_threads,
                call_soon_threadsafe=call_soon_threadsafe,
                new_nonce=new_nonce,
            )
            self.authenticator = self._password_file
        elif not config.settings.allow_anonymous:
            self.authenticator = AllowNobody()
        if files.rules is not None:
            self._acl_policy = AclPolicy(files.rules)
            self.policy = self._acl_policy
        if self.has_files:
            self.authenticator = PlainNames(self.authenticator)

    @property
    def has_files(self) -> bool:
        """Return whether there is anything to reload."""
        return self._password_file is not None or self._acl_policy is not None

    def reload(self) -> Loaded:
        """Read the files again and put them in force; raise `AccessError` and change nothing.

        New rules hold for every later CONNECT, PUBLISH, SUBSCRIBE and delivery, and for passwords
        that are being checked. The caller ends the connections of users whose password has changed.
        """
        files = self._read()
        counts: dict[str, int] = {}
        revoked: frozenset[str] = frozenset()
        if files.accounts is not None and self._password_file is not None:
            revoked = self._password_file.accounts.revoked_by(files.accounts)
            self._password_file.accounts = files.accounts
            counts["users"] = len(files.accounts)
        if files.rules is not None and self._acl_policy is not None:
            self._acl_policy.rules = files.rules
            counts["rules"] = files.rules.count
        return Loaded(counts, revoked, files.warnings)

    def _read(self) -> Files:
        accounts = None if self._password_file is None else self._password_file.accounts
        known = {} if accounts is None else accounts.users
        rules = None if self._acl_policy is None else self._acl_policy.rules
        try:
            return Files(self._password_path, self._acl_path, self._key, known, rules)
        except MemoryError:
            raise AccessError("not enough memory to read the files of users and rules") from None

    def close(self) -> None:
        """End the threads; checks still waiting get no answer."""
        if self._password_file is not None:
            self._password_file.close()


def open_files(config: Config, log: Log, call_soon_threadsafe: Callable[..., object]) -> Access:
    """Read the files for a broker that starts (data directory locked); raise `AccessError`."""
    key = b""
    if config.shell.password_file is not None:
        key, problem = secret_key(config.shell.data_dir)
        if problem is not None:
            log.warning("access", f"{problem}; going on with a key for this run only")
    opened = Access(config, key=key, call_soon_threadsafe=call_soon_threadsafe)
    for warning in opened.warnings:
        log.warning("access", warning)
    return opened


def reload_files(
    opened: Access, log: Log, send_away: Callable[[frozenset[str]], None]
) -> tuple[str, str]:
    """Reload after SIGHUP: take all files, or log an error and keep the old ones.

    `send_away` ends the connections of users whose line is gone or another. There has to be a file:
    `Access.has_files`. Returns what was read, and what is wrong; one of them is "".
    """
    assert opened.has_files
    try:
        loaded = opened.reload()
    except AccessError as problem:
        wrong = f"{problem}; users and rules stay as they were"
        log.error("reload_failed", wrong)
        return "", wrong
    if loaded.revoked:
        send_away(loaded.revoked)
    for warning in loaded.warnings:
        log.warning("access", warning)
    counts = {**loaded.counts, "revoked": len(loaded.revoked)}
    log.info("reload", "files of users and rules read again", **counts)
    return ", ".join(f"{count} {what}" for what, count in counts.items()), ""


def check(config: Config) -> list[str]:
    """Check the files of a configuration and return the warnings; raise `AccessError`."""
    return Files(config.shell.password_file, config.shell.acl_file, b"").warnings


def secret_key(data_dir: str | os.PathLike[str]) -> tuple[bytes, str | None]:
    """Return the key of a data directory, made at its first use, and what went wrong, if anything.

    A key that cannot be stored (a full disk) is used until the next start. The salts of names that
    do not exist change then, by which an observer could tell them from users.
    """
    path = os.path.join(data_dir, KEY_FILE)
    try:
        with open(path, "rb") as stream:
            key = stream.read(KEY_BYTES + 1)
        if len(key) == KEY_BYTES:
            return key, None
    except FileNotFoundError:
        pass
    except OSError as problem:
        return secrets.token_bytes(KEY_BYTES), f"{path}: {problem.strerror}"
    key = secrets.token_bytes(KEY_BYTES)
    temporary = f"{path}.new"
    try:
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "wb") as stream:
            stream.write(key)
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(temporary, path)
    except OSError as problem:
        return key, f"{path}: {problem.strerror}"
    return key, None


def _read_acl(path: str, known: Rules | None) -> Rules:
    try:
        with open(path, "rb") as stream:
            content = stream.read(ACL_BYTES_MAX + 1)
        text = content.decode()
    except OSError as problem:
        raise AccessError(f"acl file {path}: {problem.strerror}") from None
    except UnicodeDecodeError:
        raise AccessError(f"acl file {path}: expected UTF-8 text") from None
    if len(content) > ACL_BYTES_MAX:
        raise AccessError(f"acl file {path}: larger than {ACL_BYTES_MAX} bytes")
    try:
        return acl.parse(text, f"acl file {path}", known)
    except AclError as problem:
        raise AccessError(str(problem)) from None


def _deeds(bits: int) -> str:
    """Return in words what these mode bits let others do."""
    if bits & _READ and bits & _WRITE:
        return "read and write"
    return "write" if bits & _WRITE else "read"
