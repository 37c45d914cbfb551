"""The ring kernel's outputs equal the float64 recurrence's; its folded states equal the twin's.

The recurrence is the oracle's, which knows no ring.  The twin is a second pool that the recurrent
kernel walks over the accepted tokens; it is compared bit for bit, for that is the ring's claim.
Dead ring rows hold NaN, so that anything which reads them shows.  In the interpreter this tests
the algorithm; only `--device cuda` tests what a compiler makes of it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

FP32 = 2e-6  # of the largest output; seen 6e-7 in the interpreter
FP32_CUDA = 5e-3  # tf32 dots truncate to 10 bits; seen 1.8e-3
FP16 = 5e-3  # seen 1.0e-3: half a unit of the output's last place, and records in fp16

SHAPES = {
    "plain": {},
    "shared keys": {"HV": 4, "H": 2, "T": 3},
    "odd widths": {"K": 40, "V": 24, "HV": 1},
    "wide": {"K": 96, "V": 72, "HV": 1, "L": 16, "T": 4},
    "half": {"dtype": torch.float16},
    "no norm": {"norm": False, "K": 16, "V": 16},
}


def tolerance(layer: Any) -> float:
    if layer.shape.dtype == torch.float16:
        return FP16
    return FP32 if layer.device == "cpu" else FP32_CUDA


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_a_history_agrees_with_the_recurrence_and_with_the_twin(
    layer: Callable[..., Any], shape: dict[str, Any]
) -> None:
    """Ragged windows, padding, any acceptance, wraps: outputs in tolerance, folds bit for bit."""
    one = layer(**({"L": 8, "T": 2, "slots": 3} | shape))
    T = one.shape.T
    folds = 0
    for step in range(10):
        slots = (1, 2) if step % 3 else (2, 0, 1)
        lengths = [T - (step + r) % 4 // 3 for r in range(len(slots))]
        w = one.window(slots, lengths)
        due = one.is_flush.tolist()
        if not one.shape.norm:
            w.k *= 0.2

        one.verify(w)

        assert one.output_error(w) < tolerance(one)
        for slot in slots:
            if slot and due[slot]:
                folds += 1
                assert torch.equal(one.state[slot], one.twin[slot])
        one.commit(w, [max(0, n - (step + r) % 2) for r, n in enumerate(lengths)])

    assert folds >= 2
    assert one.state_error(one.twin) < FP32


def test_launch_modes_share_the_rows_between_them(layer: Callable[..., Any]) -> None:
    """`verify` and then `flush` leave the bits that `both` leaves; each leaves the rest alone."""
    both, apart = (layer(slots=3) for _ in range(2))
    for one in (both, apart):
        for _ in range(3):
            w = one.window((1,), (2,))
            one.verify(w)
            one.commit(w, (2,))
    assert both.is_flush.tolist() == [0, 1, 0]
    w, again = both.window((1, 0, 2), (2, 1, 2)), apart.window((1, 0, 2), (2, 1, 2))
    both.verify(w)

    apart.verify(again, launch_mode="verify")
    assert again.out[:2].isnan().all()
    assert torch.equal(again.out[2:], w.out[2:])
    apart.verify(again, launch_mode="flush")

    assert torch.equal(again.out, w.out)
    assert torch.equal(apart.state, both.state)
    for name, ring in both.rings.items():
        assert torch.equal(ring.nan_to_num(7.0), apart.rings[name].nan_to_num(7.0))


def test_a_padding_row_and_an_empty_window_touch_nothing(layer: Callable[..., Any]) -> None:
    """Checkpoints and rings keep their bits; the padding row's outputs are zero."""
    one = layer()
    state = one.state.clone()
    w = one.window((0, 3), (2, 0))

    one.verify(w)

    assert not w.out.any()
    assert torch.equal(one.state, state)
    assert all(ring.isnan().all() for ring in one.rings.values())


