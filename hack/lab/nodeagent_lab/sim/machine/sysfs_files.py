"""The sysfs and /dev entries of each object of the machine, in the order in which the kernel makes them.

Sources: Documentation/ABI/testing/{sysfs-bus-pci, sysfs-class-net, sysfs-class-net-statistics},
Documentation/ABI/stable/sysfs-class-infiniband, drivers/pci/{pci-sysfs,iov,probe}.c, net/core/net-sysfs.c.

**Limits of plain files:** an attribute that the kernel refuses to read is absent here: ``carrier``, ``speed`` and
``duplex`` of a netdev that is administratively down (EINVAL), and ``phys_port_name`` and ``phys_switch_id`` without
support by the driver (EOPNOTSUPP). Write-only attributes (``bind``, ``unbind``, ``drivers_probe``) read as empty. A
free ``ifindex`` is used again, unlike in the kernel: so an undone change leaves the machine as it was.
"""

from __future__ import annotations

from nodeagent_lab.sim.machine.blueprint import Model
from nodeagent_lab.sim.machine.files import FOLDER, Entry, Symlink
from nodeagent_lab.sim.machine.hardware_values import ENDS, INFINIBAND_FILES, RDMA_FILES
from nodeagent_lab.sim.machine.state import Device, SimulatedNetdev, SimulatedRdma, octets

BUS = "/sys/bus/pci"

# drivers/pci/pcie/aer.c, aer_correctable_error_string and aer_uncorrectable_error_string
_AER_CORRECTABLE = (
    "RxErr",
    "BadTLP",
    "BadDLLP",
    "Rollover",
    "Timeout",
    "NonFatalErr",
    "CorrIntErr",
    "HeaderOF",
)
_AER_UNCORRECTABLE = (
    *("Undefined", "DLP", "SDES", "TLP", "FCP", "CmpltTO", "CmpltAbrt", "UnxCmplt", "RxOF", "MalfTLP"),
    *("ECRC", "UnsupReq", "ACSViol", "UncorrIntErr", "BlockedTLP", "AtomicOpBlocked", "TLPBlockedErr"),
    "PoisonTLPBlocked",
)


AER = {
    "correctable": (_AER_CORRECTABLE, "TOTAL_ERR_COR"),
    "fatal": (_AER_UNCORRECTABLE, "TOTAL_ERR_FATAL"),
    "nonfatal": (_AER_UNCORRECTABLE, "TOTAL_ERR_NONFATAL"),
}
"""By severity: the errors and the name of their total."""


def _aer(device: Device, severity: str) -> str:
    names, total = AER[severity]
    counts = {name: device.hardware.aer.get((severity, name), 0) for name in names}
    return "".join(f"{name} {n}\n" for name, n in (*counts.items(), (total, sum(counts.values()))))


_STATISTICS = (
    *("collisions", "multicast", "rx_bytes", "rx_crc_errors", "rx_dropped", "rx_errors", "rx_packets"),
    *("tx_bytes", "tx_dropped", "tx_errors", "tx_packets"),
)
_AS_SAMPLED = {"multicast": "rx_multicast", "rx_missed_errors": "rx_missed"}
_PORT_COUNTERS = {
    **dict.fromkeys(
        ("multicast_rcv_packets", "multicast_xmit_packets", "port_rcv_packets", "port_xmit_packets"), ""
    ),
    **dict.fromkeys(("unicast_rcv_packets", "unicast_xmit_packets"), ""),
    "port_rcv_data": "rdma_rx_bytes",
    "port_xmit_data": "rdma_tx_bytes",
    **INFINIBAND_FILES,
}
"""The files of a port with extended counters (drivers/infiniband/core/sysfs.c, pma_attrs_ext), by what they count."""
_OCTETS = 4

# include/uapi/linux/if.h; sysfs shows the device's own flags, without IFF_RUNNING and IFF_LOWER_UP.
_IFF_UP, _IFF_BROADCAST, _IFF_LOOPBACK, _IFF_MULTICAST = 0x1, 0x2, 0x8, 0x1000
# include/uapi/linux/if_arp.h
_ARPHRD = {"ethernet": 1, "infiniband": 32}
_ARPHRD_LOOPBACK = 772
# The rate of a port as its lanes add up (drivers/infiniband/core/sysfs.c); the rest is Ethernet's own.
_RATES = {400_000: "400 Gb/sec (4X NDR)", 200_000: "200 Gb/sec (4X HDR)", 100_000: "100 Gb/sec (4X EDR)"}

_INFINIBAND_MAJOR = 231  # include/rdma/ib_verbs.h; issm from 64 on, uverbs from 192 on


