"""What is known to have changed, and what follows from it."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from itertools import chain, combinations

#: Sizes that changed whose products are tried; each more doubles the work.
_RATIOS = 6
#: Sizes of blocks and tiles that sizes are cut into.
_TILES = tuple(2**power for power in range(1, 11))


@dataclass(slots=True)
class Changes:
    """What is known to have changed, and so explains changes elsewhere.

    Attributes:
        torch: it is another torch.
        sizes: (old, new) of the sizes of inputs that changed.
        devices, dtypes: old -> new.
        dynamic: sizes that were numbers have names, or the other way round.
        inputs: there are more or fewer inputs.
        gradient: gradients are needed of other things.
        training: the graph is one for another purpose.
        captured: ``mask`` or ``score`` -> how many more tensors that function captures.
    """

    torch: bool = False
    sizes: set[tuple[int, int]] = field(default_factory=set)
    devices: dict[str, str] = field(default_factory=dict)
    dtypes: dict[str, str] = field(default_factory=dict)
    dynamic: bool = False
    inputs: bool = False
    gradient: bool = False
    training: bool = False
    captured: dict[str, int] = field(default_factory=dict)

    @property
    def reach_code(self) -> bool:
        """Whether anything of this can change a graph's code."""
        return bool(self.sizes or self.devices or self.dtypes or self.dynamic or self.inputs or self.gradient)

    def explain(self, old: str, new: str, *, derived: bool) -> bool:
        """Whether a number follows from the sizes; ``derived``: also if it is computed from them."""
        a, b = _number(old), _number(new)
        if a is None or b is None or not self.sizes:
            return False
        if any((a, b) == (x, y) or b - a == y - x for x, y in self.sizes):
            return True
        if not derived or a == 0 or b == 0:
            return False
        ratios = self._ratios()
        if any(math.isclose(b / a, ratio, rel_tol=1e-9) for ratio in ratios):
            return True
        if isinstance(a, float) or isinstance(b, float):
            powers = (ratio**power for ratio in ratios for power in (-1, 0.5, -0.5))
            return b / a > 0 and any(math.isclose(b / a, power, rel_tol=1e-6) for power in powers)
        return any((-(-x // tile), -(-y // tile)) == (a, b) for x, y in self.sizes for tile in _TILES)

    def _ratios(self) -> set[float]:
        """By how much a size that is a product of sizes that changed may have grown."""
        known = sorted((old, new) for old, new in self.sizes if old and new)[:_RATIOS]
        products = chain.from_iterable(combinations(known, count) for count in range(1, len(known) + 1))
        return {math.prod(new / old for old, new in sizes) for sizes in products}


def _number(text: str) -> int | float | None:
    for read in (int, float):
        try:
            return read(text)
        except ValueError:
            pass  # not of this kind
    return None
