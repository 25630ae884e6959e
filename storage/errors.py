"""What can go wrong below the broker, in two kinds: to be retried, and to end the process.

Every caller of a store has to choose between them; nothing in storage logs and goes on.
"""


class StorageError(Exception):
    """Any failure of the environment below the store."""


class Recoverable(StorageError):
    """The store refused for now (disk full, write stall); the same batch may be written later."""


class WriteStalled(Recoverable):
    """The store cannot keep up with what is written; it takes the batch when it has caught up."""


class Unrecoverable(StorageError):
    """The store cannot be trusted any more (EIO, failed sync, corruption): fail stop."""


class DataLoss(Unrecoverable):
    """The store opened below what it once promised to hold; says what is missing."""


class StoreBusy(StorageError):
    """Another process holds the data directory."""


class CorruptRecord(Unrecoverable):
    """A stored value does not decode: wrong checksum, length or version."""


class GenerationDropped(StorageError):
    """A reader's generation is gone: policy dropped it, or the iterator is of another store."""
