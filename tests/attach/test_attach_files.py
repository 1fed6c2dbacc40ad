"""The lock of `nodeagent attach`, and the state that the doctor reads."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from nodeagent.attach.attach_files import AttachFiles, AttachState, WaitingPod


def test_the_lock_is_held_until_its_descriptor_closes(tmp_path: Path) -> None:
    files = AttachFiles(tmp_path)
    assert files.is_locked() is False
    held = files.take_lock()
    assert held is not None
    assert (files.is_locked(), files.take_lock()) == (True, None)
    os.close(held)
    assert files.is_locked() is False


def test_a_link_in_the_place_of_the_lock_is_refused(tmp_path: Path) -> None:
    files = AttachFiles(tmp_path)
    files.folder.mkdir()
    (files.folder / "lock").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError, match="Too many levels"):
        files.take_lock()
    assert not (tmp_path / "elsewhere").exists()


def test_the_state_comes_back_as_it_was_written(tmp_path: Path) -> None:
    files = AttachFiles(tmp_path)
    assert files.read_state() == AttachState()
    files.folder.mkdir()
    state = AttachState("containerd v2.1.9", pods=2, waiting=(WaitingPod("default/trainer", "busy"),))
    files.write_state(state)
    assert files.read_state() == state
    assert (files.folder / "state.json").stat().st_mode & 0o777 == 0o600
