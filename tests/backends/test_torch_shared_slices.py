"""Slices of values whose memories differ along the dimension that is sliced: one index lies in one of them."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from shardwright.backends.torch.placed import Home
from shardwright.backends.torch.tiers import open_tiers
from shardwright.ir.types import Placement, Tier

PLACEMENT = Placement(((Tier.DEVICE, 25.0), (Tier.HOST, 50.0), (Tier.DISK, 25.0)), "N")
ALL = slice(None)


@pytest.mark.parametrize("along", [0, 1])
def test_slices_are_read_and_written_where_they_lie(along: int, tmp_path: Path) -> None:
    extents = (4, 3) if along == 0 else (3, 4)
    whole = torch.arange(12.0).reshape(extents)
    with open_tiers("cpu", {}, "a test", str(tmp_path)) as tiers:
        home = Home(tiers, "m", extents, torch.float32, PLACEMENT, along)
        assert [rows.tier for rows in home.rows] == [Tier.DEVICE, Tier.HOST, Tier.DISK]
        home.save(whole, (ALL, ALL))
        for index in range(4):
            part = (index, ALL) if along == 0 else (ALL, index)
            assert home.load(part).equal(whole[part])
            whole[part] = -1.0 - index
            home.save(whole[part], part)
            across = (ALL, index % 3) if along == 0 else (index % 3, ALL)
            assert home.load(across).equal(whole[across])
        assert home.load((ALL, ALL)).equal(whole)
        del home
