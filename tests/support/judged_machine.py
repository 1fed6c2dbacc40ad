"""``NicJudge`` with a machine before it: PFs, links and samples made by hand, and a clock that only tests move."""

from __future__ import annotations

from msgspec.structs import replace

from nodeagent.facts.model import Function, Health, Link
from nodeagent.health.explain import DeviceView, explain_nics
from nodeagent.health.health_settings import HealthSettings, RuleSettings
from nodeagent.health.nic import NicJudge
from nodeagent.health.rules import settling
from nodeagent.health.structural import find_faults, with_hanging
from nodeagent.measurements.sample import Sample, Source


def pf(number: int, *, device: str = "1021", vfs: int = 2) -> Function:
    address = f"0000:{number:02x}:00.0"
    return Function(
        address, "15b3", device, "mlx5_core", f"eth{number}", "ethernet", None, None, None, 0, (), num_vfs=vfs
    )


def vf(parent: Function, index: int) -> Function:
    address = parent.pci_address[:-1] + str(index + 1)
    return replace(
        parent, pci_address=address, netdev=None, parent=parent.pci_address, vf_index=index, num_vfs=None
    )


def link(nic: Function, *, up: bool | None = True, speed: int | None = 400_000, route: bool = False) -> Link:
    state = None if up is None else "up" if up else "down"
    return Link(
        nic.netdev or "",
        nic.pci_address,
        f"02:00:00:00:00:{nic.pci_address[5:7]}",
        True,
        up,
        state,
        speed,
        9000,
        route,
    )


class Bench:
    """``count`` PFs with two VFs each. Times are seconds since the boot; the first look is at 1000. ``settled``: the
    links have trained for longer than the settle time."""

    def __init__(
        self,
        count: int = 1,
        settings: HealthSettings | None = None,
        *,
        up: bool | None = True,
        settled: bool = True,
    ) -> None:
        self.engine = NicJudge(settings)
        self.now = 1000.0
        self.pfs = [pf(number) for number in range(1, count + 1)]
        self.links = {nic.pci_address: link(nic, up=up) for nic in self.pfs}
        self.functions = [function for nic in self.pfs for function in (nic, vf(nic, 0), vf(nic, 1))]
        self.hanging: set[str] = set()
        self.structural: tuple[Function, ...] = ()
        self.judged: tuple[Function, ...] = ()
        self._settled = settled

    def look(self, at: float | None = None) -> Bench:
        """Take the facts of one scan, and evaluate them."""
        self.now = self.now if at is None else at
        self.structural, faults = find_faults(self.functions, self.links.values(), self.structural)
        self.engine.now = max(self.engine.now, self.now)
        faults = with_hanging(faults, self.structural, self.hanging)
        self.engine.take_facts(self.structural, self.links.values(), faults)
        self.wait(0)
        if self._settled:
            self._settled = False
            for nic in self.engine.devices.values():
                nic.history.begin(settling(nic.rules), 0.0)
        return self

    def set(self, number: int = 1, at: float | None = None, **known: object) -> Bench:
        address = self.pfs[number - 1].pci_address
        self.links[address] = replace(self.links[address], **known)
        return self.look(at)

    def up(self, number: int = 1, at: float | None = None) -> Bench:
        return self.set(number, at, carrier=True, operstate="up")

    def down(self, number: int = 1, at: float | None = None) -> Bench:
        return self.set(number, at, carrier=False, operstate="down")

    def sample(self, source: Source, number: int = 1, at: float | None = None, **values: float) -> Bench:
        return self.take(source, values, number, at)

    def take(
        self, source: Source, values: dict[str, float], number: int = 1, at: float | None = None
    ) -> Bench:
        self.now = self.now if at is None else at
        self.engine.take_samples([Sample(self.now, self.pfs[number - 1].pci_address, source, values)])
        return self.wait(0)

    def wait(self, seconds: float) -> Bench:
        """Let time pass, and evaluate the rules whenever they are due."""
        until = self.now + seconds
        while (due := self.engine.due()) is not None and due <= until:
            self.judged = self.engine.judge(due)
        self.now = until
        self.judged = self.engine.judge(until)
        return self

    def health(self, number: int = 1) -> Health:
        address = self.pfs[number - 1].pci_address
        return next(function.health for function in self.judged if function.pci_address == address)

    def vfs(self, number: int = 1) -> list[Health]:
        address = self.pfs[number - 1].pci_address
        return [function.health for function in self.judged if function.parent == address]

    def reasons(self, number: int = 1) -> list[str]:
        return [reason.key for reason in self.health(number).reasons]

    def allocatable(self) -> list[bool]:
        return [self.health(number).allocatable for number in range(1, len(self.pfs) + 1)]

    def explained(self) -> tuple[DeviceView, ...]:
        return explain_nics(
            self.engine, {function.pci_address: function.health for function in self.judged}, self.now, {}
        )


def with_rules(*rules: RuleSettings, **more: object) -> HealthSettings:
    return HealthSettings(rules=rules, **more)
