"""Storage errors, of three kinds: the caller retries, goes on without some rows, or ends.

Every caller of a store must handle the first two where it can, and let the process end where it
cannot. Nothing in storage logs an error and goes on.
"""


class StorageError(Exception):
    """Any failure of the environment below the store."""


class Recoverable(StorageError):
    """The store refused for now (disk full, write stall); the same batch may be written later."""


class WriteStalled(Recoverable):
    """The store cannot keep up with the writes; write the same batch again later."""


class Unrecoverable(StorageError):
    """The store cannot be trusted any more (EIO, failed sync, corruption): fail stop."""


class DataLoss(Unrecoverable):
    """The opened store holds less than was once durable; the text says what is missing."""


class StoreBusy(StorageError):
    """Another process holds the data directory."""


class DamagedRows(StorageError):
    """Some rows cannot be read; the others can, and writing goes on.

    A scan that meets them gives the rows before them in `rows`, and in `resume` the first key known
    from which the store can be read again, None if there is none. What is in between is lost to
    the reader, and stays in the store for an operator.
    """

    def __init__(
        self,
        text: str,
        family: str = "",
        start: bytes = b"",
        resume: bytes | None = None,
        rows: list[tuple[bytes, bytes]] | None = None,
    ) -> None:
        super().__init__(text)
        self.family: str = family  # "" = not known
        self.start: bytes = start  # no row before it is damaged
        self.resume: bytes | None = resume
        self.rows: list[tuple[bytes, bytes]] = rows or []


class CorruptRecord(DamagedRows):
    """A stored value does not decode: wrong checksum, length or version."""


class GenerationDropped(StorageError):
    """A reader's generation is gone: a policy dropped it, or the iterator is from another store."""
