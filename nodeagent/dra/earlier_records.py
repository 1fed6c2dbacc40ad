"""Whether an earlier agent left records of prepared claims, for the start of the agent."""

from __future__ import annotations

import logging
from pathlib import Path

from nodeagent.base.bounded_calls import within

log = logging.getLogger(__name__)

START_S = 1.0


def has_records(folder: Path) -> bool:
    """Return whether the folder of records has any. Blocks for at most ``START_S``.

    If the disk does not answer, it returns False with a warning: a disk that hangs must not keep a node without claims
    from serving. With a kind of mode dra the driver reads the records later.
    """
    try:
        return within("records of claims", START_S, lambda: any(folder.glob("*")))
    except OSError as error:
        log.warning(
            "Records of claims of an earlier agent cannot be looked for. folder=%s reason=%r",
            folder,
            str(error),
        )
        return False
