"""The YAML model of a machine: its hardware before any event.

A function is one line. Its path is its place in the PCIe tree, root complex first, in the notation of sysfs:
``pci0000:15/15:01.0/16:00.0/17:00.0/18:00.0``. The first bridge is a root port, deeper ones are ports of PCIe
switches: an upstream port and a downstream port each. Bridges need no lines of their own.

Every error in a file is a ``ModelError`` with the file and the line.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import msgspec
import yaml

MACHINES = Path(__file__).parent.parent / "machines"
"""The machines that come with the package, one YAML file each."""

T = TypeVar("T")

Hex4 = Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{4}$")]
Count = Annotated[int, msgspec.Meta(ge=0)]

_COMPLEX = re.compile(r"pci([0-9a-f]{4,}):([0-9a-f]{2})")
_FUNCTION = re.compile(r"([0-9a-f]{2}):([01][0-9a-f])\.([0-7])")
_NETDEV_MAX = 15  # IFNAMSIZ - 1, include/uapi/linux/if.h


class ModelError(Exception):
    """An invalid model; the message has the file, the line and the correction."""


class _Struct(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    pass


class Pcie(_Struct, frozen=True, kw_only=True):
    """The capability of the PCIe link; ``gts`` is the speed in the notation of sysfs."""

    gts: Literal["2.5", "5.0", "8.0", "16.0", "32.0", "64.0"] = "32.0"
    width: Literal[1, 2, 4, 8, 16] = 16


PCIE = Pcie()


class Part(_Struct, frozen=True, kw_only=True, tag_field="kind"):
    """The common properties of all functions of one product."""

    vendor: Hex4
    device: Hex4
    driver: str
    subsystem_vendor: Hex4 | None = None
    subsystem_device: Hex4 = "0000"
    revision: Annotated[int, msgspec.Meta(ge=0, le=255)] = 0
    pcie: Pcie = PCIE


class GpuPart(Part, frozen=True, kw_only=True, tag="gpu"):
    """``nvlinks`` is their number; all are connected. ``compute_capability`` is CUDA's."""

    name: str
    memory_mib: Annotated[int, msgspec.Meta(gt=0)]
    nvlinks: Annotated[int, msgspec.Meta(ge=0, le=36)] = 0
    compute_capability: str = "9.0"
    mig_capable: bool = True


class NicPart(Part, frozen=True, kw_only=True, tag="nic"):
    """``vf_offset`` and ``vf_stride`` are those of the SR-IOV capability. ``vf_files``: its driver is that of MLNX_OFED
    or DOCA, with files of each VF (``sriov/N/{node,port,policy}``) that the kernel's driver lacks."""

    speed_mbps: Annotated[int, msgspec.Meta(gt=0)]
    mtu_max: Annotated[int, msgspec.Meta(ge=68)] = 9978
    link_type: Literal["ethernet", "infiniband"] = "ethernet"
    rdma: bool = False
    totalvfs: Annotated[int, msgspec.Meta(ge=0, le=4096)] = 0
    vf_device: Hex4 | None = None
    vf_driver: str | None = None
    vf_offset: Annotated[int, msgspec.Meta(ge=1)] = 1
    vf_stride: Annotated[int, msgspec.Meta(ge=1)] = 1
    vf_files: bool = False
    firmware: str = "1.0.0"


class GpuLine(_Struct, frozen=True, kw_only=True):
    """One GPU of the model."""

    path: str
    part: str
    uuid: str | None = None
    mig: bool = False


class NicLine(_Struct, frozen=True, kw_only=True):
    """One NIC of the model. ``num_vfs`` exist from the start, as if made by a boot-time service; with ``vf_guids`` it
    has given those of InfiniBand a GUID and the PF's link state."""

    path: str
    part: str
    netdev: str
    num_vfs: Count = 0
    vf_guids: bool = False
    mtu: Annotated[int, msgspec.Meta(ge=68)] = 1500
    admin_up: bool = True
    carrier: bool = True


class Product(_Struct, frozen=True, kw_only=True):
    """As in ``/sys/class/dmi/id``."""

    sys_vendor: str
    product_name: str
    product_family: str = ""
    product_version: str = ""
    board_vendor: str = ""
    board_name: str = ""


class NvlinkFabric(_Struct, frozen=True, kw_only=True):
    """The registration of all GPUs with an NVSwitch fabric beyond the machine."""

    cluster_uuid: Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$")]
    clique_id: Annotated[int, msgspec.Meta(ge=0, lt=1 << 32)] = 0


class DriverVersions(_Struct, frozen=True, kw_only=True):
    """The versions of the GPU driver."""

    version: str
    cuda_version: str


