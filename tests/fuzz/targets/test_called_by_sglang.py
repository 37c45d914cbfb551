"""SGLang 0.5.16's own calling code, with our wrappers in place of the functions it imports.

Two functions are cut out of the released wheel and run as they stand: the backend's method that
verifies a layer, and the one that commits after a verify. What they import by name is stood in for:
the module of the kernels is `ringfold.kernels.dropin`. The histories that are walked, and the
checks, are those of any target, so the verdict must be the one that `triton` gets: no mismatch.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Sequence
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from ringfold.fuzz.histories.generate import history
from ringfold.fuzz.judging.walk import walk
from ringfold.fuzz.running.hunt import plans
from ringfold.fuzz.targets import wheels
from ringfold.fuzz.targets.ours import TritonRing
from ringfold.fuzz.targets.pooled import Batch

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

BACKEND = "sglang/srt/layers/attention/linear/gdn_backend.py"
COMMIT = "sglang/srt/speculative/spec_utils.py"
KERNELS = "sglang.kernels.ops.attention.fla.gdn_replayssm_spec_decode"
SCATTER = "sglang.kernels.ops.mamba.mamba_state_scatter_triton"

wheel = wheels.find("sglang==0.5.16")
pytestmark = pytest.mark.skipif(
    wheel is None or not wheel.has(BACKEND), reason="ringfold targets add sglang==0.5.16"
)


def cut_out(path: str, name: str, **names: Any) -> Any:
    """The function of this name in a file of the wheel; `names` are what its module knows."""
    assert wheel is not None
    (found,) = (
        node
        for node in ast.walk(ast.parse(wheel.read(path)))
        if isinstance(node, ast.FunctionDef) and node.name == name
    )
    future = ast.ImportFrom("__future__", [ast.alias("annotations")], 0)  # types stay unread
    module = ast.fix_missing_locations(ast.Module([future, found], []))
    exec(compile(module, path, "exec"), names)  # noqa: S102 - running it is what is tested
    return names[name]


class CalledBySglang(TritonRing):
    """Our kernels, reached through SGLang's code alone, whose padding is -1 and nothing else."""

    padding_slots = (-1,)
    scattered = 0
    """Commits of convolution windows: that code was run to its end."""

    def __init__(self) -> None:
        super().__init__("called by sglang", "cpu")
        self.verify_layer = cut_out(BACKEND, "_replayssm_target_verify")
        self.commit_all = cut_out(
            COMMIT, "commit_mamba_states_after_verify", mambaish_config=bool, torch=torch
        )

    @property
    def pool(self) -> SimpleNamespace:
        """What SGLang's code takes for its pool: the cursors."""
        return SimpleNamespace(
            **{f"replayssm_{name}": cursor for name, cursor in self.cursors.items()}
        )

    def layer_cache(self, layer: int) -> SimpleNamespace:
        """What it takes for the buffers of a layer."""
        rings = {name: buffer[layer] for name, buffer in self.rings.items()}
        temporal = rings.pop("checkpoint")
        return SimpleNamespace(
            temporal=temporal, **{f"replayssm_{name}": ring for name, ring in rings.items()}
        )

    def launch_verify(self, layer: int, batch: Batch, inputs: Sequence[Any], out: Any) -> None:
        """`_replayssm_target_verify`, whose shapes are those of a server's batch."""
        q, k, v, a, b = inputs
        g = self.setup.geometry
        out.copy_(
            self.verify_layer(
                self,
                layer=SimpleNamespace(
                    num_k_heads=g.heads, head_k_dim=g.key_dim,
                    num_v_heads=g.value_heads, head_v_dim=g.value_dim,
                    A_log=self.A_log[layer], dt_bias=self.dt_bias[layer],
                ),
                query=q[None], key=k[None], value=v[None], a=a, b=b,
                mamba_pool=self.pool,
                layer_cache=self.layer_cache(layer),
                cache_indices=batch.slots,
                query_start_loc=batch.starts,
                draft_token_num=self.setup.window,
            )[0]
        )  # fmt: skip

    def launch_commit(self, slots: Any, accepted: Any, bound: int) -> None:
        """`commit_mamba_states_after_verify`, with a chain of drafts of which a prefix is kept."""

        class Pool:
            """The request pool: it knows slots by request, and requests are rows here."""

            mamba_pool = self.pool

            def get_mamba_indices(self, requests: Any) -> Any:
                """[row], of the rows asked for."""
                return slots[requests]

            def get_speculative_mamba2_params_all_layers(self) -> Any:
                """Of which the ring's length is read, and the convolution windows are passed on."""
                return SimpleNamespace(
                    replayssm_d=ring, conv=[None], intermediate_conv_window=[None]
                )

        ring, rows, T = self.memory["d"], len(slots), self.setup.window
        model_runner = SimpleNamespace(model_config="hybrid", req_to_token_pool=Pool())
        batch = SimpleNamespace(
            forward_mode=SimpleNamespace(is_idle=lambda: False),
            req_pool_indices=torch.arange(rows),
        )
        chain = torch.arange(rows * T, dtype=accepted.dtype).view(rows, T)
        self.commit_all(SimpleNamespace(model_runner=model_runner), batch, accepted, chain, bound)

    def scatter(self, *_: Any) -> None:
        """The convolution's windows are not this layer's."""
        self.scattered += 1


@pytest.fixture
def target(monkeypatch: pytest.MonkeyPatch) -> CalledBySglang:
    """With what SGLang's functions import."""
    from ringfold.kernels import dropin

    target = CalledBySglang()
    scatter = ModuleType(SCATTER)
    scatter.fused_conv_window_scatter_with_mask = target.scatter  # type: ignore[attr-defined]
    for name in (KERNELS, SCATTER):
        parts = name.split(".")
        for end in range(1, len(parts)):
            package = ModuleType(".".join(parts[:end]))
            package.__path__ = []
            monkeypatch.setitem(sys.modules, package.__name__, package)
    monkeypatch.setitem(sys.modules, KERNELS, dropin)
    monkeypatch.setitem(sys.modules, SCATTER, scatter)
    return target


@pytest.mark.parametrize("number", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_one_line_swaps_our_kernels_in(target: CalledBySglang, number: int) -> None:
    """Histories of ragged windows, padding, wraps and folds: outputs, states, bits and cursors."""
    plan = plans(target)[number]._replace(directed=False, steps=30)
    verdict = walk(history(plan, seed=0, number=number), target)

    assert verdict.mismatches == []
    assert verdict.compared["exactness"] > 0
    assert target.scattered > 0
