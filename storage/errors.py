"""Storage errors, of two kinds: the caller retries, or the process ends.

Every caller of a store must handle both. Nothing in storage logs an error and goes on.
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


class CorruptRecord(Unrecoverable):
    """A stored value does not decode: wrong checksum, length or version."""


class GenerationDropped(StorageError):
    """A reader's generation is gone: a policy dropped it, or the iterator is from another store."""