def pci(device: Device, cpulist: str) -> dict[str, Entry]:
    """The function itself, its links from the bus, from its driver and from its VFs."""
    folder = device.folder
    vendors = f"{device.vendor}:{device.device}".upper()
    subsystem = ":".join(device.subsystem).upper()
    entries: dict[str, Entry] = {}

    def say(name: str, value: object) -> None:
        entries[f"{folder}/{name}"] = f"{value}\n"

    modalias = (
        "pci:v0000{}d0000{}sv0000{}sd0000{}".format(
            *(part.upper() for part in (device.vendor, device.device, *device.subsystem))
        )
        + f"bc{device.code >> 16:02X}sc{device.code >> 8 & 0xFF:02X}i{device.code & 0xFF:02X}"
    )
    driver_line = f"DRIVER={device.driver}\n" if device.driver else ""
    say(
        "uevent",
        f"{driver_line}PCI_CLASS={device.code:04X}\nPCI_ID={vendors}\nPCI_SUBSYS_ID={subsystem}\n"
        f"PCI_SLOT_NAME={device.address}\nMODALIAS={modalias}",
    )
    say("vendor", f"0x{device.vendor}")
    say("device", f"0x{device.device}")
    say("subsystem_vendor", f"0x{device.subsystem[0]}")
    say("subsystem_device", f"0x{device.subsystem[1]}")
    say("revision", f"0x{device.revision:02x}")
    say("class", f"0x{device.code:06x}")
    say("modalias", modalias)
    say("numa_node", device.numa_node)
    say("local_cpulist", cpulist)
    say("enable", int(device.driver is not None))
    say("driver_override", device.override or "(null)")
    # The link status of a VF is reserved and reads as zero.
    is_vf = device.pf is not None
    speed = f"{device.pcie.gts} GT/s PCIe"
    trained = f"{device.hardware.gts or device.pcie.gts} GT/s PCIe"
    say("current_link_speed", "Unknown" if is_vf else trained)
    say("current_link_width", 0 if is_vf else device.hardware.width or device.pcie.width)
    say("max_link_speed", speed)
    say("max_link_width", device.pcie.width)
    if device.natural != "pcieport":
        say("reset_method", "flr" if is_vf else "flr bus")
        for severity in AER:
            entries[f"{folder}/aer_dev_{severity}"] = _aer(device, severity)
    if device.may_have_vfs:
        assert device.nic is not None
        say("sriov_totalvfs", device.nic.totalvfs)
        say("sriov_numvfs", device.num_vfs)
        say("sriov_offset", device.nic.vf_offset)
        say("sriov_stride", device.nic.vf_stride)
        say("sriov_vf_device", device.nic.vf_device)
        say("sriov_drivers_autoprobe", int(device.autoprobe))
    entries[f"{folder}/subsystem"] = Symlink(BUS)
    if device.group is not None:
        entries |= _group(device, device.group)
    entries[f"{BUS}/devices/{device.address}"] = Symlink(folder)
    for index, vf in device.vfs.items():
        # If only the VF is unplugged, the kernel leaves this link dangling.
        entries[f"{folder}/virtfn{index}"] = Symlink(vf.folder)
    if device.pf is not None:
        entries[f"{folder}/physfn"] = Symlink(device.pf.folder)
    if device.driver is not None:
        entries[f"{BUS}/drivers/{device.driver}/{device.address}"] = Symlink(folder)
        entries[f"{folder}/driver"] = Symlink(f"{BUS}/drivers/{device.driver}")
    # These stay, empty, while a pod has what was in them.
    if device.netdev is not None:
        entries[f"{folder}/net"] = FOLDER
    if device.rdma is not None:
        entries[f"{folder}/infiniband"] = FOLDER
    return entries


def _group(device: Device, group: int) -> dict[str, Entry]:
    folder = f"/sys/kernel/iommu_groups/{group}"
    entries: dict[str, Entry] = {f"{folder}/type": "DMA-FQ\n", f"{folder}/reserved_regions": ""}
    entries[f"{folder}/devices/{device.address}"] = Symlink(device.folder)
    entries[f"{device.folder}/iommu_group"] = Symlink(folder)
    return entries


