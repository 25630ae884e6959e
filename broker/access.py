"""The files that say who may come in and do what: read together, checked, and only then in force.

Must never leave the broker more open than it was: a file that cannot be read or understood keeps it
from starting, and at a reload everything stays as it was, in every file. Read next: `broker.auth`
and `broker.acl` (who judge), `broker.passwords` (one of the files).
"""

import os
import secrets
import stat
from collections.abc import Callable
from typing import Final

from broker import acl, passwords
from broker.accounts import Accounts
from broker.acl import AclError, AclPolicy, Rules
from broker.auth import AllowAll, AllowAllPolicy, AllowNobody, PasswordFile, PlainNames
from broker.config import Config
from broker.hashes import StoredHash
from broker.log import Log
from broker.ports import Authenticator, Policy

ACL_BYTES_MAX: Final = 16 << 20  # half a million lines; a larger file is a mistaken path
KEY_BYTES: Final = 32
_READ: Final = stat.S_IRGRP | stat.S_IROTH
_WRITE: Final = stat.S_IWGRP | stat.S_IWOTH
KEY_FILE: Final = "auth-key"  # in the data directory


class AccessError(Exception):
    """A password or ACL file that cannot be used; the message is one line naming it."""


class Files:
    """What the configured files hold; None where none is configured."""

    __slots__ = ("rules", "users", "warnings")

    def __init__(self, password_path: str | None, acl_path: str | None) -> None:
        """Read and check all of them; raise `AccessError`."""
        self.users: dict[str, StoredHash] | None = None
        self.rules: Rules | None = None
        self.warnings: list[str] = []
        if password_path is not None:
            try:
                self.users = passwords.load(password_path)
            except passwords.PasswordFileError as problem:
                raise AccessError(str(problem)) from None
            self._look_at_mode("password file", password_path, _READ | _WRITE)
        if acl_path is not None:
            self.rules = _read_acl(acl_path)
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


class Access:
    """The authenticator and the policy that a configuration asks for, and how they change."""

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
        self.authenticator: Authenticator = AllowAll()
        self.policy: Policy = AllowAllPolicy()
        files = Files(self._password_path, self._acl_path)
        self.warnings: list[str] = files.warnings
        if files.users is not None:
            self._password_file = PasswordFile(
                Accounts(files.users, key),
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

    def reload(self) -> dict[str, int]:
        """Read the files again and return what they hold, for the log.

        Raises `AccessError`, and then nothing has changed. What is in force is seen by the next
        question: who connects, publishes, subscribes or is delivered to from now on. Connected
        clients stay connected.
        """
        files = Files(self._password_path, self._acl_path)
        accounts = None if files.users is None else Accounts(files.users, self._key)
        # Nothing below can fail.
        self.warnings = files.warnings
        loaded: dict[str, int] = {}
        if accounts is not None and self._password_file is not None:
            self._password_file.accounts = accounts
            loaded["users"] = len(accounts)
        if files.rules is not None and self._acl_policy is not None:
            self._acl_policy.rules = files.rules
            loaded["rules"] = files.rules.count
        return loaded

    def close(self) -> None:
        """End the threads; checks still waiting get no answer."""
        if self._password_file is not None:
            self._password_file.close()


def open_files(config: Config, log: Log, call_soon_threadsafe: Callable[..., object]) -> Access:
    """Return what a broker starts with, its data directory locked; raise `AccessError`."""
    key = b""
    if config.shell.password_file is not None:
        key, problem = secret_key(config.shell.data_dir)
        if problem is not None:
            log.warning("access", f"{problem}; going on with a key for this run only")
    opened = Access(config, key=key, call_soon_threadsafe=call_soon_threadsafe)
    for warning in opened.warnings:
        log.warning("access", warning)
    return opened


def reload_files(opened: Access, log: Log) -> None:
    """Do what SIGHUP asks for: all files of now, or one error in the log and those of before."""
    if not opened.has_files:
        log.info("reload", "nothing to reload: there is no password or ACL file")
        return
    try:
        loaded = opened.reload()
    except AccessError as problem:
        log.error("reload_failed", f"{problem}; users and rules stay as they were")
        return
    for warning in opened.warnings:
        log.warning("access", warning)
    log.info("reload", "files of users and rules read again", **loaded)


def check(config: Config) -> list[str]:
    """Check the files of a configuration and return the warnings; raise `AccessError`."""
    return Files(config.shell.password_file, config.shell.acl_file).warnings


def secret_key(data_dir: str | os.PathLike[str]) -> tuple[bytes, str | None]:
    """Return the key of a data directory, made at its first use, and what went wrong, if anything.

    A key that cannot be kept (a full disk) is good until the next start: then a patient observer
    sees the salts of names that do not exist change.
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


def _read_acl(path: str) -> Rules:
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
        return acl.parse(text, f"acl file {path}")
    except AclError as problem:
        raise AccessError(str(problem)) from None


def _deeds(bits: int) -> str:
    """Return what these bits of a mode let others do, in words."""
    if bits & _READ and bits & _WRITE:
        return "read and write"
    return "write" if bits & _WRITE else "read"
