"""What would give silently wrong results is refused, with the value, the limit and the way out.

Each case spoils one argument of a call that is fine without it.  The checks read shapes, dtypes,
strides and addresses only, so none of them waits for the device.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

SPOILT: dict[str, tuple[Callable[[Any, Any], dict[str, Any]], str]] = {
    "short ring": (lambda one, w: {"max_spec_len": 5}, "must hold two windows, 10 records"),
    "odd ring": (lambda one, w: {"max_cache_len": 12}, "power of two: use 16"),
    "other ring": (lambda one, w: {"max_cache_len": 16}, r"g_cache.*|rawv_cache has shape"),
    "long window": (lambda one, w: {"max_spec_len": 1}, "2 tokens in 1 rows; with max_spec_len=1"),
    "dtype of q": (
        lambda one, w: {"q": w.q.half()},
        "q is torch.float16; it must be torch.float32",
    ),
    "dtype of a ring": (
        lambda one, w: {"rawk_cache": one.rings["rawk_cache"].half()},
        "rawk_cache is torch.float16; it must be torch.float32",
    ),
    "stride of out": (
        lambda one, w: {"out": torch.empty(2, 2, 64)[:, :, ::2]},
        "its last 2 axes must be contiguous",
    ),
    "slot stride": (
        lambda one, w: {"checkpoint_state": torch.zeros(4, 2050)[:, :2048].view(4, 2, 32, 32)},
        "slot stride of 2050 elements; with K=32 it must be a multiple of 4",
    ),
    "heads": (lambda one, w: {"k": w.k.expand(2, 3, 32)}, "H dividing HV=2"),
    "launch mode": (lambda one, w: {"launch_mode": "fold"}, "launch_mode is 'fold'"),
    "precision": (lambda one, w: {"dot_precision": "bf16"}, "dot_precision is 'bf16'"),
    "cursor": (lambda one, w: {"write_pos": one.write_pos.long()}, "write_pos is torch.int64"),
    "short cursors": (
        lambda one, w: {"cache_base": one.cache_base[:-1]},
        "cache_base has 3 slots where there are 4: allocate one for each",
    ),
    "short pool": (
        lambda one, w: {"beta_cache": one.rings["beta_cache"][:2]},
        "beta_cache has 2 slots where there are 4",
    ),
    "ring without an end": (
        lambda one, w: {"max_cache_len": one.write_pos.new_tensor(8)},
        r"max_cache_len is 8 \(Tensor\); it must be an int",
    ),
    "negative ring": (lambda one, w: {"max_cache_len": -3}, "max_cache_len is -3.*use 4"),
    "too many rows": (
        lambda one, w: {
            "query_start_loc": torch.zeros(65_537, dtype=torch.int32),
            "ssm_state_indices": torch.zeros(65_536, dtype=torch.int32),
        },
        "65536 rows; a launch takes 65535: split the batch",
    ),
}


@pytest.mark.parametrize(("spoil", "message"), SPOILT.values(), ids=SPOILT)
def test_a_spoilt_argument_is_named(
    layer: Callable[..., Any], spoil: Callable[[Any, Any], dict[str, Any]], message: str
) -> None:
    """ValueError, before anything is launched."""
    one = layer()
    w = one.window((1,), (2,))

    with pytest.raises(ValueError, match=message):
        one.verify(w, **spoil(one, w))

    assert w.out.isnan().all()


def test_what_a_program_cannot_hold_is_named(
    layer: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """ValueError with the sizes, where Triton says that a GPU has not so much shared memory."""
    from triton.runtime.errors import OutOfResources

    from ringfold.kernels import ring

    class Launches:
        def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
            def launch(*args: object, **options: object) -> None:
                raise OutOfResources(262_144, 232_448, "shared memory")

            return launch

    one = layer()
    monkeypatch.setattr(ring, "plan_kernel", Launches())

    with pytest.raises(ValueError, match=r"K=32, max_cache_len=8 .*shorten the ring.*262144"):
        one.verify(one.window((1,), (2,)))


@pytest.mark.gpu
def test_what_no_hopper_can_hold_is_named(layer: Callable[..., Any]) -> None:
    """float32 with K=256, L=128 and T=17: keys of history and window have 256 KiB."""
    K, L, T = 256, 128, 17
    if torch.cuda.get_device_properties().shared_memory_per_block_optin > 2**18:
        pytest.skip("this GPU has that much")
    one = layer(H=1, HV=1, K=K, V=16, L=L, T=T)
    with pytest.raises(ValueError, match="K=256, max_cache_len=128 and max_spec_len=17"):
        one.verify(one.window((1,), (2,)))


@pytest.mark.parametrize(("L", "T"), [(8, 5), (12, 2)])
def test_cursors_refuse_such_a_ring_too(layer: Callable[..., Any], L: int, T: int) -> None:
    """The commit would set flags by a rule that the ring cannot keep."""
    from ringfold.kernels.cursors import commit_gdn_replayssm_spec

    one = layer()

    with pytest.raises(ValueError, match="max_cache_len is"):
        commit_gdn_replayssm_spec(
            one.write_pos, one.cache_base, one.is_flush, one.ints((1,)), one.ints((1,)), L, T
        )


def test_whom_to_reset_is_no_float(layer: Callable[..., Any]) -> None:
    """A mask of floats has other bytes."""
    from ringfold.kernels.cursors import reset_gdn_replayssm_spec_cursors

    one = layer()

    with pytest.raises(ValueError, match=r"do_reset is torch\.float32; it must be torch\.int8 or"):
        reset_gdn_replayssm_spec_cursors(
            one.write_pos, one.cache_base, one.is_flush, torch.ones(1), one.ints((1,)), 8, 2
        )


# As released in SGLang 0.5.16.
VERIFY = (
    "q k v a b A_log dt_bias checkpoint_state d_cache k_cache g_cache rawv_cache rawk_cache "
    "beta_cache out query_start_loc ssm_state_indices write_pos cache_base is_flush "
    "max_cache_len max_spec_len scale use_qk_l2norm_in_kernel null_block_id block_v num_warps "
    "num_stages nk bs_min block_v_flush num_warps_flush num_stages_flush nk_flush launch_mode "
    "dot_precision"
)
COMMIT = (
    "write_pos cache_base is_flush num_accepted state_batch_indices max_cache_len max_spec_len "
    "cache_buf_len null_block_id"
)
RESET = (
    "write_pos cache_base is_flush do_reset state_batch_indices max_cache_len max_spec_len "
    "null_block_id"
)


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("gdn_replayssm_spec_decode", VERIFY),
        ("commit_gdn_replayssm_spec", COMMIT),
        ("reset_gdn_replayssm_spec_cursors", RESET),
    ],
)
def test_the_signatures_are_sglangs(name: str, parameters: str) -> None:
    """By position and by name; what we add is keyword-only."""
    from ringfold.kernels import dropin

    ours = inspect.signature(getattr(dropin, name)).parameters.values()

    assert [p.name for p in ours if p.kind is not p.KEYWORD_ONLY] == parameters.split()
