"""The traffic of a job: the matrix of pods and rails, what is odd in it, and whether the job is stalled. Pure.

It is made of the levels in the reports, and of the figures of the agents where they were asked.

* A job is stalled if its rails are silent while its GPUs wait for something that does not come: for ``STALL_S``, and
  for twice the longest pause that any of its pods has had. GPUs that are idle, or that compute, are no stall.
* A VF that is not measured is never silent.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from statistics import median
from typing import NamedTuple

from nodeagent.base.duration import duration
from nodeagent.base.plain_text import few
from nodeagent.fabric.link_faults import unix
from nodeagent.fabric.nodelinks import TrafficLevel, VfHolder
from nodeagent.fabric.traffic_figures import PodFigures

STALL_S = 300.0
PAUSES = 2.0
"""A stall is longer than so many times the longest pause."""
SILENT_AFTER_S = 60.0
"""By figures, rails are silent after this: two readings of ``samples.vfSeconds`` 30."""
FIRST_SILENT_S = 45.0
"""A pod that fell silent so long before the others was the first: more than one reading."""
HALF = 0.5
GPU_BUSY, GPU_IDLE = 0.9, 0.05
_GBIT = 8e-9
_NUMBER = re.compile(r"(\d+)")


class RailCell(NamedTuple):
    """The traffic of the VFs of one pod on one rail. ``word`` is ``moves``, ``silent``, ``below``, ``unmeasured``,
    ``unused``, or empty if it is not known. ``sent`` and ``received`` are Gbit/s, ``packets`` both ways per second."""

    vfs: int
    word: str = ""
    sent: float | None = None
    received: float | None = None
    packets: float | None = None
    quiet_s: float | None = None


class RankTraffic(NamedTuple):
    """A pod of the job. ``rails`` are its cells by the name of the link. ``word`` and ``quiet_s`` are those of all its
    rails. ``gpus``: the load of each, 0 to 1, by NVML's index, and ``gpu_word`` what most of them do."""

    pod: str
    node: str
    rails: Mapping[str, RailCell]
    word: str = ""
    quiet_s: float | None = None
    longest_pause_s: float = 0.0
    gpus: Mapping[str, float] = {}
    gpu_word: str = ""
    idle_gpus: tuple[int, ...] = ()


class JobPause(NamedTuple):
    """``seconds`` since all rails of the job are silent; ``stalled``: this is a stall."""

    seconds: float
    stalled: bool


def job_pause(levels: Iterable[TrafficLevel], now: float) -> JobPause:
    """The pause of a job by the levels of its pods at Unix time ``now``; 0 seconds if any pod moves. Pods whose VFs are
    not measured, or were never used, say nothing as long as they are not the most."""
    words = Counter[str]()
    silent = []
    for level in levels:
        words[level.level] += 1
        if level.level == "silent" and (since := unix(level.since)) is not None:
            silent.append((level, since))
    others = sum(words.values()) - words["silent"]
    if not silent or words["moving"] or others > len(silent):
        return JobPause(0.0, stalled=False)
    seconds = now - max(since for _, since in silent)
    longest = max(level.longest_pause_seconds for level, _ in silent)
    known = [level.gpus for level, _ in silent if level.gpus]
    waits = 2 * known.count("waiting") >= len(known) > 0
    return JobPause(seconds, stalled=waits and seconds > max(STALL_S, PAUSES * longest))


def rails_below(levels: Iterable[TrafficLevel]) -> int:
    """The rails of pods that move which are silent or below their peers."""
    return sum(
        rail.level in ("silent", "below")
        for level in levels
        if level.level == "moving"
        for rail in level.rails
    )


def rank_traffic(
    pod: str,
    node: str,
    holder: VfHolder | None,
    level: TrafficLevel | None,
    figures: PodFigures | None,
    now: float,
) -> RankTraffic:
    """A pod by its VFs in the report, its level, and the figures of its agent if they were asked."""
    if figures is not None:
        return _by_figures(pod, node, figures)
    vfs = Counter(vf.link for vf in holder.vfs) if holder is not None else Counter[str]()
    if level is None:
        return RankTraffic(pod, node, {link: RailCell(count) for link, count in vfs.items()})
    differ = {rail.link: rail for rail in level.rails}
    vfs |= Counter(dict.fromkeys(differ, 1))
    whole = "moves" if level.level == "moving" else level.level
    since = unix(level.since)
    quiet_s = None if since is None or level.level != "silent" else max(0.0, now - since)
    cells = {}
    for link, count in vfs.items():
        odd = differ.get(link)
        word = whole if odd is None or (whole == "silent" and odd.level != "unmeasured") else odd.level
        began = unix(odd.since) if odd is not None else None
        cells[link] = RailCell(count, word, quiet_s=quiet_s if began is None else max(0.0, now - began))
    return RankTraffic(
        pod,
        node,
        cells,
        whole,
        quiet_s,
        level.longest_pause_seconds,
        {},
        level.gpus or "",
        level.idle_gpus,
    )


