"""What each release's own pool allocates, beside what `ringfold.sim.memory` counts.

Each release builds small pools in a process of its own, in the environment that
`ringfold targets add sglang-pool==RELEASE` makes; every storage that a pool holds is summed up.

    python docs/findings/memory_pools.py docs/results/memory-pools.json
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ringfold.fuzz.provenance import machine
from ringfold.fuzz.targets import environments
from ringfold.sim.memory import LAYOUTS, Layout, Pool, account, kept
from ringfold.sim.setup import Geometry

RELEASES = tuple(f"0.5.{patch}" for patch in range(16, 24))
WORKER = Path(__file__).with_name("memory_pools_worker.py")

# Every axis has a length of its own, so that no two shapes agree by accident.
SMALL: dict[str, Any] = {
    "layers": 2,
    "heads": 3,
    "value_heads": 6,
    "k": 5,
    "v": 7,
    "conv_width": 4,
    "window": 4,
    "running": 9,
    "slots": 20,
    "ring": 8,
    "state_dtype": "float32",
    "conv_dtype": "bfloat16",
}
CHANGES: tuple[dict[str, Any], ...] = (
    {},
    {"conv_dtype": "float32"},
    {"state_dtype": "bfloat16"},
    {"conv_width": 3, "window": 2, "ring": 16, "running": 11, "slots": 11},
)
MODES = {"off": "no ReplaySSM", "replay": "verify from a ring", "decode": "decode from a ring"}
POOLS = [{"mode": mode, **SMALL, **change} for mode in MODES for change in CHANGES]

# A release's name for a buffer, where it is not ours with `replayssm_` in front.
NAMES = {
    "temporal": "checkpoint",
    "intermediate_ssm": "snapshots",
    "intermediate_conv_window_phys": "conv_windows",
    "spec_write_pos": "write_pos",
}
COMPACT_NAMES = {"rawv": "d_low", "rawk": "k_low"}


def layout_of(release: str, mode: str) -> Layout:
    """What `sim.memory` holds this release to keep."""
    patch = int(release.rpartition(".")[2])
    verifies = "ring" if patch == 16 else "fold-every-commit" if patch < 20 else "compact"
    dialect = {"off": "snapshots", "replay": verifies, "decode": "decode-ring"}[mode]

    def covers(releases: str) -> bool:
        first, _, last = releases.partition("-")
        return int(first[4:]) <= patch <= int((last or first)[4:])

    return next(
        layout
        for layout in LAYOUTS
        if layout.dialect == dialect and layout.releases[0] == "0" and covers(layout.releases)
    )


def sized(pool: dict[str, Any]) -> Pool:
    """The same pool for `sim.memory`."""
    return Pool(
        pool["layers"],
        Geometry(pool["heads"], pool["value_heads"], pool["k"], pool["v"]),
        pool["conv_width"],
        pool["window"],
        pool["running"],
        pool["slots"],
        pool["ring"],
        pool["state_dtype"],
        pool["conv_dtype"],
    )


def counted(release: str, pool: dict[str, Any]) -> dict[str, int]:
    """Bytes by buffer as `sim.memory` counts them."""
    ours = sized(pool)
    return {b.name: kept(b, ours).bytes for b in layout_of(release, pool["mode"]).kept(ours)}


def charged(release: str, pool: dict[str, Any]) -> int | None:
    """What `sim.memory` says that the release's sizing charges for a ring of one slot or request."""
    one = account(layout_of(release, pool["mode"]), sized(pool))
    return one.rings_bytes_per_slot + one.rings_bytes_per_request if one.rings_in_budget else None


def named(release: str, pool: dict[str, Any], found: dict[str, int]) -> dict[str, int]:
    """A pool's bytes under our names."""
    compact = layout_of(release, pool["mode"]).dialect == "compact"
    ours: dict[str, int] = {}
    for theirs, size in found.items():
        name = theirs.removeprefix("replayssm_")
        name = NAMES.get(name, name)
        ours[COMPACT_NAMES.get(name, name) if compact else name] = size
    return ours


def measured(releases: Sequence[str]) -> dict[str, dict[str, Any]]:
    """What the pools of `POOLS` keep in each release, by its own names, and what it charges."""
    environment = environments.find()
    assert environment is not None, environments.REMEDY
    folders = [str(environments.unpacked(f"sglang=={release}")) for release in releases]
    variables = environments.variables(f"sglang=={releases[0]}")
    del variables["PYTHONPATH"]  # each process puts its own release there
    done = subprocess.run(
        [str(environment.python), str(WORKER), *folders],
        input=json.dumps(POOLS),
        env=variables,
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    answers = [
        json.loads(line) for line in done.stdout.splitlines() if line.startswith('{"version"')
    ]
    assert [answer.pop("version") for answer in answers] == list(releases)
    return dict(zip(releases, answers, strict=True))


def text(releases: dict[str, dict[str, Any]]) -> str:
    """JSON with a pool a line."""

    def lines(pools: list[Any]) -> str:
        return "[\n" + ",\n".join(f"  {json.dumps(pool)}" for pool in pools) + "\n]"

    found = ",\n".join(
        f'{json.dumps(name)}: {{"charged": {json.dumps(of["charged"])}, "pools": {lines(of["pools"])}}}'
        for name, of in releases.items()
    )
    made = json.dumps(machine())
    return f'{{"machine": {made},\n"pools": {lines(POOLS)},\n"releases": {{\n{found}\n}}}}\n'


def main() -> None:
    """Measure every release and write the file that is named."""
    releases, different = measured(RELEASES), 0
    for release, found in releases.items():
        for pool, sizes, charge in zip(POOLS, found["pools"], found["charged"], strict=True):
            theirs = named(release, pool, sizes), charge
            if (ours := (counted(release, pool), charged(release, pool))) != theirs:
                different += 1
                print(f"{release} {pool}:\n  theirs {theirs}\n  ours   {ours}")
        print(f"{release}: {len(found['pools'])} pools")
    Path(sys.argv[1]).write_text(text(releases))
    print(f"{different} pools differ")


if __name__ == "__main__":
    main()
