import torch
from hypothesis import given
from hypothesis import strategies as st

from minefleet.policies.layers.mergeable_moments import merge, moments_of


@given(st.lists(st.integers(0, 5), min_size=1, max_size=5), st.integers(0, 2**31 - 1))
def test_the_moments_of_pieces_merge_to_those_of_the_whole_with_empty_pieces_too(lengths: list[int], seed: int) -> None:
    rows = torch.randn(sum(lengths), 2, 3, generator=torch.Generator().manual_seed(seed)) * 3 + 1e3
    merged = merge([moments_of(piece) for piece in torch.split(rows, lengths)])
    assert merged.count == len(rows)
    if len(rows):
        torch.testing.assert_close(merged.mean, rows.double().mean(0), rtol=1e-12, atol=0)
        torch.testing.assert_close(merged.variance, rows.double().var(0, correction=0), rtol=1e-9, atol=1e-12)
    else:
        assert (merged.mean == 0).all() and (merged.variance == 0).all()
