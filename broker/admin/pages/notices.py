"""What was done, told once on the next page: in the memory of this process, by a random key.

A text in an address could be one that somebody else wrote. Must never hold more than `KEPT_MAX`.
Read next: `broker.admin.pages.serving.actions`.
"""

import secrets
from collections import OrderedDict
from typing import Final

KEPT_MAX: Final = 256
KEY_BYTES: Final = 12


class Notices:
    """Texts that wait to be shown."""

    def __init__(self) -> None:
        self._texts: OrderedDict[str, str] = OrderedDict()

    def put(self, text: str) -> str:
        """Keep a text; return its key."""
        while len(self._texts) >= KEPT_MAX:
            self._texts.popitem(last=False)
        key = secrets.token_urlsafe(KEY_BYTES)
        self._texts[key] = text
        return key

    def take(self, key: str) -> str:
        """Return the text of a key, once; empty if there is none."""
        return self._texts.pop(key, "")
