"""A scrambled capture of a machine that is full of identifiers, in every notation that a driver prints.

MAC and InfiniBand addresses, GUIDs, GIDs of every type, UUIDs, serial numbers, IP addresses, routes, names of netdevs
and of the host, CDI specs: no file, no name and no link of the capture may contain one of them, in hexadecimal of
any separator and byte order, in base64, as EUI-64 or as an IPv4-mapped address. The capture still scans as the same
machine, equal identifiers have equal replacements, and only the owner can read it, whatever the umask.
"""

from __future__ import annotations

import base64
import ipaddress
import json
import os
import re
import socket
import stat
from collections.abc import Iterator
from ipaddress import IPv4Address, IPv6Address
from pathlib import Path

import pytest

from nodeagent.cli import main
from nodeagent.commands.capture.scrambler import Scrambler
from nodeagent.host.sysfs import SysfsScan, Tree
from nodeagent.sources import pci_source
from nodeagent.sources.host_netdevs import host_netdevs
from nodeagent_lab.sim.machine import Machine
from tests.commands.test_capture import without_mac

V4 = [IPv4Address(text) for text in ("10.31.7.9", "192.168.77.201", "172.16.254.3", "100.64.3.77")]
V6 = [
    IPv6Address(text)
    for text in ("2001:db8:77:9::1f", "fd12:3456:789a:1::53", "2a02:1234:5:6:a288:c2ff:fe12:3456")
]
ROUTE_NET, ROUTE_NET6 = IPv4Address("10.31.0.0"), IPv6Address("2001:db8:77::")
GLOBAL_MAC = bytes.fromhex("a088c2123456")
GUID = bytes.fromhex("a088c20300654321")
SERIALS = ("1654922006789", "MT2232X01234", "SN-ABC123DEF")
NAME = "gpu-node-17.rack4.example.com"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A simulated machine, with identifiers in every place that is read."""
    root = tmp_path / "m"
    Machine.load("dgx-h100").write(root)
    pf = next((root / "sys/devices").glob("pci*/**/infiniband/mlx5_0"))
    (pf / "node_guid").write_text(_groups(GUID))
    more = [*V6, *(IPv6Address(b"\0" * 10 + b"\xff\xff" + address.packed) for address in V4)]
    more.append(IPv6Address(bytes.fromhex("fec0000000000001") + GUID))
    more.append(IPv6Address(bytes.fromhex("fe80000000000000") + _eui64(GLOBAL_MAC)))
    for number, address in enumerate(more, len(list((pf / "ports/1/gids").iterdir()))):
        (pf / f"ports/1/gids/{number}").write_text(address.exploded + "\n")
        (pf / f"ports/1/gid_attrs/types/{number}").write_text("RoCE v2\n")
    name = f"enx{GLOBAL_MAC.hex()}"
    virtual = root / "sys/devices/virtual/net" / name
    virtual.mkdir(parents=True)
    (virtual / "address").write_text(GLOBAL_MAC.hex(":") + "\n")
    (root / "sys/class/net" / name).symlink_to(f"../../devices/virtual/net/{name}")
    with (root / "proc/net/route").open("a") as file:
        for net, gateway in ((ROUTE_NET, V4[0]), (V4[1], V4[2]), (IPv4Address(0), V4[2])):
            mask = "0000FFFF" if int(net) else "00000000"
            file.write(f"{name}\t{_little(net)}\t{_little(gateway)}\t0003\t0\t0\t100\t{mask}\t0\t0\t0\n")
    with (root / "proc/net/ipv6_route").open("a") as file:
        for net in (ROUTE_NET6, *V6):
            addresses = f"{net.packed.hex()} 30 {'0' * 32} 00 {V6[0].packed.hex()}"
            file.write(f"{addresses} 00000400 00000001 00000000 00000001 {name}\n")
    recording = json.loads((root / ".nodeagent/gpus.json").read_text())
    for gpu, serial in zip(recording["gpus"], SERIALS, strict=False):
        gpu["texts"] |= {"gpu_serial": serial, "module_serial": serial, "gpu_board_id": f"B{serial}"}
    (root / ".nodeagent/gpus.json").write_text(json.dumps(recording))
    (root / "etc/cdi").mkdir(parents=True)
    uuid = recording["gpus"][0]["uuid"]
    env = [
        f"HOST={NAME}", f"SERIAL={SERIALS[0]}", f"MAC={GLOBAL_MAC.hex()}", f"ADDRESS={V4[3]}",
        f"BACKWARDS={GLOBAL_MAC[::-1].hex()}", f"DASHED={GLOBAL_MAC.hex('-')}", f"GUID=0x{GUID.hex()}",
        "DOTTED=a088.c212.3456", f"ROUTER={V6[1]}",
    ]  # fmt: skip
    devices = [{"name": uuid, "containerEdits": {"env": env}}]
    spec = {"cdiVersion": "0.6.0", "kind": "nvidia.com/gpu", "devices": devices}
    (root / "etc/cdi/nvidia.json").write_text(json.dumps(spec))
    (root / "etc/hostname").write_text(NAME + "\n")
    return root


def _eui64(mac: bytes) -> bytes:
    return bytes([mac[0] ^ 2]) + mac[1:3] + b"\xff\xfe" + mac[3:]


def _groups(value: bytes) -> str:
    return value.hex(":", 2)


def _little(address: IPv4Address) -> str:
    return address.packed[::-1].hex().upper()


def notations(value: bytes) -> Iterator[str]:
    """The bytes as a program prints them, lower case."""
    for order in (value, value[::-1]):
        yield order.hex()
        if len(order) > 4:
            yield from (order.hex(separator) for separator in ":-")
            yield from (order.hex(separator, 2) for separator in ":.-")
        encoded = base64.b64encode(order).decode().rstrip("=").lower()
        if len(encoded) > 7:
            yield encoded


def of_macs(macs: set[bytes]) -> Iterator[str]:
    for mac in macs:
        for form in (mac, _eui64(mac), mac[:3] + b"\xff\xfe" + mac[3:], mac[:3] + b"\x03\x00" + mac[3:]):
            yield from notations(form)


def of_addresses(addresses: set[IPv4Address | IPv6Address]) -> Iterator[str]:
    for address in addresses:
        yield from notations(address.packed)
        yield from (str(address), address.exploded)
        if isinstance(address, IPv4Address):
            yield from notations(b"\xff\xff" + address.packed)


def identifiers(root: Path) -> set[str]:
    """Everything that names this machine, read by other code than the agent's."""
    texts: set[str] = set()
    macs: set[bytes] = set()
    addresses: set[IPv4Address | IPv6Address] = set()
    for path in (root / "sys").rglob("*"):
        if path.is_symlink() or not path.is_file():
            continue
        text = path.read_text(errors="replace").strip()
        if path.name == "address" and re.fullmatch(r"(?:[0-9a-f]{2}:){5}[0-9a-f]{2}", text):
            macs.add(bytes.fromhex(text.replace(":", "")))
        elif path.name in ("node_guid", "sys_image_guid") and text.strip("0:"):
            texts |= set(notations(bytes.fromhex(text.replace(":", ""))))
        elif path.parent.name == "gids" and text.strip("0:"):
            gid = IPv6Address(text)
            addresses.add(gid)
            addresses |= {gid.ipv4_mapped} if gid.ipv4_mapped else set()
    for line in (root / "proc/net/route").read_text().splitlines()[1:]:
        addresses |= {IPv4Address(bytes.fromhex(column)[::-1]) for column in line.split()[1:3]}
    for line in (root / "proc/net/ipv6_route").read_text().splitlines():
        addresses |= {
            IPv6Address(bytes.fromhex(column)) for column in line.split()[0:5:2] if len(column) == 32
        }
    addresses = {
        address
        for address in addresses
        if not (address.is_unspecified or address.is_loopback or address.is_multicast)
        and address != IPv6Address("fe80::")
    }
    macs -= {b"\0" * 6, b"\xff" * 6}
    for file in ("proc/sys/kernel/random/boot_id", "etc/hostname"):
        texts.add((root / file).read_text().strip())
    texts |= {NAME.partition(".")[0], socket.gethostname()}
    for gpu in json.loads((root / ".nodeagent/gpus.json").read_text())["gpus"]:
        texts |= {gpu["uuid"], gpu["uuid"].removeprefix("GPU-").replace("-", "")}
        texts |= {text for key, text in gpu["texts"].items() if "serial" in key or "board" in key}
    wanted = {*texts, *of_macs(macs), *of_addresses(addresses)}
    return {text.lower() for text in wanted if len(text) > 5}