def test_an_empty_window_on_a_flushing_row_folds(layer: Callable[..., Any]) -> None:
    """The flag speaks of the history, not of the window."""
    one = layer(slots=2)
    for _ in range(3):
        w = one.window((1,), (2,))
        one.verify(w)
        one.commit(w, (2,))
    assert one.is_flush.tolist() == [0, 1]

    one.verify(one.window((1,), (0,)))

    assert torch.equal(one.state[1], one.twin[1])


def test_raw_records_are_the_inputs_bit_for_bit(layer: Callable[..., Any]) -> None:
    """Behind the history, from the row that the cursors say, wrapping at the ring's end."""
    one = layer(H=1, HV=1, L=8, T=2, slots=3)
    one.cache_base.fill_(7)
    w = one.window((2,), (2,))

    one.verify(w)

    for t, row in enumerate((7, 0)):
        assert torch.equal(one.rings["rawk_cache"][2, 0, row], w.k[t, 0])
        assert torch.equal(one.rings["rawv_cache"][2, 0, row], w.v[t, 0])
    assert one.rings["rawv_cache"][2, 0, 1:7].isnan().all()


def test_tokens_past_the_promised_length_come_out_as_nan(layer: Callable[..., Any]) -> None:
    """A row longer than max_spec_len cannot be seen from the host; it must not look right."""
    one = layer(slots=3)
    w = one.window((1, 2), (3, 1))

    one.verify(w)

    assert w.out[2].isnan().all()
    assert w.out[:2].isfinite().all()
    assert w.out[3].isfinite().all()


def test_the_slot_stride_is_honoured(layer: Callable[..., Any]) -> None:
    """A pool whose slots lie apart gives the bits of a dense one, and its gaps stay as they are."""
    dense, apart = layer(slots=2), layer(slots=2)
    _, HV, V, K = apart.state.shape
    wide = torch.full((2, HV * V * K + 8), 7.0, device=apart.device)
    strided = wide[:, : HV * V * K].view(2, HV, V, K)
    strided.copy_(apart.state)
    apart.state = strided
    for one in (dense, apart):
        for _ in range(4):
            w = one.window((1,), (2,))
            one.verify(w)
            one.commit(w, (2,))

    assert torch.equal(dense.state, apart.state)
    assert (wide[:, HV * V * K :] == 7.0).all()


def test_plain_decode_is_a_window_of_one(layer: Callable[..., Any]) -> None:
    """One token a row, all accepted: the recurrence, token by token."""
    from ringfold.kernels.ring import gdn_ring_decode

    one = layer(T=1, L=4, slots=3)
    for _ in range(6):
        w = one.window((2, 1), (1, 1))
        gdn_ring_decode(
            w.q, w.k, w.v, w.a, w.b, one.A_log, one.dt_bias, one.state, **one.rings,
            out=w.out, ssm_state_indices=one.ints(w.slots), write_pos=one.write_pos,
            cache_base=one.cache_base, is_flush=one.is_flush, max_cache_len=4, null_block_id=0,
        )  # fmt: skip

        assert one.output_error(w) < tolerance(one)
        one.commit(w, (1, 1))
    assert one.write_pos.tolist() != [0, 6, 6]


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("block_v", [16, 32, 64])
def test_every_tile_gives_the_same_bits(
    layer: Callable[..., Any], dtype: Any, block_v: int
) -> None:
    """Folds agree with a twin that is cut otherwise, at a width that is no power of two."""
    from ringfold.kernels.state import Tile

    one = layer(K=96, V=80, HV=4, H=2, L=16, T=4, slots=3, dtype=dtype)
    for _ in range(8):
        w = one.window((1, 2), (4, 4))
        due = one.is_flush.tolist()
        one.verify(w, tile=Tile(block_v, block_v // 16))
        for slot in (1, 2):
            if due[slot]:
                assert torch.equal(one.state[slot], one.twin[slot])
        one.commit(w, (4, 3))
