"""SGLang 0.5.16's released ring kernels agree with the recurrence.

The kernels come unedited from the wheel in the cache (without it these tests are skipped and say
so) and run in Triton's interpreter, or on a GPU with `--device cuda`. A short history with every
operation that they own is walked: a wrapped window, folds across the wrap, zero and full
acceptance, padding, reuse of a slot, NaN in dead memory. So that agreeing means something, one
argument of a launch is then made wrong, and must be found.
"""

from __future__ import annotations

import hashlib
from typing import Any, cast

import msgspec
import pytest

from ringfold.fuzz.histories.trace import (
    Admit,
    Commit,
    Decode,
    Free,
    Idle,
    Operation,
    PayloadSpec,
    Place,
    Trace,
    Verify,
    validate,
)
from ringfold.fuzz.judging.walk import Verdict, walk
from ringfold.fuzz.target import Device, RefusedError
from ringfold.fuzz.targets import wheels
from ringfold.fuzz.targets.registry import resolve
from ringfold.sim.setup import Dtypes, Geometry, Setup

pytest.importorskip("triton")

RELEASE = "sglang==0.5.16"
SETUP = Setup("ring", Geometry(1, 2, 32, 16), ring=8, window=2, slots=4)

pytestmark = pytest.mark.skipif(
    wheels.find(RELEASE) is None, reason=f"needs the wheel: ringfold targets add {RELEASE}"
)

EVERYTHING: tuple[Operation, ...] = (
    Admit(request=0, tag=1, dead="nan"),
    Place(request=1, tag=2, base=5, records=5, flush=True, dead="nan"),  # wraps, and is due
    Verify(tag=3, rows=(1, None, 0), lengths=(2, 1, 1), dead="nan"),
    Idle(rows=2, dead="garbage"),
    Commit(tag=3, accepted=(0, None, 1), dead="nan"),
    Decode(tag=4, rows=(None, 1), dead="nan"),
    Verify(tag=5, rows=(0,), lengths=(2,)),
    Free(request=0, dead="nan"),  # in flight
    Commit(tag=5, accepted=(None,)),
    Place(request=2, tag=6, base=3, records=4, flush=False, dead="garbage"),
    Verify(tag=7, rows=(2, 1), lengths=(2, 2), dead="nan"),
    Commit(tag=7, accepted=(2, 1), dead="nan"),
    Verify(tag=8, rows=(1, 2), lengths=(1, 2), dead="nan"),
    Commit(tag=8, accepted=(1, 2), bound=2, dead="nan"),
)


def trace(*operations: Operation, dtype: str = "float32") -> Trace:
    setup = msgspec.structs.replace(SETUP, dtypes=Dtypes(dtype, dtype, "float32"))
    made = Trace(setup=setup, payload=PayloadSpec(7, "slow-decay"), operations=operations)
    validate(made)
    return made


def walked(device: Device, name: str = RELEASE, **options: Any) -> Verdict:
    return walk(trace(*EVERYTHING, **options), resolve(name, device))


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("suffix", ["", "+split"])
def test_it_agrees(suffix: str, dtype: str, device: Device) -> None:
    """Through every operation that it owns; verify and flush together and one at a time."""
    verdict = walked(device, RELEASE + suffix, dtype=dtype)

    assert verdict.mismatches == []
    assert verdict.skipped == {}
    assert verdict.windows == 8
    assert verdict.situations["fold straddles the wrap"] == 2
    assert verdict.situations["window wraps"] == 1
    assert 0 < verdict.largest["outputs"] < 1
    assert verdict.compared["exactness"] >= 2


@pytest.mark.parametrize(
    ("wrapper", "change", "check"),
    [
        ("verify", {"max_cache_len": 16}, None),
        ("verify", {"use_qk_l2norm_in_kernel": False}, "outputs"),
        ("commit", {"max_spec_len": 1}, "cursors"),
        ("reset", {"max_spec_len": 8}, "cursors"),
    ],
)
def test_a_wrong_argument_is_found(
    wrapper: str, change: dict[str, Any], check: str | None, device: Device
) -> None:
    """The adapter's arguments matter; a crash is a finding too."""
    target: Any = resolve(RELEASE, device)
    right = getattr(target.wrappers, wrapper)

    def wrong(*args: Any, **kwargs: Any) -> Any:
        return right(*args, **kwargs | change)

    target.wrappers = target.wrappers._replace(**{wrapper: wrong})

    found = walk(trace(*EVERYTHING), target).mismatches

    assert found
    assert check is None or found[0].check == check


@pytest.mark.parametrize(("base", "records"), [(0, 0), (7, 1), (3, 4), (6, 5), (1, 6)], ids=str)
def test_a_request_can_be_placed_in_any_state(base: int, records: int, device: Device) -> None:
    """Two steps from there agree, a fold of placed records among them."""
    flush = records + 4 > 8
    made = trace(
        Place(request=0, tag=1, base=base, records=records, flush=flush, dead="nan"),
        Verify(tag=2, rows=(0,), lengths=(2,), dead="nan"),
        Commit(tag=2, accepted=(2,), dead="nan"),
        Verify(tag=3, rows=(0,), lengths=(1,), dead="nan"),
        Commit(tag=3, accepted=(1,), dead="nan"),
    )

    verdict = walk(made, resolve(RELEASE, device))

    assert verdict.mismatches == []
    assert verdict.compared["state-local"] >= 3
    assert ("fold" in verdict.situations) == (records > 2)


def test_bfloat16_is_refused(device: Device) -> None:
    """The interpreter is silently wrong there, so nothing is walked."""
    if device == "cuda":
        pytest.skip("a GPU computes bfloat16")
    with pytest.raises(RefusedError, match="bfloat16 is silently wrong"):
        walked(device, dtype="bfloat16")


def test_it_names_the_files_that_run(device: Device) -> None:
    """Release, versions, and the SHA-256 of each file loaded, as it lies in the wheel."""
    target = cast(Any, resolve(RELEASE, device))
    identity = target.identity()
    wheel = wheels.find(RELEASE)
    assert wheel is not None
    path = "sglang/kernels/ops/attention/fla/gdn_replayssm_spec_decode.py"
    digest = hashlib.sha256(wheel.read(path)).hexdigest()

    assert identity["release"] == RELEASE
    assert digest in identity.values()
    assert {"torch", "triton", "device"} <= set(identity)
    twin = target.twin()
    assert twin is not None
    assert digest not in dict(twin.identity(), **{"gdn_replayssm_spec_decode.py": ""}).values()
    assert twin.dialect.name == "snapshots"