def contents(place: Path) -> Iterator[tuple[str, str]]:
    for path in place.rglob("*"):
        yield str(path), str(path.relative_to(place)).lower()
        if path.is_symlink():
            yield str(path), str(path.readlink()).lower()
        elif path.is_file():
            yield str(path), path.read_bytes().decode("latin-1").lower()


def search(place: Path, wanted: set[str]) -> set[str]:
    """The identifiers that occur anywhere; one of decimal digits and dots only as a word."""
    everything = "\n".join(text for _, text in contents(place))
    return {
        text
        for text in wanted
        if text in everything
        and (
            not text.replace(".", "").isdecimal()
            or re.search(rf"(?<![\w.]){re.escape(text)}(?![\w.])", everything)
        )
    }


@pytest.mark.slow
def test_no_identifier_of_the_machine_is_in_a_scrambled_capture(
    root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    wanted = identifiers(root)
    assert len(wanted) > 500
    assert main(["capture", "--root", str(root), str(tmp_path / "plain")]) == 0
    assert main(["capture", "--root", str(root), "--scramble", str(tmp_path / "c")]) == 0
    capsys.readouterr()
    planted = {
        *SERIALS,
        NAME,
        GLOBAL_MAC.hex(),
        _groups(GUID),
        str(V4[3]),
        _little(V4[0]),
        V6[0].packed.hex(),
    }
    found = search(tmp_path / "plain", wanted)
    assert found >= {text.lower() for text in planted}, "the search finds them in a plain capture"
    assert search(tmp_path / "c", wanted) == set()


def test_a_scrambled_capture_is_still_the_same_machine(root: Path, tmp_path: Path) -> None:
    place = tmp_path / "c"
    assert main(["capture", "--root", str(root), "--scramble", str(place)]) == 0
    before, after = pci_source.scan(Tree(root)), pci_source.scan(Tree(place))
    assert [without_mac(one) for one in after.functions] == [without_mac(one) for one in before.functions]
    assert [link.default_route for link in after.links] == [link.default_route for link in before.links]
    (pf,) = (place / "sys/devices").glob("pci*/**/infiniband/mlx5_0")
    gids = [IPv6Address(path.read_text().strip()) for path in (pf / "ports/1/gids").iterdir()]
    mapped = {gid.ipv4_mapped for gid in gids if gid.ipv4_mapped}
    assert len(mapped) == len(V4)
    (name,) = (path.name for path in (place / "sys/class/net").iterdir() if path.name.startswith("enx"))
    address = (place / "sys/class/net" / name / "address").read_text().strip()
    compact = address.replace(":", "")
    assert name == f"enx{compact}"
    assert name in host_netdevs(SysfsScan(Tree(place))).routed
    assert address.startswith("a0:88:c2:")
    guid = bytes.fromhex((pf / "node_guid").read_text().strip().replace(":", ""))
    identifiers_of_gids = {gid.packed[8:] for gid in gids}
    assert guid in identifiers_of_gids, "one GUID has one replacement"
    assert _eui64(bytes.fromhex(compact)) in identifiers_of_gids
    lines = (place / "proc/net/route").read_text().splitlines()
    routes = [line.split() for line in lines if line.startswith(name)]
    net, gateway = (IPv4Address(bytes.fromhex(column)[::-1]) for column in routes[0][1:3])
    assert gateway in ipaddress.ip_network(f"{net}/16"), "a subnet stays a subnet"
    assert gateway in mapped
    spec = json.loads((place / "etc/cdi/nvidia.json").read_text())
    recording = json.loads((place / ".nodeagent/gpus.json").read_text())
    assert spec["devices"][0]["name"] == recording["gpus"][0]["uuid"]
    env = dict(entry.split("=") for entry in spec["devices"][0]["containerEdits"]["env"])
    assert (env["MAC"], env["DASHED"]) == (compact, address.replace(":", "-"))
    assert env["DOTTED"].replace(".", "") == compact
    assert env["BACKWARDS"] == bytes.fromhex(compact)[::-1].hex()
    assert env["GUID"] == f"0x{guid.hex()}"
    texts = recording["gpus"][0]["texts"]
    assert env["SERIAL"] == texts["gpu_serial"] == texts["module_serial"]
    assert re.fullmatch("[0-9]{13}", env["SERIAL"])


@pytest.mark.parametrize("umask", [0o000, 0o077, 0o777], ids=oct)
def test_only_the_owner_reads_a_capture_whatever_the_umask(umask: int, root: Path, tmp_path: Path) -> None:
    before = os.umask(umask)
    try:
        assert main(["capture", "--root", str(root), "--scramble", str(tmp_path / "c")]) == 0
        assert main(["capture", "--root", str(root), "--samples", "0", str(tmp_path / "samples")]) == 0
    finally:
        os.umask(before)
    for path in (tmp_path / "c", tmp_path / "samples", *(tmp_path / "c").rglob("*")):
        if not path.is_symlink():
            mode = stat.S_IMODE(path.stat().st_mode)
            assert mode == (0o700 if path.is_dir() else 0o600), path


def test_the_scrambled_capture_of_this_machine_names_it_nowhere(tmp_path: Path) -> None:
    assert main(["capture", "--scramble", str(tmp_path / "c")]) == 0
    wanted = {socket.gethostname().lower()} if len(socket.gethostname()) > 5 else set()
    for path in Path("/sys/class/net").iterdir():
        text = (path / "address").read_text().strip() if (path / "address").is_file() else ""
        if text.strip("0:f"):
            wanted |= set(of_macs({bytes.fromhex(text.replace(":", ""))}))
    for name in ("/etc/machine-id", "/proc/sys/kernel/random/boot_id"):
        wanted |= {Path(name).read_text().strip()} if Path(name).is_file() else set()
    assert search(tmp_path / "c", wanted - {""}) == set()


def test_prefixes_of_addresses_are_kept_and_equal_addresses_stay_equal() -> None:
    scramble = Scrambler().text
    one, two, far = (IPv4Address(scramble(text)) for text in ("10.1.2.3", "10.1.2.77", "10.200.0.1"))
    assert scramble("10.1.2.3") == str(one)

    def common_bits(first: IPv4Address, second: IPv4Address) -> int:
        return 32 - (int(first) ^ int(second)).bit_length()

    assert common_bits(one, two) == common_bits(IPv4Address("10.1.2.3"), IPv4Address("10.1.2.77"))
    assert common_bits(one, far) == common_bits(IPv4Address("10.1.2.3"), IPv4Address("10.200.0.1"))
    for text in (
        "127.0.0.1",
        "0.0.0.0",
        "255.255.0.0",
        "::1",
        "fe80::",
        "ff02::1",
        '"firmware": "16.35.20.4"',
    ):
        assert scramble(text) == text
