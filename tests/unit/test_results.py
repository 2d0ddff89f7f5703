"""The results file: what is kept, and what is said of a file that cannot be used."""

import os
import sqlite3
from pathlib import Path

import pytest

from kvengine.errors import ConfigError
from kvplan.figures import Figures
from kvplan.results import PointResult, ResultsFile


def a_result(fingerprint: str = "f1", *, finished_unix_s: float = 1.0, preemptions: int = 3) -> PointResult:
    planned = Figures(num_blocks=10, usable_blocks=9, kv_cache_bytes=1000, preemptions=preemptions)
    return PointResult(
        fingerprint=fingerprint,
        series="s1",
        name="test",
        settings={"block_size": 8, "available_kv": None, "prefix_caching": True},
        axes=("block_size",),
        outcome="finished",
        num_requests=2,
        planned=planned,
        environment={"pagedkv": "0"},
        finished_unix_s=finished_unix_s,
    )


def test_what_is_saved_is_found_again_by_its_fingerprint_alone(tmp_path: Path) -> None:
    with ResultsFile(tmp_path / "new" / "r.db", create=True) as results:
        results.save(a_result("f1"))
        assert results.find("f2") is None
    with ResultsFile(tmp_path / "new" / "r.db", create=False) as results:
        assert results.find("f1") == a_result("f1")


def test_points_come_in_the_order_in_which_they_were_finished(tmp_path: Path) -> None:
    with ResultsFile(tmp_path / "r.db", create=True) as results:
        results.save(a_result("a", finished_unix_s=2.0))
        results.save(a_result("b", finished_unix_s=1.0))
        results.save(a_result("a", finished_unix_s=3.0, preemptions=7))

        assert [(point.fingerprint, point.planned.preemptions) for point in results.points()] == [("b", 3), ("a", 7)]


def test_two_writers_share_a_file(tmp_path: Path) -> None:
    with ResultsFile(tmp_path / "r.db", create=True) as one, ResultsFile(tmp_path / "r.db", create=True) as other:
        one.save(a_result("a"))
        other.save(a_result("b"))

        assert len(one.points()) == len(other.points()) == 2


def test_a_missing_file_is_not_made_by_reading(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"r\.db: no such results file"):
        ResultsFile(tmp_path / "r.db", create=False)
    assert not (tmp_path / "r.db").exists()


@pytest.mark.parametrize("create", [True, False])
def test_a_file_that_is_not_sqlite_is_refused_and_left_alone(tmp_path: Path, create: bool) -> None:
    file = tmp_path / "r.db"
    file.write_bytes(b"block_size,tokens\n8,100\n" * 100)

    with pytest.raises(ConfigError, match=r"r\.db: not usable as a results file: file is not a database"):
        ResultsFile(file, create=create)
    assert file.read_bytes() == b"block_size,tokens\n8,100\n" * 100


@pytest.mark.parametrize("create", [True, False])
def test_a_database_of_something_else_is_refused_and_left_alone(tmp_path: Path, create: bool) -> None:
    connection = sqlite3.connect(tmp_path / "r.db")
    connection.execute("CREATE TABLE bookmarks (url TEXT)")
    connection.close()

    with pytest.raises(ConfigError, match="a SQLite file, but not one of kvplan's results"):
        ResultsFile(tmp_path / "r.db", create=create)


def test_an_empty_file_becomes_a_results_file_but_is_not_read_as_one(tmp_path: Path) -> None:
    (tmp_path / "r.db").touch()

    with pytest.raises(ConfigError, match="not one of kvplan's results"):
        ResultsFile(tmp_path / "r.db", create=False)
    with ResultsFile(tmp_path / "r.db", create=True) as results:
        assert results.points() == []


def test_a_file_with_damaged_pages_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "r.db"
    with ResultsFile(file, create=True) as results:
        results.save(a_result())
    content = bytearray(file.read_bytes())
    content[4096:] = os.urandom(len(content) - 4096)  # every page but the first: the table's rows
    file.write_bytes(content)

    with pytest.raises(ConfigError, match="not usable as a results file"), ResultsFile(file, create=False) as results:
        results.points()


def test_a_file_of_a_newer_version_is_refused(tmp_path: Path) -> None:
    ResultsFile(tmp_path / "r.db", create=True).close()
    connection = sqlite3.connect(tmp_path / "r.db")
    connection.execute("PRAGMA user_version = 99")
    connection.close()

    with pytest.raises(ConfigError, match="results of version 99, which this kvplan cannot read; it knows up to 1"):
        ResultsFile(tmp_path / "r.db", create=True)


def test_a_row_that_is_not_a_point_is_named(tmp_path: Path) -> None:
    ResultsFile(tmp_path / "r.db", create=True).close()
    connection = sqlite3.connect(tmp_path / "r.db")
    connection.execute("INSERT INTO points VALUES ('f', 's', 1.0, '{\"name\": 3}')")
    connection.commit()
    connection.close()

    with (
        pytest.raises(ConfigError, match="holds a point that cannot be read"),
        ResultsFile(tmp_path / "r.db", create=False) as results,
    ):
        results.points()


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()

    with pytest.raises(ConfigError, match=r"r\.db: its folder cannot be made: "):
        ResultsFile(tmp_path / "file" / "r.db", create=True)
    with pytest.raises(ConfigError, match="not usable as a results file: unable to open database file"):
        ResultsFile(tmp_path, create=True)


def test_a_file_that_cannot_be_written_is_noticed_when_it_is_opened(tmp_path: Path) -> None:
    ResultsFile(tmp_path / "r.db", create=True).close()
    # A header that asks for a newer writer makes a file read-only for everybody, root too (sqlite.org/fileformat2).
    content = bytearray((tmp_path / "r.db").read_bytes())
    content[18] = 3
    (tmp_path / "r.db").write_bytes(content)

    with pytest.raises(ConfigError, match="readonly"):
        ResultsFile(tmp_path / "r.db", create=True)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_read_only_file_can_be_read_but_not_added_to(tmp_path: Path) -> None:
    with ResultsFile(tmp_path / "r.db", create=True) as results:
        results.save(a_result())
    (tmp_path / "r.db").chmod(0o444)
    tmp_path.chmod(0o555)
    try:
        with ResultsFile(tmp_path / "r.db", create=False) as results:
            assert len(results.points()) == 1
        with pytest.raises(ConfigError, match="readonly"):
            ResultsFile(tmp_path / "r.db", create=True)
    finally:
        tmp_path.chmod(0o755)