def _by_figures(pod: str, node: str, figures: PodFigures) -> RankTraffic:
    silent = figures.quiet_s is not None and figures.quiet_s >= SILENT_AFTER_S
    cells: dict[str, RailCell] = {}
    for vf in figures.vfs:
        rates = [vf.sent, vf.received, vf.sent_packets, vf.received_packets]
        before = cells.get(vf.link, RailCell(0))
        if not vf.measured:
            word = "unmeasured"
        elif vf.quiet_s is None:
            word = "" if vf.seconds is None else "unused"
        else:
            word = "silent" if vf.quiet_s >= SILENT_AFTER_S else "moves"
        if not vf.measured or None in rates:
            cells[vf.link] = before._replace(vfs=before.vfs + 1, word=before.word or word)
            continue
        sent, received, out, into = (rate or 0.0 for rate in rates)
        quiet = [one for one in (before.quiet_s, vf.quiet_s) if one is not None]
        cells[vf.link] = RailCell(
            before.vfs + 1,
            "moves" if "moves" in (word, before.word) else word,
            (before.sent or 0.0) + sent * _GBIT,
            (before.received or 0.0) + received * _GBIT,
            (before.packets or 0.0) + out + into,
            min(quiet, default=None),
        )
    words = {cell.word for cell in cells.values()}
    whole = (
        "moves" if "moves" in words and not silent
        else "silent" if silent
        else "unmeasured" if words == {"unmeasured"}
        else "unused" if "unused" in words
        else "moves" if "silent" in words
        else ""
    )  # fmt: skip
    idle = tuple(int(index) for index, load in figures.gpus.items() if load <= GPU_IDLE)
    loads = list(figures.gpus.values())
    busy = bool(loads) and 2 * sum(load >= GPU_BUSY for load in loads) >= len(loads)
    return RankTraffic(
        pod, node, cells, whole, figures.quiet_s if silent else None, figures.longest_pause_s, figures.gpus,
        "" if not loads else "busy" if busy else "idle" if len(idle) == len(loads) else "working",
        idle,
    )  # fmt: skip


def rails_of_job(ranks: Iterable[RankTraffic]) -> list[str]:
    """The names of the rails in their natural order."""
    return sorted({rail for rank in ranks for rail in rank.rails}, key=_natural_name)


def _natural_name(name: str) -> list[tuple[int, str]]:
    return [(int(part), "") if part.isdigit() else (-1, part) for part in _NUMBER.split(name)]


class OddRail(NamedTuple):
    """A sentence about the job, and the pods that it names."""

    sentence: str
    pods: tuple[str, ...] = ()


def odd_ones(ranks: Sequence[RankTraffic]) -> Iterator[OddRail]:
    """Each thing that is odd, the gravest first."""
    measured = [rank for rank in ranks if rank.word in ("moves", "silent")]
    silent = [rank for rank in measured if rank.word == "silent"]
    if silent and len(silent) == len(measured):
        yield from _all_silent(silent)
    else:
        for rank in silent:
            yield OddRail(
                f"{rank.pod} is silent on all rails for {_for(rank.quiet_s)}, its peers are not", (rank.pod,)
            )
        yield from _odd_rails(measured)
        yield from _odd_gpus(measured)
    yield from _odd_places(ranks)


def _for(seconds: float | None) -> str:
    return "an unknown time" if seconds is None else duration(seconds)


def _gpu_name(rank: RankTraffic, index: int | str) -> str:
    return f"{rank.node}/{index}"


