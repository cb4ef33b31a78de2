"""What a step function of a spec is called with. Training code may import this: it imports nothing, torch neither."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, slots=True, kw_only=True)
class StepContext:
    """One call of a step function: ``function(context, **step_args)``.

    Attributes:
        rank: through all roles; ``local_rank``: in its role.
        world_size: ranks of all roles.
        lane: the thread of the rank; 0 where it has one.
        role: the role's name in the spec.
        device: the lane's; it is current in the calling thread.
        dtype: as the spec says; nothing else looks at it.
        generator: a seeded CPU generator; draw from it, so that every rank and every run has the same numbers. One for all
            calls of a job: the second call draws others than the first.
        number: which call of the job this is, from 0.
    """

    rank: int
    local_rank: int
    world_size: int
    lane: int
    role: str
    device: torch.device
    dtype: torch.dtype
    generator: torch.Generator
    number: int
