"""Keep the feature file with the labels of this node's GPUs, unless GPU Feature Discovery (GFD) sets them.

* The node is looked at every ``LABELS_LOOK_S``. Labels that changed are written when a second look finds the same, so
  that NFD writes the Node once for a change, and at most once in two looks.
* The file says that its labels end after ``EXPIRY_S``, and is renewed every ``RENEW_S``: labels of an agent that is gone
  end with it. While no GPU answers nothing is written: a node whose driver stays away loses its labels by then.
* Another file of the folder with one of our labels, or GFD's object for NFD, ends our file. With an API server nothing
  is written before it has said whether there is such an object.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable

from nodeagent.base.bounded_calls import BoundedCalls, Unanswered
from nodeagent.cluster.deliveries import Delivery
from nodeagent.features.gpu_labels.feature_file import FEATURES_FOLDER, FeatureFile
from nodeagent.features.gpu_labels.gfd_labels import GpusOfNode, gpu_labels
from nodeagent.host.sysfs import SysfsError, Tree

log = logging.getLogger(__name__)

LABELS_FIRST_S, LABELS_LOOK_S = 10.0, 30.0
RENEW_S, EXPIRY_S = 3600.0, 6 * 3600.0
_CALL_S = 10.0
NO_FOLDER = f"{FEATURES_FOLDER} is not there. Is Node Feature Discovery on this node, and has the agent components/gpu-labels?"


class LabelKeeper:
    """``read`` returns the GPUs as they are now, and blocks. Belongs to one event loop."""

    def __init__(self, tree: Tree, read: Callable[[], GpusOfNode], delivery: Delivery) -> None:
        self._tree, self._read, self._delivery = tree, read, delivery
        self._calls = BoundedCalls("labels of the GPUs", _CALL_S)
        self._file: FeatureFile | None = None
        self._seen: dict[str, str] | None = None
        """The labels of the last look."""
        self._said: str | None = None
        self.asking = False
        """Whether an API server is asked for GFD's object and has not answered yet."""
        self.object_beside: str | None = None
        """A sentence about GFD's object, if there is one."""

    async def run(self) -> None:
        """Follow the node until cancelled."""
        await asyncio.sleep(LABELS_FIRST_S)
        while True:
            await self.look()
            await asyncio.sleep(LABELS_LOOK_S)

    async def look(self) -> None:
        """Look once, and write what is due."""
        if self.asking:
            return
        try:
            wrote = await self._calls.run(self._keep)
        except FileNotFoundError:
            self._fail(NO_FOLDER)
        except (OSError, SysfsError, Unanswered) as error:
            self._fail(str(error))
        else:
            if wrote:
                self._delivery.succeeded()
            elif self._delivery.reason is not None and self._delivery.remark is None:
                self._delivery.ended()

    def _fail(self, reason: str) -> None:
        if self._delivery.reason != reason:
            log.warning("The labels of the GPUs cannot be written for NFD. reason=%r", reason)
        self._delivery.missed(reason, refused=False)

    def _keep(self) -> bool:
        """Return whether the file was written or removed. Blocks."""
        if self._file is None:
            self._file = FeatureFile(self._tree.path(FEATURES_FOLDER))
        labels, now = gpu_labels(self._read()), time.time()
        beside = self.object_beside
        if beside is None and (name := self._file.other_file(labels or ("nvidia.com/gpu.product",), now)):
            beside = (
                f"the file {FEATURES_FOLDER}/{name} sets them. Remove GPU Feature Discovery and this file, or set "
                "nfd.gpuLabels: false"
            )
        self._say(beside)
        if beside is not None:
            self._seen = None
            return self._file.remove()
        if not labels:
            return False
        again, self._seen = labels == self._seen, labels
        written = self._file.read()
        if written is None or (written.labels != labels and again):
            self._file.write(labels, now + EXPIRY_S)
            log.info("The labels of the GPUs were written for NFD. labels=%d", len(labels))
            return True
        left_s = written.expires - now
        if not EXPIRY_S - RENEW_S < left_s <= EXPIRY_S + 1:  # after it: the clock was set back
            self._file.write(written.labels, now + EXPIRY_S)
            return True
        return False

    def _say(self, beside: str | None) -> None:
        if beside != self._said:
            self._said = beside
            self._delivery.remark = beside and f"nothing is written beside GPU Feature Discovery: {beside}"
            if beside is None:
                log.info("Nobody else sets the labels of the GPUs any more.")
            else:
                log.warning("The labels of the GPUs are not written for NFD. reason=%r", beside)