def _all_silent(silent: Sequence[RankTraffic]) -> Iterator[OddRail]:
    """All rails of the job are silent: who did not arrive?"""
    head = f"all rails silent for {_for(min(rank.quiet_s or 0.0 for rank in silent))}"
    idle: list[tuple[RankTraffic, int | str]] = [(rank, index) for rank in silent for index in rank.idle_gpus]
    loads = [load for rank in silent for load in rank.gpus.values()]
    busy = sum(load >= GPU_BUSY for load in loads)
    waiting = [rank for rank in silent if rank.gpu_word in ("waiting", "busy")]
    whole_idle = [rank for rank in silent if rank.gpu_word == "idle"]
    if not idle:
        idle = [(rank, "all") for rank in whole_idle]
    if waiting and idle and len(idle) <= max(busy, len(waiting)):
        names = ", ".join(few([_gpu_name(rank, index) for rank, index in idle]))
        at_work = f"{busy} GPUs at 100 %" if busy else f"the GPUs of {len(waiting)} pods busy"
        one = "it" if len(idle) == 1 else "they"
        pods = tuple(dict.fromkeys(rank.pod for rank, _ in idle))
        yield OddRail(
            f"{head}, {at_work}, {names} at 0 %: {one} did not arrive ({', '.join(few(pods))})", pods
        )
        return
    if waiting:
        first = sorted(silent, key=lambda rank: -(rank.quiet_s or 0.0))
        rest = median(rank.quiet_s or 0.0 for rank in first)
        early = tuple(rank.pod for rank in first if (rank.quiet_s or 0.0) - rest >= FIRST_SILENT_S)
        if early and len(early) <= len(first) // 2:
            yield OddRail(f"{head}, GPUs busy; first silent: {', '.join(few(early))}", early)
        else:
            yield OddRail(f"{head}, all GPUs busy: which of them did not arrive is not seen from here")
    elif whole_idle or idle:
        yield OddRail(f"{head}, GPUs idle: the job waits for something else, such as a file system")
    else:
        yield OddRail(head)


def _odd_rails(measured: Sequence[RankTraffic]) -> Iterator[OddRail]:
    """Rails of pods that move, against the same rail of the others and against the other rails."""
    moving = [rank for rank in measured if rank.word == "moves"]
    rails = rails_of_job(moving)
    means: dict[str, float] = {}
    for rail in rails:
        cells = {rank.pod: rank.rails[rail] for rank in moving if rail in rank.rails}
        dark = [pod for pod, cell in cells.items() if cell.word in ("silent", "unused")]
        moves = [pod for pod, cell in cells.items() if cell.word in ("moves", "below")]
        if dark and not moves and len(rails) > 1:
            pods = "1 pod" if len(dark) == 1 else f"{len(dark)} pods"
            yield OddRail(f"{rail} carries nothing, the other rails do ({pods})", tuple(dark))
        else:
            for pod in dark:
                where = (
                    f"for {_for(cells[pod].quiet_s)}" if cells[pod].quiet_s is not None else "since it began"
                )
                peers = "its peers do" if moves else "its other rails do"
                yield OddRail(f"{pod} sends nothing on {rail}, {peers}, {where}", (pod,))
        rates = [cell.sent for cell in cells.values() if cell.sent is not None and cell.word == "moves"]
        if rates:
            means[rail] = sum(rates) / len(rates)
        for pod, cell in cells.items():
            usual = median(rates) if len(rates) > 2 else None
            if cell.word == "below":
                yield OddRail(f"{pod} carries less than half of its other rails on {rail}", (pod,))
            elif usual and cell.word == "moves" and cell.sent is not None and cell.sent < HALF * usual:
                yield OddRail(f"{pod} carries {100 * cell.sent / usual:.0f} % of its peers on {rail}", (pod,))
    if len(means) > 2:
        for rail, mean in means.items():
            usual = median(value for other, value in means.items() if other != rail)
            if mean < HALF * usual:
                yield OddRail(f"{rail} carries {100 * mean / usual:.0f} % of the other rails")


def _odd_gpus(measured: Sequence[RankTraffic]) -> Iterator[OddRail]:
    """A GPU at 0 % while the others of the job work."""
    loads = [load for rank in measured for load in rank.gpus.values()]
    if len(loads) < 2 or median(loads) < HALF:
        return
    for rank in measured:
        for index in rank.idle_gpus:
            yield OddRail(
                f"{_gpu_name(rank, index)} at 0 %, the others of the job at {100 * median(loads):.0f} %",
                (rank.pod,),
            )


def _odd_places(ranks: Sequence[RankTraffic]) -> Iterator[OddRail]:
    """A pod whose VFs are on other rails than those of most pods."""
    held = [rank for rank in ranks if rank.rails]
    usual = Counter(tuple(sorted((rail, cell.vfs) for rail, cell in rank.rails.items())) for rank in held)
    if len(usual) < 2:
        return
    most, count = usual.most_common(1)[0]
    if 2 * count <= len(held):
        return
    expected = dict(most)
    for rank in held:
        lacks = [rail for rail in expected if rail not in rank.rails]
        more = [
            f"{cell.vfs} on {rail}" for rail, cell in rank.rails.items() if cell.vfs != expected.get(rail, 0)
        ]
        if lacks or more:
            has = f", but {', '.join(few(more))}" if more else ""
            lack = f"no VF on {', '.join(few(lacks))}" if lacks else "other VFs"
            yield OddRail(f"{rank.pod} has {lack}{has}; its peers have", (rank.pod,))
