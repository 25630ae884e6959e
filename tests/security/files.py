"""What brokers with users and rules have in common: their files, and how they are read again."""

from pathlib import Path
from typing import Any, Final

from tests.broker.security.stored import MOSQUITTO_6

PASSWORD: Final = b"right pass"  # of every user here
PATIENCE_S: Final = 20.0


class Files:
    """A password file and an ACL file in a directory of their own."""

    def __init__(self, directory: Path, *users: str, rules: str = "") -> None:
        """`rules` holds the lines of the ACL file, "" = there is none."""
        self.passwords = directory / "passwords"
        self.acl = directory / "acl"
        self.passwords.write_text("".join(f"{user}:{MOSQUITTO_6}\n" for user in users))
        self.passwords.chmod(0o600)
        if rules:
            self.acl.write_text(rules)

    def environment(self) -> dict[str, str]:
        """Return what makes a broker read these files."""
        found = {"HOLDFAST__AUTH__PASSWORD_FILE": str(self.passwords)}
        if self.acl.exists():
            found["HOLDFAST__AUTH__ACL_FILE"] = str(self.acl)
        return found


def login(user: str) -> dict[str, Any]:
    """Return the fields of a CONNECT of this user."""
    return {"username": user, "password": PASSWORD}