def vfio(device: Device, group: int, *, iommu: bool) -> dict[str, Entry]:
    """The group's character device. Without an IOMMU vfio makes the group, and its node has a prefix."""
    name = str(group) if iommu else f"noiommu-{group}"
    folder = f"/sys/devices/virtual/vfio/{name}"
    entries: dict[str, Entry] = {}
    if not iommu:
        entries[f"/sys/kernel/iommu_groups/{group}/name"] = "vfio-noiommu\n"
        entries[f"/sys/kernel/iommu_groups/{group}/devices/{device.address}"] = Symlink(device.folder)
        entries[f"{device.folder}/iommu_group"] = Symlink(f"/sys/kernel/iommu_groups/{group}")
    entries[f"{folder}/uevent"] = f"DEVNAME=vfio/{name}\n"
    entries[f"/sys/class/vfio/{name}"] = Symlink(folder)
    entries[f"{folder}/subsystem"] = Symlink("/sys/class/vfio")
    entries[f"/dev/vfio/{name}"] = ""
    return entries


def net(device: Device, netdev: SimulatedNetdev, model: Model) -> dict[str, Entry]:
    assert device.nic is not None
    folder = f"{device.folder}/net/{netdev.name}"
    entries: dict[str, Entry] = {}

    def say(name: str, value: object) -> None:
        entries[f"{folder}/{name}"] = f"{value}\n"

    say("uevent", f"INTERFACE={netdev.name}\nIFINDEX={netdev.ifindex}")
    entries[f"/sys/class/net/{netdev.name}"] = Symlink(folder)
    entries[f"{folder}/subsystem"] = Symlink("/sys/class/net")
    infiniband = device.nic.link_type == "infiniband"
    address = netdev.mac
    if infiniband:
        # Queue pair number, then the link-local GID (Documentation/infiniband/ipoib.rst)
        address = "00:00:10:49:fe:80:00:00:00:00:00:00:" + _guid(model, device, ":", 2)
    say("address", address)
    say("addr_assign_type", 0 if device.pf is None else 1)
    say("addr_len", 20 if infiniband else 6)
    say("type", _ARPHRD[device.nic.link_type])
    say("dev_id", "0x0")
    say("dev_port", 0)
    say("ifindex", netdev.ifindex)
    say("iflink", netdev.ifindex)
    say("ifalias", "")
    say("tx_queue_len", 1000)
    say("mtu", netdev.mtu)
    say("flags", f"0x{_IFF_BROADCAST | _IFF_MULTICAST | _IFF_UP * netdev.admin_up:x}")
    if netdev.admin_up:
        say("carrier", int(device.carrier))
        say("speed", device.speed_mbps if device.carrier else -1)
        say("duplex", "full" if device.carrier else "unknown")
    say("carrier_changes", netdev.carrier_ups + netdev.carrier_downs)
    say("carrier_up_count", netdev.carrier_ups)
    say("carrier_down_count", netdev.carrier_downs)
    say("operstate", "up" if device.carrier else "down")
    if device.nic.driver == "mlx5_core" and device.pf is None and not infiniband:
        say("phys_port_name", f"p{int(device.address[-1])}")
    entries[f"{folder}/device"] = Symlink(device.folder)
    for name in _STATISTICS:
        say(f"statistics/{name}", int(device.hardware.link.get(_AS_SAMPLED.get(name, name), 0)))
    return entries


