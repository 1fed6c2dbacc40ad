"""How soon and how surely the place of a fault on the rails is named, in simulated halls of three sizes.

    python hack/bench_rails.py [--quick] [--runs N]

The partners and the localizer are the product's; the fabric, its paths, and what nodes report are simulated
(``tests/support/rail_hall.py``). The columns: halls in which all faults were named, halls in which another place was
named too, and the time from the fault until the last name in 50 and in 95 of 100 halls, beside what is promised for the
default rate. The last line counts what is named in halls where nothing is wrong but that hosts pause and reboot.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.support.rail_hall import DAY_S, HALLS, ROWS, RailHall, row, unrest

CORE = "one path of the core"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="the smallest hall, few runs")
    parser.add_argument("--runs", type=int, default=200, metavar="N", help="halls of each row (200)")
    options = parser.parse_args()
    runs = 20 if options.quick else options.runs
    for name, shape in HALLS.items():
        hall = RailHall(*shape)
        # A fault of a tier makes half of all legs bad, so it takes longest to simulate.
        many = max(1, runs * 1024 // max(1024, len(hall.phases)) // 4)
        print(f"\n{name}: {len(hall.checked.legs)} legs\n{'':36} right  extra  p50 s  p95 s  promised s")
        for fault, wanted in ROWS.items():
            if fault == CORE and shape[3] == 1:
                continue
            tried = many if "spine" in fault or fault == CORE else runs
            found = row(hall, wanted, tried)
            times = [f"{found.within_s(share):5.0f}" if found.times else "    -" for share in (0.5, 0.95)]
            right = f"{found.right}/{tried}"
            print(
                f"{fault:33} {right:>8} {found.extra:6}  {times[0]}  {times[1]}  {wanted.promise_s:10.0f}",
                flush=True,
            )
        if options.quick:
            break
    days, named = 1 if options.quick else 10, Counter[str]()
    for seed in range(days):
        hall = RailHall(*HALLS["1,024 nodes"], seed=seed)
        named.update(one.finding.suspect.scope.word for one in hall.named(unrest(hall, 1.0), DAY_S))
    print(f"\n{days * 1024} node-days without a fault: {dict(named)}")


if __name__ == "__main__":
    main()
