"""Addresses of pages, with names of clients and topics in them.

A name is in the query and never in the path: a browser takes `..` and `%2F` of a path for its own.
The address of a name that is too long for a request line has its beginning and its digest. Pure.
Read next: `broker.admin.pages.routes`.
"""

import hashlib
from typing import Final
from urllib.parse import quote

NAME_BYTES_MAX: Final = 2048  # of a name in an address; each may take three characters
START: Final = 64  # characters of a longer name that are in its address
DIGEST_BYTES: Final = 16


def url(path: str, **fields: object) -> str:
    """Return an address within the dashboard; fields that are None or empty are left out."""
    said = [
        f"{key}={quote(str(value), safe='')}"
        for key, value in fields.items()
        if value not in (None, "", False)
    ]
    return f"{path}?{'&'.join(said)}" if said else path


def of_client(path: str, client_id: str, **fields: object) -> str:
    """Return the address of a page about one client."""
    return url(path, **fields_of_client(client_id), **fields)


def is_short(text: str) -> bool:
    """Return whether a name fits into an address."""
    return len(text.encode(errors="replace")) <= NAME_BYTES_MAX


def digest(client_id: str) -> str:
    """Return what stands for a client id that is too long."""
    return hashlib.blake2b(client_id.encode(errors="replace"), digest_size=DIGEST_BYTES).hexdigest()


def anchor(kind: str, text: str) -> str:
    """Return an id for an element that is about a name: the same each time, so focus stays."""
    return f"{kind}-{digest(text)[:12]}"


def fields_of_client(client_id: str) -> dict[str, str]:
    """Return the fields of an address that name a client."""
    if is_short(client_id):
        return {"id": client_id}
    return {"start": client_id[:START], "digest": digest(client_id)}
