"""Small files: listed, read, replaced at once; on the local disk and through Hadoop."""

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from audit.files import is_local, join, list_files, read_text, remove, write_text


def test_places_with_a_scheme_are_not_local() -> None:
    assert is_local("a/b") and is_local("/a/b") and is_local("file:///a")
    assert not is_local("s3a://bucket/a") and not is_local("hdfs://host/a")
    assert join("s3a://bucket/a/", "b", "c") == "s3a://bucket/a/b/c"


@pytest.mark.parametrize("scheme", ["", "file://", "hadoop"])
def test_what_was_written_is_listed_and_read(
    spark: SparkSession, tmp_path: Path, scheme: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = f"{scheme.replace('hadoop', 'file://')}{tmp_path}"
    if scheme == "hadoop":  # the way of s3a:// and hdfs://, tried on the one file system here
        monkeypatch.setattr("audit.files.is_local", lambda _place: False)
    assert list_files(spark, join(place, "none"), ".json") == []
    write_text(spark, join(place, "deep", "a.json"), "één")
    write_text(spark, join(place, "deep", "a.json"), "twee ✓")
    write_text(spark, join(place, "b.txt"), "")
    write_text(spark, join(place, "_c.json"), "hidden")
    (name,) = list_files(spark, place, ".json")
    assert name.endswith("/deep/a.json")
    assert read_text(spark, name) == "twee ✓"
    assert not list(tmp_path.rglob("*.tmp"))
    remove(spark, join(place, "deep"))
    remove(spark, join(place, "deep"))
    assert not (tmp_path / "deep").exists()
