"""Keep the feature file with the labels of this node's GPUs, unless GPU Feature Discovery (GFD) sets them.

* The node is looked at every ``LABELS_LOOK_S``. Labels that changed are written when a second look finds the same, so
  that NFD writes the Node once for a change, and at most once in two looks.
* The file says that its labels end after ``EXPIRY_S``, and is renewed every ``RENEW_S``: labels of an agent that is
  gone end with it. While no GPU answers nothing is written: a node whose driver stays away loses its labels by then.
* Another file of the folder with one of our labels, or GFD's object for NFD, ends our file. With an API server nothing
  is written before it has said whether there is such an object.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import NamedTuple

from nodeagent.base.bounded_calls import BoundedCalls, Unanswered
from nodeagent.cluster.deliveries import Delivery
from nodeagent.features.gpu_labels.feature_file import FEATURES_FOLDER, FeatureFile
from nodeagent.features.gpu_labels.gfd_labels import PRODUCT, GpusOfNode, gpu_labels
from nodeagent.host.sysfs import SysfsError, Tree

log = logging.getLogger(__name__)

LABELS_FIRST_S, LABELS_LOOK_S = 10.0, 30.0
RENEW_S, EXPIRY_S = 3600.0, 6 * 3600.0
_CALL_S = 10.0
_REMEDY = "Remove GPU Feature Discovery and what it has left, or set nfd.gpuLabels: false"
NO_FOLDER = (
    f"the folder {FEATURES_FOLDER} is not there: run Node Feature Discovery on this node, and give the agent "
    "components/gpu-labels"
)


class _Looked(NamedTuple):
    """``changed``: the file was written or removed. ``beside``: who else sets the labels."""

    changed: bool
    beside: str | None = None


class LabelKeeper:
    """``read`` returns the GPUs as they are now; PCI classes that it does not know are read in the tree. Belongs to one
    event loop."""

    def __init__(self, tree: Tree, read: Callable[[], GpusOfNode], delivery: Delivery) -> None:
        self._tree, self._read, self._delivery = tree, read, delivery
        self._calls = BoundedCalls("labels of the GPUs", _CALL_S)
        self._seen: Mapping[str, str] | None = None
        """The labels of the last look."""
        self._classes: dict[str, int] = {}
        self._beside: str | None = None
        self.asking = False
        """Whether an API server is asked for GFD's object and has not answered yet."""
        self.gfd_object: str | None = None
        """The namespace and name of GFD's object, if there is one."""

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
            changed, beside = await self._calls.run(self._keep, self._read(), self.gfd_object)
        except FileNotFoundError:
            self._fail(NO_FOLDER)
        except (OSError, SysfsError, Unanswered) as error:
            self._fail(str(error))
        else:
            self._say(beside)
            if changed:
                self._delivery.succeeded()
            elif self._delivery.reason is not None:
                self._delivery.ended()

    def _keep(self, node: GpusOfNode, gfd_object: str | None) -> _Looked:
        """Blocks. Raises ``OSError`` and ``SysfsError``."""
        file = FeatureFile(self._tree.path(FEATURES_FOLDER))
        labels, now = gpu_labels(self._with_classes(node)), time.time()
        if gfd_object is not None:
            return _Looked(file.remove(), f"NodeFeature {gfd_object}")
        if (name := file.other_file(labels or (PRODUCT,), now)) is not None:
            return _Looked(file.remove(), f"{FEATURES_FOLDER}/{name}")
        if not labels:
            return _Looked(changed=False)
        again, self._seen = labels == self._seen, labels
        written = file.read()
        if written is None or (again and written.labels != labels):
            file.write(labels, now + EXPIRY_S)
            log.info("The labels of the GPUs were written for NFD. labels=%d", len(labels))
            return _Looked(changed=True)
        if EXPIRY_S - RENEW_S < written.expires - now <= EXPIRY_S:
            return _Looked(changed=False)
        file.write(written.labels, now + EXPIRY_S)
        return _Looked(changed=True)

    def _with_classes(self, node: GpusOfNode) -> GpusOfNode:
        """Blocks: each is read once."""
        texts = dict(node.texts)
        for gpu in node.gpus:
            of, address = node.text(gpu), gpu.pci_address
            if of.pci_class is None:
                if address not in self._classes:
                    with suppress(SysfsError):
                        if (found := self._tree.integer(f"/sys/bus/pci/devices/{address}/class")) is not None:
                            self._classes[address] = found
                texts[gpu.uuid] = of._replace(pci_class=self._classes.get(address))
        return node._replace(texts=texts)

    def _say(self, beside: str | None) -> None:
        if beside == self._beside:
            return
        self._beside = beside
        if beside is None:
            self._delivery.remark = None
            log.info("Nobody else sets the labels of the GPUs any more.")
        else:
            self._delivery.remark = f"not written, because {beside} sets the labels of the GPUs. {_REMEDY}"
            log.warning("The labels of the GPUs are not written for NFD. reason=%r", self._delivery.remark)

    def _fail(self, reason: str) -> None:
        if self._delivery.reason != reason:
            log.warning("The labels of the GPUs cannot be written for NFD. reason=%r", reason)
        self._delivery.missed(reason, refused=False)
