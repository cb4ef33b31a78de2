"""Builtin functions do what their names say, held against plain Python; and the dense reference is dense attention."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from torch.nn.attention.flex_attention import flex_attention

from flexwarm import catalogue
from flexwarm.worker import masks, reference
from flexwarm.workload import Function

Q_LEN = 24


def context(q_len: int = Q_LEN, kv_len: int | None = None, *, seed: int = 0) -> masks.Context:
    return masks.Context(
        device=torch.device("cpu"),
        batch=1,
        q_heads=4,
        kv_heads=2,
        q_len=q_len,
        kv_len=kv_len or q_len,
        dtype=torch.float32,
        generator=torch.Generator().manual_seed(seed),
    )


def table(mask_mod: masks.MaskMod, q_len: int, kv_len: int) -> list[list[bool]]:
    """The mask as rows of queries, one pair of indices at a time."""
    zero = torch.tensor(0)
    return [[bool(mask_mod(zero, zero, torch.tensor(q), torch.tensor(kv))) for kv in range(kv_len)] for q in range(q_len)]


def test_the_worker_has_exactly_the_builtins_that_a_spec_may_name() -> None:
    assert set(masks.MASKS) == set(catalogue.MASKS)
    assert set(masks.SCORES) == set(catalogue.SCORES)


def test_causal_sees_itself_and_what_is_before() -> None:
    assert table(masks.causal(context()), Q_LEN, Q_LEN) == [[kv <= q for kv in range(Q_LEN)] for q in range(Q_LEN)]


def test_sliding_window_sees_exactly_window_keys() -> None:
    rows = table(masks.sliding_window(context(), window=5), Q_LEN, Q_LEN)
    assert [sum(row) for row in rows] == [min(q + 1, 5) for q in range(Q_LEN)]
    assert all(row[q] for q, row in enumerate(rows))


def test_prefix_lm_sees_the_prefix_from_everywhere() -> None:
    rows = table(masks.prefix_lm(context(), prefix=7), Q_LEN, Q_LEN)
    assert rows == [[kv < 7 or kv <= q for kv in range(Q_LEN)] for q in range(Q_LEN)]


def test_document_is_causal_inside_each_document_and_blind_outside() -> None:
    rows = table(masks.document(context(), lengths=[10, 4, 10]), Q_LEN, Q_LEN)
    ids = [0] * 10 + [1] * 4 + [2] * 10
    assert rows == [[ids[q] == ids[kv] and kv <= q for kv in range(Q_LEN)] for q in range(Q_LEN)]


@pytest.mark.parametrize("documents", [1, 2, 5, Q_LEN])
def test_document_draws_as_many_documents_as_asked_and_none_is_empty(documents: int) -> None:
    rows = table(masks.document(context(), documents=documents), Q_LEN, Q_LEN)
    starts = [q for q, row in enumerate(rows) if sum(row) == 1]
    assert len(starts) == documents
    assert starts[0] == 0


def test_the_same_seed_draws_the_same_mask_in_every_process() -> None:
    one, two = (table(masks.document(context(seed=3), documents=4), Q_LEN, Q_LEN) for _ in range(2))
    assert one == two
    assert one != table(masks.document(context(seed=4), documents=4), Q_LEN, Q_LEN)


@pytest.mark.parametrize(("kv_len", "offset"), [(Q_LEN + 16, 16), (Q_LEN, 0)])
@pytest.mark.parametrize("window", [None, 4])
def test_anchor_block_sees_the_context_before_its_anchor_and_its_own_block(
    kv_len: int, offset: int, window: int | None
) -> None:
    block = 8
    rows = table(masks.anchor_block(context(Q_LEN, kv_len), block=block, window=window), Q_LEN, kv_len)
    context_len = offset or Q_LEN
    for start in range(0, Q_LEN, block):
        own = set(range(offset + start, offset + start + block))
        seen = [{kv for kv, visible in enumerate(rows[q]) if visible} for q in range(start, start + block)]
        assert all(row == seen[0] for row in seen), "queries of one block see the same"
        assert own <= seen[0]
        before = {kv for kv in seen[0] if kv < context_len} - (own if offset == 0 else set())
        if window is not None:
            assert len(before) <= window
        if offset:
            assert before, "an anchor has at least one token of context before it"
            assert max(before) < context_len
            assert before == set(range(min(before), max(before) + 1))
            assert window is not None or min(before) == 0


def test_alibi_is_a_linear_bias_with_the_published_slopes() -> None:
    score_mod = masks.alibi(context())
    got = score_mod(torch.tensor(1.0), torch.tensor(0), torch.tensor(1), torch.tensor(5), torch.tensor(2))
    assert float(got) == pytest.approx(1.0 + 2 ** (-8 * 2 / 4) * (2 - 5))


def test_soft_cap_is_bounded_and_close_to_the_score_when_that_is_small() -> None:
    score_mod = masks.soft_cap(context(), cap=20.0)
    zero = torch.tensor(0)
    assert float(score_mod(torch.tensor(1e4), zero, zero, zero, zero)) == pytest.approx(20.0)
    assert float(score_mod(torch.tensor(0.1), zero, zero, zero, zero)) == pytest.approx(0.1, rel=1e-3)


def test_relative_bias_depends_on_the_clipped_distance_and_the_head() -> None:
    score_mod = masks.relative_bias(context(), max_distance=3)

    def bias(head: int, q: int, kv: int) -> float:
        return float(score_mod(torch.tensor(0.0), torch.tensor(0), torch.tensor(head), torch.tensor(q), torch.tensor(kv)))

    assert bias(0, 9, 2) == bias(0, 20, 1)
    assert bias(0, 9, 8) == bias(0, 5, 4)
    assert bias(0, 9, 8) != bias(1, 9, 8)
    assert bias(0, 9, 8) != bias(0, 8, 9)


def qkv(dtype: torch.dtype = torch.float32) -> tuple[torch.Tensor, ...]:
    generator = torch.Generator().manual_seed(1)
    return tuple(torch.randn(2, heads, Q_LEN, 16, generator=generator).to(dtype) for heads in (4, 2, 2))


@pytest.mark.parametrize("mask", [None, Function(name="sliding_window", args={"window": 4})])
@pytest.mark.parametrize(
    "score",
    [
        None,
        Function(name="alibi", args={}),
        Function(name="soft_cap", args={"cap": 5.0}),
        Function(name="relative_bias", args={}),
    ],
)
@pytest.mark.parametrize("scale", [None, 0.3])
def test_the_reference_is_uncompiled_flex_attention_on_the_sampled_rows(
    mask: Function | None, score: Function | None, scale: float | None
) -> None:
    q, k, v = qkv()
    mask_mod = masks.make(mask, masks.MASKS, context())
    score_mod = masks.make(score, masks.SCORES, context())

    def masked(s: torch.Tensor, b: object, h: object, i: object, j: object) -> torch.Tensor:
        s = score_mod(s, b, h, i, j) if score_mod else s
        return torch.where(mask_mod(b, h, i, j), s, -math.inf) if mask_mod else s

    whole = flex_attention(q, k, v, score_mod=masked, scale=scale, enable_gqa=True)
    rows = torch.tensor([0, 3, 11, Q_LEN - 1])
    got = reference.attention_rows(q, k, v, rows, mask_mod, score_mod, scale)
    assert torch.allclose(got, whole[:, :, rows], atol=1e-5)


def test_a_row_that_sees_nothing_is_zero_as_flex_defines_it() -> None:
    q, k, v = qkv()

    def nothing(b: torch.Tensor, h: torch.Tensor, i: torch.Tensor, j: torch.Tensor) -> torch.Tensor:
        return i < 0

    assert bool((reference.attention_rows(q, k, v, torch.tensor([1]), nothing, None, None) == 0).all())


def test_the_first_and_the_last_row_are_always_sampled() -> None:
    rows = reference.sample_rows(1000, torch.Generator().manual_seed(0)).tolist()
    assert len(rows) == len(set(rows)) == reference.ROWS
    assert rows == sorted(rows)
    assert (rows[0], rows[-1]) == (0, 999)
    assert reference.sample_rows(3, torch.Generator()).tolist() == [0, 1, 2]


@pytest.mark.parametrize("dtype", list(reference.TOLERANCES))
def test_one_element_outside_of_tolerance_is_a_disagreement(dtype: torch.dtype) -> None:
    expected = torch.zeros(2, 3)
    actual = torch.zeros(2, 3, dtype=dtype)
    absolute, _ = reference.TOLERANCES[dtype]
    assert reference.compare(actual, expected, dtype).agrees
    actual[1, 2] = absolute * 1.5
    found = reference.compare(actual, expected, dtype)
    assert not found.agrees
    assert found.error == pytest.approx(absolute * 1.5, rel=1e-2)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_result_that_is_not_finite_is_a_disagreement(bad: float) -> None:
    found = reference.compare(torch.tensor([bad]), torch.tensor([0.0]), torch.float32)
    assert (found.agrees, found.error) == (False, None)


@pytest.mark.parametrize("name", ["alone", "with_context"])
def test_a_factory_of_the_training_code_is_called_with_the_context_only_if_it_has_a_place_for_it(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "own_factories.py").write_text(
        "def alone(window):\n    return lambda b, h, q, kv: q - kv < window\n\n\n"
        "def with_context(context, window):\n    return lambda b, h, q, kv: q - kv < window + 0 * context.q_len\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    made = masks.make(Function(name=f"own_factories:{name}", args={"window": 3}), masks.MASKS, context())
    assert made is not None
    assert (made(0, 0, 5, 3), made(0, 0, 6, 3)) == (True, False)
    with pytest.raises(TypeError, match="unexpected keyword argument 'size'"):
        masks.make(Function(name=f"own_factories:{name}", args={"size": 3}), masks.MASKS, context())
