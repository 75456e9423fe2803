"""Files that are written whole or not at all."""

from __future__ import annotations

import os
import stat
import threading
from pathlib import Path

import pytest

from pytest_r1perf.wholefile import refuse_unwritable, write_whole

AS_ROOT = pytest.mark.skipif(os.geteuid() == 0, reason="root writes everywhere")


def test_it_makes_the_folder_and_leaves_nothing_else(tmp_path: Path) -> None:
    write_whole(tmp_path / "a" / "b.txt", "ä\n")
    assert (tmp_path / "a" / "b.txt").read_bytes() == "ä\n".encode()
    assert [path.name for path in (tmp_path / "a").iterdir()] == ["b.txt"]


def test_a_new_file_has_the_umasks_mode_and_an_old_one_keeps_its_own(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        write_whole(tmp_path / "new", "")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "new").stat().st_mode) == 0o640
    (tmp_path / "new").chmod(0o604)
    write_whole(tmp_path / "new", "again")
    assert stat.S_IMODE((tmp_path / "new").stat().st_mode) == 0o604


def test_a_link_stays_one(tmp_path: Path) -> None:
    (tmp_path / "real").write_text("old")
    (tmp_path / "link").symlink_to("real")
    write_whole(tmp_path / "link", "new")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "real").read_text() == "new"


def test_what_cannot_be_encoded_leaves_the_old_text(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("old")
    with pytest.raises(UnicodeEncodeError):
        write_whole(path, "\ud800")
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_pipe_is_written_into_and_not_replaced(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    read: list[str] = []
    reader = threading.Thread(target=lambda: read.append(pipe.read_text()))
    reader.start()
    write_whole(pipe, "through")
    reader.join(10)
    assert read == ["through"]
    assert stat.S_ISFIFO(pipe.stat().st_mode)


def test_a_directory_is_refused_by_both(tmp_path: Path) -> None:
    with pytest.raises(IsADirectoryError):
        write_whole(tmp_path, "")
    with pytest.raises(IsADirectoryError):
        refuse_unwritable(tmp_path)


def test_to_ask_leaves_no_file_and_does_not_touch_one(tmp_path: Path) -> None:
    refuse_unwritable(tmp_path / "new" / "file")
    assert list((tmp_path / "new").iterdir()) == []
    (tmp_path / "old").write_text("kept")
    refuse_unwritable(tmp_path / "old")
    assert (tmp_path / "old").read_text() == "kept"


def test_a_folder_that_is_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for ask in (refuse_unwritable, lambda path: write_whole(path, "")):
        with pytest.raises((NotADirectoryError, FileExistsError)):
            ask(tmp_path / "file" / "below")


@AS_ROOT
def test_a_read_only_folder_is_refused(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(PermissionError):
        refuse_unwritable(tmp_path / "file")
