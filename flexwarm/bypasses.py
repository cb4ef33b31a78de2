"""What to do where torch does not cache a graph: by the reason that torch gives. Data, and one question asked of it. Pure.

The reasons were read in the sources of 2.11.0, 2.13.0 and 2.14.1. Advice that names something was tried with each.
"""

from __future__ import annotations

import re
from typing import Final

#: What is in torch's reason -> what to do. The first that is found counts.
_ADVICE: Final = (
    (
        r"cache_hash",
        "give the context function of the selective checkpoint an attribute cache_hash, a text that changes whenever its "
        "choices do",
    ),
    (
        r"autograd_function_apply|HigherOrderOperator: autograd_function",
        "write the torch.autograd.Function as an operator: torch.library.custom_op, with register_autograd",
    ),
    (
        r"Unsupported call_(function|method)",
        "call torch's own operators in the graph; or make the function an operator (torch.library.custom_op); or name it in "
        "torch._inductor.config.unsafe_marked_cacheable_functions, with a text that changes whenever it does",
    ),
    (r"HigherOrderOperator", "keep this operator out of what is compiled"),
    (
        r"Unsupported .*pass\b",
        "make the pass a torch._inductor.custom_graph_pass.CustomGraphPass, whose uuid() changes whenever it does",
    ),
    (r"freezing|frozen constants", "leave freezing off: torch._inductor.config.freezing, TORCHINDUCTOR_FREEZING"),
    (r"mkldnn tensors", "leave freezing off; or keep tensors in the layout of oneDNN out of the graph"),
    (
        r"CustomRuntimeEstimator|activation_memory_budget_runtime_estimator",
        "give the estimator of torch._functorch.config.activation_memory_budget_runtime_estimator a uuid()",
    ),
    (
        r"CustomKnapsackSolver|activation_memory_budget_solver",
        "give the solver of torch._functorch.config.activation_memory_budget_solver a uuid()",
    ),
    (r"torchbind", "keep script objects out of what is compiled"),
    (r"FX graph cache is not enabled", "leave torch._inductor.config.fx_graph_cache on"),
    (r"bisector", "end the bisection: unset TORCH_BISECT_BACKEND and the like"),
    (
        r"pickl|Reduce unsupported",
        "something that the graph refers to has no stable text: pass it as a tensor or a number, or make it at each call",
    ),
)
_PATTERNS: Final = tuple((re.compile(pattern, re.IGNORECASE), advice) for pattern, advice in _ADVICE)


def advice(reason: str) -> str:
    """What to do about a bypass; what can be done about any where the reason is not known.

    Args:
        reason: torch's own words.
    """
    found = next((text for pattern, text in _PATTERNS if pattern.search(reason)), "")
    return found or "take out of the graph what the reason names, or compile that region alone"