class Model(_Struct, frozen=True, kw_only=True):
    """``numa`` has each node's CPU list; ``complexes`` each root complex's node, -1 if the firmware reports none."""

    name: str
    product: Product
    numa: dict[int, str]
    complexes: dict[str, int]
    parts: dict[str, Any]
    nics: tuple[NicLine, ...] = ()
    gpus: tuple[GpuLine, ...] = ()
    driver: DriverVersions | None = None
    kernel: str = "6.8.0-60-generic"
    seed: str = ""
    iommu: bool = True
    default_route: str | None = None
    nvlink_fabric: NvlinkFabric | None = None

    def gpu_part(self, gpu: GpuLine) -> GpuPart:
        part: GpuPart = self.parts[gpu.part]
        return part

    def nic_part(self, nic: NicLine) -> NicPart:
        part: NicPart = self.parts[nic.part]
        return part

    def draw(self, what: str) -> uuid.UUID:
        """A UUID that is the same in every run for the same machine and thing."""
        return uuid.uuid5(uuid.NAMESPACE_DNS, f"{self.seed or self.name}/{what}")


def load(model: str | Path) -> Model:
    """A machine of the package by name, or any file by path."""
    path = Path(model)
    if isinstance(model, str) and not is_file(model):
        path = MACHINES / f"{model}.yaml"
        if not path.exists():
            names = ", ".join(sorted(known.stem for known in MACHINES.glob("*.yaml")))
            raise ModelError(f"there is no machine {model!r}; there are {names}, or give a file")
    try:
        text = path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ModelError(f"{path} cannot be read: {error}") from error
    return parse(text, str(path))


def is_file(model: str) -> bool:
    """Whether the text names a file, not a machine of the package."""
    return "/" in model or Path(model).suffix in (".yaml", ".yml")


def parse(text: str, name: str = "model") -> Model:
    """``name`` is for error messages."""
    return _Document(text, name).model()


def addresses(path: str) -> tuple[str, tuple[str, ...]]:
    """The root complex and the long PCI addresses below it. Raises ``ValueError`` for an invalid path."""
    first, *rest = path.split("/")
    complex_ = _COMPLEX.fullmatch(first)
    if complex_ is None or len(rest) < 1 or not all(_FUNCTION.fullmatch(part) for part in rest):
        raise ValueError(f"{path!r} is not a PCI path such as pci0000:15/15:01.0/18:00.0")
    return first, tuple(f"{complex_[1]}:{part}" for part in rest)


def vf_address(pf: str, offset: int, stride: int, index: int) -> str:
    """The PCI address of VF ``index``: the routing ID counts through functions, devices and buses.

    PCI Express Base Specification, 9.3.3.9 and 9.3.3.10 (First VF Offset, VF Stride).
    """
    domain, bus, rest = pf.split(":")
    device, _, function = rest.partition(".")
    routing_id = (int(bus, 16) << 8 | int(device, 16) << 3 | int(function)) + offset + stride * index
    if routing_id > 0xFFFF:
        raise ValueError(f"VF {index} of {pf} would be beyond bus ff")
    return f"{domain}:{routing_id >> 8:02x}:{routing_id >> 3 & 31:02x}.{routing_id & 7}"


