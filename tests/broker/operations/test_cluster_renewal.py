"""A new log begins with all that one node has, its tail included."""

from contextlib import closing
from pathlib import Path

import pytest

from broker.operations import cluster_renewal
from storage.errors import StorageError
from storage.local.data_directory import DataDirectory
from storage.local.opening import open_database
from storage.replicated import anchors, applied, batch_codec
from storage.replicated.applied import Reached
from storage.replicated.record import BATCH, CLAIM, PART, Position, Record, after
from storage.replicated.roles.terms import Anchor
from storage.replicated.tail import Tail
from storage.tables.tables import FAMILIES, META


def fill(path: Path) -> Position:
    """Make a node whose database has a claim, and whose tail goes on; return where it ends."""
    end = Position()
    with closing(DataDirectory(path)) as directory:
        opened = open_database(directory, families=FAMILIES)
        with closing(opened.watermark), closing(opened.store), closing(Tail(path / "tail")) as tail:
            whole = batch_codec.encode([(META, b"2", b"two")])
            bodies = [
                (CLAIM, b"n" * 16),
                (BATCH, batch_codec.encode([(META, b"1", b"one")])),
                (PART, whole[:5]),
                (BATCH, whole[5:]),
                (PART, whole[:5]),  # of a batch that was never whole
            ]
            for kind, body in bodies:
                record = Record(kind, 1, end.index + 1, end.digest, "ann", body)
                data = record.encode()
                end = after(record, data)
                tail.append(end.index, data)
                if kind == CLAIM:
                    applied.apply(opened.store, set(FAMILIES), (), Reached(end, 7))
                    anchors.save(opened.store, [Anchor(end, 7)])
            tail.sync()
    return end


def test_a_renewed_database_has_what_its_tail_had_and_begins_a_log(tmp_path: Path) -> None:
    fill(tmp_path)
    assert cluster_renewal.renew(tmp_path) == (4, 2)
    with closing(DataDirectory(tmp_path)) as directory:
        opened = open_database(directory, families=FAMILIES)
        with closing(opened.watermark), closing(opened.store) as store:
            assert store.get_many(META, [b"1", b"2"]) == [b"one", b"two"]
            position, place = applied.load_reached(store)
            assert (position.epoch, position.index, place) == (1, 0, 0)
            assert position.digest != Position().digest
            assert anchors.load(store) == []
    assert not (tmp_path / "tail").exists()


def test_what_cannot_be_renewed_is_told_and_left_alone(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="no database"):
        cluster_renewal.renew(tmp_path / "none")
    assert not (tmp_path / "none").exists()
    with closing(DataDirectory(tmp_path)) as directory:
        opened = open_database(directory, families=FAMILIES)
        opened.store.close()
        opened.watermark.close()
        with pytest.raises(StorageError, match="in use"):
            cluster_renewal.renew(tmp_path)
    with pytest.raises(StorageError, match="nothing to renew"):
        cluster_renewal.renew(tmp_path)