def rdma(device: Device, mine: SimulatedRdma, model: Model) -> dict[str, Entry]:
    """The RDMA device, which may belong to one network namespace."""
    assert device.nic is not None
    folder = f"{device.folder}/infiniband/{mine.name}"
    entries: dict[str, Entry] = {}

    def say(name: str, value: object) -> None:
        entries[f"{folder}/{name}"] = f"{value}\n"

    infiniband = device.nic.link_type == "infiniband"
    # An Ethernet port follows its netdev; an InfiniBand one works without any.
    active = device.signal if infiniband else device.carrier
    say("uevent", f"NAME={mine.name}")
    entries[f"/sys/class/infiniband/{mine.name}"] = Symlink(folder)
    entries[f"{folder}/subsystem"] = Symlink("/sys/class/infiniband")
    say("node_type", "1: CA")
    say("node_guid", _guid(model, device, ":", 4))
    say("sys_image_guid", _guid(model, device.pf or device, ":", 4))
    say("node_desc", mine.name)
    say("fw_ver", device.nic.firmware)
    say("hca_type", f"MT{int(device.device, 16)}")
    entries[f"{folder}/device"] = Symlink(device.folder)
    say("ports/1/link_layer", "InfiniBand" if infiniband else "Ethernet")
    for name, text in mine.port_files(active=active, infiniband=infiniband).items():
        say(f"ports/1/{name}", text)
    say("ports/1/rate", _RATES.get(device.speed_mbps, f"{device.speed_mbps / 1000:g} Gb/sec"))
    counted = device.hardware.rdma
    for name, counter in _PORT_COUNTERS.items():
        unit = _OCTETS if name.endswith("_data") else 1
        say(f"ports/1/counters/{name}", min(counted.get(counter, 0) // unit, ENDS.get(name, 2**64 - 1)))
    for name, file in RDMA_FILES.items():
        say(f"ports/1/hw_counters/{file}", counted[name])
    if not infiniband and device.hardware.gids and device.netdev is not None:
        gid = "fe80:0000:0000:0000:" + _guid(model, device, ":", 4)
        for place, kind in enumerate(("IB/RoCE v1", "RoCE v2")):
            say(f"ports/1/gids/{place}", gid)
            say(f"ports/1/gid_attrs/types/{place}", kind)
            say(f"ports/1/gid_attrs/ndevs/{place}", device.netdev.name)
    elif not infiniband:
        entries[f"{folder}/ports/1/gid_attrs/types"] = FOLDER
    return entries


def verbs(device: Device, mine: SimulatedRdma) -> dict[str, Entry]:
    """The character devices of the RDMA device; they stay on the host when the RDMA device moves."""
    entries: dict[str, Entry] = {}
    nodes = [
        ("infiniband_verbs", f"uverbs{mine.verbs}", 192 + mine.verbs),
        ("infiniband_mad", f"umad{mine.mad}", mine.mad),
    ]
    assert device.nic is not None
    if device.nic.link_type == "infiniband":  # a subnet manager's node: RoCE has none (rdma_cap_ib_smi)
        nodes.append(("infiniband_mad", f"issm{mine.mad}", 64 + mine.mad))
    for kind, name, minor in nodes:
        folder = f"{device.folder}/{kind}/{name}"
        number = f"{_INFINIBAND_MAJOR}:{minor}"
        entries[f"{folder}/uevent"] = f"MAJOR={_INFINIBAND_MAJOR}\nMINOR={minor}\nDEVNAME=infiniband/{name}\n"
        entries[f"/sys/class/{kind}/{name}"] = Symlink(folder)
        entries[f"{folder}/subsystem"] = Symlink(f"/sys/class/{kind}")
        entries[f"{folder}/device"] = Symlink(device.folder)
        entries[f"{folder}/dev"] = f"{number}\n"
        entries[f"{folder}/ibdev"] = f"{mine.name}\n"
        entries[f"{folder}/abi_version" if kind == "infiniband_verbs" else f"{folder}/port"] = "1\n"
        entries[f"/dev/infiniband/{name}"] = ""
    return entries


def host(model: Model, drivers: tuple[str, ...]) -> dict[str, Entry]:
    """The entries that do not depend on the devices."""
    entries: dict[str, Entry] = {
        f"{BUS}/devices": FOLDER,
        f"{BUS}/slots": FOLDER,
        f"{BUS}/drivers_autoprobe": "1\n",
        f"{BUS}/drivers_probe": "",
        "/sys/kernel/iommu_groups": FOLDER,
        "/sys/class/vfio": FOLDER,
        "/sys/class/infiniband": FOLDER,
        "/sys/class/infiniband_verbs/abi_version": "6\n",
        "/sys/class/infiniband_mad/abi_version": "5\n",
        # A file between the links, wherever the bonding driver is loaded.
        "/sys/class/net/bonding_masters": "\n",
    }
    for driver in drivers:
        for name in ("bind", "unbind", "new_id", "remove_id"):
            entries[f"{BUS}/drivers/{driver}/{name}"] = ""
    for complex_, node in model.complexes.items():
        entries[f"/sys/devices/{complex_}/uevent"] = ""
        bus = complex_.removeprefix("pci")
        bus_folder = f"/sys/devices/{complex_}/pci_bus/{bus}"
        entries[f"{bus_folder}/cpulistaffinity"] = f"{cpulist(model, node)}\n"
        entries[f"/sys/class/pci_bus/{bus}"] = Symlink(bus_folder)
    online = _span(model.numa)
    entries["/sys/devices/system/node/online"] = f"{online}\n"
    entries["/sys/devices/system/node/possible"] = f"{online}\n"
    for node, cpus in model.numa.items():
        entries[f"/sys/devices/system/node/node{node}/cpulist"] = f"{cpus}\n"
    entries["/sys/devices/system/cpu/online"] = f"{cpulist(model, -1)}\n"
    dmi = "/sys/devices/virtual/dmi/id"
    for name in model.product.__struct_fields__:
        entries[f"{dmi}/{name}"] = f"{getattr(model.product, name)}\n"
    entries["/sys/class/dmi/id"] = Symlink(dmi)
    entries |= _loopback()
    entries["/proc/version"] = f"Linux version {model.kernel} (simulated) #1 SMP PREEMPT_DYNAMIC\n"
    entries["/proc/sys/kernel/osrelease"] = f"{model.kernel}\n"
    entries["/proc/sys/kernel/random/boot_id"] = f"{model.draw('boot')}\n"
    entries["/dev/vfio/vfio"] = ""
    if any(model.nic_part(nic).rdma for nic in model.nics):
        entries["/dev/infiniband/rdma_cm"] = ""
    # Made by nvidia-modprobe and not by the kernel: they stay when a GPU goes.
    minors = tuple(f"nvidia{minor}" for minor in range(len(model.gpus)))
    for name in (*minors, "nvidiactl", "nvidia-uvm", "nvidia-uvm-tools", "nvidia-modeset") if minors else ():
        entries[f"/dev/{name}"] = ""
    if minors:
        entries |= _driver_libraries(model.driver.version if model.driver else "580.95.05")
    return entries


def _driver_libraries(version: str) -> dict[str, Entry]:
    """The driver as Debian's family and DGX OS install it: each library under its soname, a link to the versioned
    file."""
    folder = "/usr/lib/x86_64-linux-gnu"
    entries: dict[str, Entry] = {"/usr/bin/nvidia-smi": ""}
    for soname in ("libcuda.so.1", "libnvidia-ml.so.1", "libnvidia-ptxjitcompiler.so.1"):
        file = f"{soname.rpartition('.')[0]}.{version}"
        entries[f"{folder}/{file}"] = ""
        entries[f"{folder}/{soname}"] = Symlink(f"{folder}/{file}")
    return entries


def _loopback() -> dict[str, Entry]:
    folder = "/sys/devices/virtual/net/lo"
    entries: dict[str, Entry] = {
        "/sys/class/net/lo": Symlink(folder),
        f"{folder}/subsystem": Symlink("/sys/class/net"),
    }
    values = {
        "uevent": "INTERFACE=lo\nIFINDEX=1",
        "address": "00:00:00:00:00:00",
        "carrier": 1,
        "carrier_changes": 0,
        "flags": f"0x{_IFF_UP | _IFF_LOOPBACK:x}",
        "ifindex": 1,
        "iflink": 1,
        "mtu": 65536,
        "operstate": "unknown",
        "type": _ARPHRD_LOOPBACK,
    }
    for name, value in values.items():
        entries[f"{folder}/{name}"] = f"{value}\n"
    return entries


def routes(netdev: SimulatedNetdev | None) -> dict[str, Entry]:
    """The main tables, with a default route by ``netdev`` in both families (RFC 5737, RFC 3849)."""
    header = "Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT"
    v4, v6 = [header], []
    zero = "0" * 32
    if netdev is not None:
        v4.append(f"{netdev.name}\t00000000\t010200C0\t0003\t0\t0\t100\t00000000\t0\t0\t0")
        v4.append(f"{netdev.name}\t000200C0\t00000000\t0001\t0\t0\t100\t00FFFFFF\t0\t0\t0")
        gateway = "20010db8000000000000000000000001"
        v6.append(f"{zero} 00 {zero} 00 {gateway} 00000400 00000002 00000000 00000003 {netdev.name:>8}")
    v6.append(f"{zero} 00 {zero} 00 {zero} ffffffff 00000001 00000000 00200200 {'lo':>8}")
    return {
        "/proc/net/route": "".join(f"{line:<127}\n" for line in v4),
        "/proc/net/ipv6_route": "".join(f"{line}\n" for line in v6),
    }


def cpulist(model: Model, node: int) -> str:
    """The CPUs of a node; all CPUs for an unknown node, as ``cpumask_of_node`` returns for -1."""
    return model.numa[node] if node >= 0 else _span(_cpus(",".join(model.numa.values())))


def _cpus(text: str) -> set[int]:
    cpus: set[int] = set()
    for part in text.split(","):
        first, _, last = part.partition("-")
        cpus.update(range(int(first), int(last or first) + 1))
    return cpus


def _span(numbers: dict[int, str] | set[int]) -> str:
    """``0-3,8``."""
    spans: list[list[int]] = []
    for number in sorted(numbers):
        if spans and spans[-1][1] == number - 1:
            spans[-1][1] = number
        else:
            spans.append([number, number])
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in spans)


def _guid(model: Model, device: Device, colon: str, digits: int) -> str:
    """EUI-64 from the MAC (RFC 4291, appendix A)."""
    mac = bytes.fromhex(device.mac.replace(":", "")) if device.mac else octets(model, device)
    text = (mac[:3] + b"\xff\xfe" + mac[3:]).hex()
    return colon.join(text[i : i + digits] for i in range(0, 16, digits))