class _Document:
    """The file with its line numbers for error messages."""

    def __init__(self, text: str, name: str) -> None:
        self._name = name
        try:
            self._top = yaml.compose(text, yaml.SafeLoader)
            self._raw = yaml.safe_load(text)
        except yaml.YAMLError as error:
            mark = getattr(error, "problem_mark", None)
            at = f":{mark.line + 1}" if mark else ""
            raise ModelError(f"{name}{at}: not YAML: {getattr(error, 'problem', error)}") from error
        except (ValueError, RecursionError) as error:
            raise ModelError(f"{name}: not YAML: {error}") from error
        if not isinstance(self._raw, dict):
            raise ModelError(f"{name}: a machine is a mapping of name, product, numa, complexes, parts")

    def model(self) -> Model:
        self._refuse_duplicates()
        raw = dict(self._raw)
        listed = raw.get("parts", {})
        if isinstance(listed, Mapping):
            # One by one: for a mapping msgspec does not report the key of the invalid value.
            raw["parts"] = {
                key: self._convert(part, GpuPart | NicPart, ("parts", key)) for key, part in listed.items()
            }
        model: Model = self._convert(raw, Model, ())
        self._check(model)
        return model

    def _convert(self, raw: object, shape: Any, at: tuple[str | int, ...]) -> Any:
        try:
            return msgspec.convert(raw, shape)
        except msgspec.ValidationError as error:
            what, _, where = str(error).partition(" - at `$")
            steps = re.findall(r"\.(\w+)|\[(\d+)\]", where)
            unknown = re.search(r"unknown field `(\w+)`", what)
            inner = tuple(name or int(number) for name, number in steps)
            # YAML reads 0041 and 10e2 as numbers.
            remedy = "; quote it" if what.startswith("Expected `str`, got `") else ""
            self._fail((*at, *inner, *([unknown[1]] if unknown else ())), what + remedy)

    def _fail(self, at: tuple[str | int, ...], what: str) -> Any:
        line = self._line(at)
        where = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in at).lstrip(".")
        raise ModelError(f"{self._name}{f':{line}' if line else ''}: {where or 'machine'}: {what}")

    def _line(self, at: tuple[str | int, ...]) -> int | None:
        """The line of the deepest existing step."""
        node, line = self._top, None
        for step in at:
            child = None
            if isinstance(node, yaml.MappingNode):
                for key, value in node.value:
                    if key.value == str(step):
                        child, line = value, key.start_mark.line + 1
            elif isinstance(node, yaml.SequenceNode) and isinstance(step, int) and step < len(node.value):
                child = node.value[step]
                line = child.start_mark.line + 1
            if child is None:
                break
            node = child
        return line

    def _refuse_duplicates(self) -> None:
        """YAML forbids duplicate keys, but PyYAML uses the last one."""
        todo, visited = [self._top], set[int]()
        while todo:
            node = todo.pop()
            if id(node) in visited:
                continue
            visited.add(id(node))
            if isinstance(node, yaml.MappingNode):
                seen = set()
                for key, value in node.value:
                    if key.value in seen:
                        line = key.start_mark.line + 1
                        raise ModelError(f"{self._name}:{line}: duplicate key {key.value}")
                    seen.add(key.value)
                    todo.append(value)
            elif isinstance(node, yaml.SequenceNode):
                todo.extend(node.value)

    def _check(self, model: Model) -> None:
        """Check the conditions between fields."""
        for name, node in model.complexes.items():
            if not _COMPLEX.fullmatch(name):
                self._fail(("complexes", name), "a root complex has its name in sysfs, pci0000:15")
            if node != -1 and node not in model.numa:
                self._fail(("complexes", name), f"there is no NUMA node {node}; -1 means unknown")
        for node, cpulist in model.numa.items():
            if not re.fullmatch(r"\d+(-\d+)?(,\d+(-\d+)?)*", cpulist):
                self._fail(("numa", node), f"{cpulist!r} is not a list of CPUs such as 0-55,112-167")
        self._check_functions(model)
        netdevs = [nic.netdev for nic in model.nics]
        if model.default_route is not None and model.default_route not in netdevs:
            self._fail(("default_route",), f"no NIC has the netdev {model.default_route}")
        if model.gpus and model.driver is None:
            self._fail(("gpus",), "GPUs need a driver: {version, cuda_version}")

    def _check_functions(self, model: Model) -> None:
        taken: dict[str, str] = {}
        bridges: dict[str, tuple[str, ...]] = {}
        for at, line, part_type in _functions(model):
            try:
                complex_, chain = addresses(line.path)
            except ValueError as error:
                self._fail((*at, "path"), str(error))
            if complex_ not in model.complexes:
                self._fail((*at, "path"), f"{complex_} is not among the complexes")
            if not isinstance(model.parts.get(line.part), part_type):
                self._fail((*at, "part"), f"there is no part {line.part!r} of this kind")
            for depth, bridge in enumerate(chain[:-1]):
                if bridges.setdefault(bridge, chain[:depth]) != chain[:depth]:
                    self._fail((*at, "path"), f"{bridge} has another place in the tree of another line")
            own = [chain[-1]]
            if isinstance(line, NicLine):
                own += self._check_nic(model, line, at, chain[-1])
            for address in own:
                if address in taken or address in bridges:
                    self._fail((*at, "path"), f"{address} is already {taken.get(address, 'a bridge')}")
                taken[address] = f"one of {line.path}"
        for address in bridges.keys() & taken.keys():
            self._fail(("complexes",), f"{address} is a bridge and {taken[address]}")

    def _check_nic(self, model: Model, nic: NicLine, at: tuple[str | int, ...], address: str) -> list[str]:
        """The addresses that its VFs may take."""
        part = model.nic_part(nic)
        if not re.fullmatch(rf"[^\s/:]{{1,{_NETDEV_MAX}}}", nic.netdev) or nic.netdev in (".", "..", "lo"):
            self._fail((*at, "netdev"), f"{nic.netdev!r} is not a valid netdev name (1 to 15 characters)")
        if sum(other.netdev == nic.netdev for other in model.nics) > 1:
            self._fail((*at, "netdev"), f"{nic.netdev} is the netdev of another NIC too")
        if nic.num_vfs > part.totalvfs:
            self._fail((*at, "num_vfs"), f"{nic.num_vfs} is more than the part's totalvfs, {part.totalvfs}")
        if part.totalvfs and part.vf_device is None:
            self._fail(("parts", nic.part), "totalvfs needs vf_device")
        if nic.mtu > part.mtu_max:
            self._fail((*at, "mtu"), f"{nic.mtu} is more than the part's mtu_max, {part.mtu_max}")
        try:
            return [vf_address(address, part.vf_offset, part.vf_stride, i) for i in range(part.totalvfs)]
        except ValueError as error:
            self._fail((*at, "path"), str(error))
            return []


def _functions(model: Model) -> Iterator[tuple[tuple[str | int, ...], GpuLine | NicLine, type[Part]]]:
    for index, gpu in enumerate(model.gpus):
        yield ("gpus", index), gpu, GpuPart
    for index, nic in enumerate(model.nics):
        yield ("nics", index), nic, NicPart
