"""How soon and how surely the place of a fault on the rails is named, in simulated halls of three sizes.

    python hack/bench_rails.py [--quick] [--runs N] [--days N] [--hall NAME] [--per-second N]

The partners, the windows of the agents and the localizer are the product's; the fabric and its paths are simulated
(``tests/support/rail_hall.py``). The columns: halls in which all faults were named, halls in which another place was
named too, and the time from the fault until the last name in 50 and in 95 of 100 halls, beside what is promised for
this rate. The last line counts what is named in halls where nothing is wrong but that hosts pause and reboot. The seeds
are fixed: run i of a row is the same hall each time.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.support.rail_hall import DAY_S, DEFAULT, FASTEST, HALLS, ROWS, RailHall, row, unrest

CORE = "one path of the core"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="the smallest hall, few runs, one day")
    parser.add_argument("--runs", type=int, default=200, metavar="N", help="halls of each row (200)")
    parser.add_argument(
        "--days", type=int, default=10, metavar="N", help="days of a hall without a fault (10)"
    )
    parser.add_argument("--hall", choices=HALLS, help="this size alone")
    parser.add_argument("--per-second", type=float, help=f"this rate alone, not {DEFAULT} and {FASTEST}")
    options = parser.parse_args()
    sizes = [options.hall] if options.hall else list(HALLS)[: 1 if options.quick else None]
    rates = [options.per_second] if options.per_second else [DEFAULT, FASTEST]
    for rate in rates:
        for size in sizes:
            rows(size, rate, 20 if options.quick else options.runs)
        quiet_days(rate, min(options.days, 1) if options.quick else options.days)


def rows(size: str, rate: float, runs: int) -> None:
    hall = RailHall(*HALLS[size], per_second=rate)
    print(f"\n{size}: {len(hall.checked.legs)} legs, {rate} packets a second to each partner")
    print(f"{'':36} right  extra  p50 s  p95 s  promised s")
    for fault, wanted in ROWS.items():
        if fault == CORE and HALLS[size][3] == 1:
            continue
        # A fault of a tier makes half of all legs bad, so it takes longest to simulate.
        tier = "spine" in fault or fault == CORE
        tried = max(1, runs // 8 * 1024 // max(1024, len(hall.phases))) if tier else runs
        found = row(hall, wanted, tried)
        times = [f"{found.within_s(share):5.0f}" if found.times else "    -" for share in (0.5, 0.95)]
        right, promised = f"{found.right}/{tried}", wanted.promised_s(rate)
        print(f"{fault:33} {right:>8} {found.extra:6}  {times[0]}  {times[1]}  {promised:10.0f}", flush=True)


def quiet_days(rate: float, days: int) -> None:
    named = Counter[str]()
    for seed in range(days):
        hall = RailHall(*HALLS["1,024 nodes"], seed=seed, per_second=rate)
        named.update(one.finding.suspect.scope.word for one in hall.named(unrest(hall, 1.0), DAY_S))
    if days:
        print(f"\n{days * 1024} node-days without a fault, {rate} packets a second: {dict(named)}")


if __name__ == "__main__":
    main()
