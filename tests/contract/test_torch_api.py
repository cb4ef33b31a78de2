"""What flexwarm believes of the installed torch's private parts. When one of these fails, torch has moved."""

from __future__ import annotations

import inspect
import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

from flexwarm import toolchain, workload
from flexwarm.observer.torch_api import resolve

pytestmark = pytest.mark.torch


def in_new_process(directory: Path, program: str, **env: str) -> Any:
    """The last line that a program prints, as JSON; with caches of its own in ``directory``."""
    environ = {
        **os.environ,
        "TORCHINDUCTOR_CACHE_DIR": str(directory / "inductor"),
        "TORCHINDUCTOR_CPP_CACHE_PRECOMPILE_HEADERS": "0",
        **env,
    }
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)], cwd=directory, env=environ, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_every_private_part_that_the_witnesses_rest_on_is_there() -> None:
    api = resolve()
    assert next(iter(inspect.signature(api.fx_cache.load_with_key).parameters)) == "key"
    assert "is_backward" in inspect.signature(api.fx_cache.load_with_key).parameters


def test_the_settings_under_which_torch_chooses_out_of_sight_are_there_and_off() -> None:
    import torch._functorch.config as functorch

    from flexwarm.observer.torch_api import probe

    api = resolve()
    late = {"pipeline_max_autotune_gemm", "distributed_max_autotune_gemm"}  # settings of 2.11
    missing = {name for name in probe._CHOOSING if not hasattr(api.inductor_config, name)}
    assert missing <= (late if toolchain.require_supported().minor < (2, 11) else set())
    assert hasattr(api.inductor_config.triton, "multi_kernel")
    assert api.settings_that_choose() == []
    with api.inductor_config.patch({"coordinate_descent_tuning": True, "triton.multi_kernel": 1}):
        assert api.settings_that_choose() == ["coordinate_descent_tuning", "triton.multi_kernel"]
    with functorch.patch(activation_memory_budget_runtime_estimator="profile", activation_memory_budget=0.5):
        assert api.settings_that_choose() == ["activation_memory_budget_runtime_estimator"]


def test_a_torch_that_lacks_a_part_is_refused_by_version_and_name(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch
    from torch._inductor.codecache import FxGraphCache

    from flexwarm.errors import ExitCode, UnsupportedError

    monkeypatch.delattr(FxGraphCache, "load_with_key")
    with pytest.raises(UnsupportedError, match="load_with_key") as caught:
        resolve()
    assert torch.__version__ in caught.value.message
    assert caught.value.exit_code is ExitCode.UNSUPPORTED


def test_a_part_of_another_shape_is_refused_too(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch._inductor.codecache import FxGraphCache

    from flexwarm.errors import UnsupportedError

    monkeypatch.setattr(FxGraphCache, "load_with_key", classmethod(lambda cls: None))
    with pytest.raises(UnsupportedError, match="not a static method"):
        resolve()


def test_dynamos_recompile_limit_is_what_the_planner_counts_with() -> None:
    import torch._dynamo.config as config

    assert config.recompile_limit == workload.RECOMPILE_LIMIT


def test_the_installed_torch_is_one_that_flexwarm_knows() -> None:
    import torch

    assert toolchain.require_supported().version == torch.__version__


def test_the_precompiled_header_is_outside_of_the_cache_directory_unless_it_is_switched_off(tmp_path: Path) -> None:
    program = """
        import json, torch._inductor.config as c
        from torch._inductor import codecache
        print(json.dumps([str(codecache._HEADER_DIR), c.cpp_cache_precompile_headers]))
    """
    directory, used = in_new_process(tmp_path, program)
    assert not directory.startswith(str(tmp_path / "inductor"))
    # The variable is read from torch 2.12 on; before, a CPU launch may compile the header, which the second witness sees.
    assert used is (toolchain.require_supported().minor < (2, 12))
    _, used = in_new_process(tmp_path, program, TORCHINDUCTOR_CPP_CACHE_PRECOMPILE_HEADERS="1")
    assert used is True


SCRIPT = """
import json, sys, time
import torch
from torch.nn.attention.flex_attention import flex_attention
from torch._dynamo.utils import counters
from flexwarm.observer import caches, compilers, dense
from flexwarm.observer.recorder import Recorder, StopAtMiss
from flexwarm.observer.torch_api import resolve
from flexwarm.request import Purpose
from pathlib import Path
recorder = Recorder(Path(sys.argv[1]), Purpose(sys.argv[2]))
api = resolve()
compilers.watch_processes(recorder)
caches.watch(api, recorder)
dense.watch(api, recorder)
q, k, v = (torch.randn(1, 2, 128, 32) for _ in range(3))
stopped = False
with torch.no_grad():
    try:
        torch.compile(flex_attention)(q, k, v)
    except StopAtMiss:
        stopped = True
if "dense" in sys.argv:
    flex_attention(q, k, v)
print(json.dumps([stopped, caches.read_counters(api)]))
"""


def test_cold_then_warm_every_layer_reports_the_same_keys_and_agrees_with_torchs_counters(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)

    def run(purpose: str, *extra: str) -> tuple[bool, dict[str, int], list[dict[str, Any]]]:
        events = tmp_path / f"{purpose}{len(list(tmp_path.glob('*.events')))}.events"
        argv = ["s", str(events), purpose, *extra]
        program = f"import sys; sys.argv = {argv!r}; exec(open('script.py').read())"
        stopped, counters = in_new_process(tmp_path, program)
        return stopped, counters, [json.loads(line) for line in events.read_text().splitlines()]

    def lookups(said: list[dict[str, Any]]) -> set[tuple[str, str, str]]:
        return {(e["layer"], e["answer"], e["key"]) for e in said if e["event"] == "lookup"}

    # While verifying a cold cache: stopped before any compiler ran and before anything was written.
    stopped, _, said = run("verify")
    assert stopped
    assert {(layer, answer) for layer, answer, _ in lookups(said)} == {("aot", "miss"), ("fx", "miss")}
    assert not [e for e in said if e["event"] == "compiled"]
    written = [p for p in (tmp_path / "inductor").rglob("*") if p.is_file() and "locks" not in p.parts]
    assert written == []

    stopped, counters, cold = run("build", "dense")
    assert not stopped
    assert counters["inductor.fxgraph_cache_miss"] == counters["aot_autograd.autograd_cache_miss"] == 1
    assert counters["aot_autograd.autograd_cache_saved"] == 1
    assert [e["what"] for e in cold if e["event"] == "compiled"]
    # Dense attention is seen where it ran, and only there: compiling traced the same function with fake tensors.
    assert [e["shape"] for e in cold if e["event"] == "dense"] == [[1, 2, 128, 32]]

    stopped, counters, warm = run("verify")
    assert not stopped
    assert counters["inductor.fxgraph_cache_hit"] == counters["aot_autograd.autograd_cache_hit"] == 1
    assert not [e for e in warm if e["event"] in ("compiled", "dense")]
    assert {(layer, key) for layer, _, key in lookups(warm)} == {(layer, key) for layer, _, key in lookups(cold)}
    assert {answer for _, answer, _ in lookups(warm)} == {"hit"}
    # Where torch keeps an entry is what a build reads off the disk.
    for layer, _, key in lookups(warm):
        pattern = f"aotautograd/{key}/*" if layer == "aot" else f"fxgraph/*/{key}/*"
        assert list((tmp_path / "inductor").glob(pattern)), (layer, key)


@pytest.mark.parametrize("tuning", ["miss", "try", "keep"])
def test_each_tuning_of_a_kernel_of_the_users_is_reported_once(tmp_path: Path, tuning: str) -> None:
    """Triton's own class, with a kernel and a clock that need no GPU."""
    answer = in_new_process(
        tmp_path,
        f"""
        import json
        from pathlib import Path
        import triton
        from triton.runtime.autotuner import Autotuner
        from flexwarm.events import Compiled, Tuned, from_line
        from flexwarm.observer import compilers
        from flexwarm.observer.recorder import Recorder
        from flexwarm.observer.torch_api import resolve
        from flexwarm.request import Purpose, Tuning

        compilers.watch_kernel_autotune(resolve(), Recorder(Path("events"), Purpose.BUILD, Tuning("{tuning}")))

        def add(n, BLOCK): ...

        class Kernel:
            fn = staticmethod(add)
            ran = []
            def run(self, n, BLOCK, **options):
                self.ran.append(BLOCK)

        def clock(call, quantiles):
            call()
            return [1.0, 1.0, 1.0]

        def tuner(*blocks):
            configs = [triton.Config({{"BLOCK": block}}) for block in blocks]
            return Autotuner(Kernel(), ["n"], configs, ["n"], None, None, do_bench=clock)

        first, second, single = tuner(16, 32, 64), tuner(16, 32), tuner(16)
        for n in (1, 1, 2):
            first.run(n)
        second.run(1)
        single.run(1)
        said = [from_line(line) for line in Path("events").read_text().splitlines()]
        compiled = [[event.what, event.detail] for event in said if isinstance(event, Compiled)]
        timed = [[event.kernel, event.kept] for event in said if isinstance(event, Tuned)]
        print(json.dumps([compiled, timed, len(Kernel.ran)]))
        """,
    )
    said = [["autotune", f"@triton.autotune of add, {count} configurations"] for count in (3, 3, 2)]
    # Each configuration once a tuning, and each call once. That tuning is allowed is no matter: a program can read the choice.
    timed = [["add", tuning != "try"]] * (2 * 3 + 2)
    assert answer == [said, timed, 2 * 3 + 2 + 5]


def test_inductor_writes_no_choice_where_nothing_is_to_be_kept_and_reads_what_is_there(tmp_path: Path) -> None:
    """Inductor's own cache of choices. A stored kernel names ``save``, so it must be found by torch's own name."""
    program = """
        import json, os, pickle
        from pathlib import Path
        from torch._inductor.runtime.autotune_cache import AutotuneCache
        from torch._inductor.runtime.triton_compat import Config
        from flexwarm.observer import compilers
        from flexwarm.observer.torch_api import resolve

        if {nothing_kept}:
            compilers.keep_no_choice(resolve())
        meta = {{"autotune_local_cache": True, "autotune_remote_cache": False, "bundled_autotune_remote_cache": False,
                 "backend_hash": "x", "is_fbcode": False, "is_hip": False}}
        configs = [Config({{"XBLOCK": block}}, num_warps=4, num_stages=1) for block in (16, 32)]
        cache = AutotuneCache.create(meta, os.path.abspath("ab/kernel.py"), "hash")
        pickle.loads(pickle.dumps(cache.save))(configs[1], 1000)
        best = cache.read_best(meta, configs)
        written = sum(path.is_file() for path in Path("ab").rglob("*"))
        print(json.dumps([best.kwargs["XBLOCK"] if best else None, written]))
    """
    (tmp_path / "ab").mkdir()
    assert in_new_process(tmp_path, program.format(nothing_kept=True)) == [None, 0]
    assert in_new_process(tmp_path, program.format(nothing_kept=False)) == [32, 1]
    assert in_new_process(tmp_path, program.format(nothing_kept=True)) == [32, 1]


@pytest.mark.parametrize("tuning", ["miss", "try"])
def test_a_search_that_compiles_as_it_goes_is_reported_also_where_tuning_is_allowed(tmp_path: Path, tuning: str) -> None:
    """Inductor's own autotuner, of which nothing but what it times and searches is replaced."""
    answer = in_new_process(
        tmp_path,
        f"""
        import json
        from pathlib import Path
        from torch._inductor.runtime.triton_heuristics import CachingAutotuner
        from flexwarm.events import Compiled, from_line
        from flexwarm.observer import compilers
        from flexwarm.observer.recorder import Recorder
        from flexwarm.observer.torch_api import resolve
        from flexwarm.request import Purpose, Tuning

        CachingAutotuner.benchmark_all_configs = lambda self: None
        searches = resolve().searches()
        for name in searches:
            setattr(CachingAutotuner, name, lambda self: None)
        compilers.watch_autotune(resolve(), Recorder(Path("events"), Purpose.BUILD, Tuning("{tuning}")))
        for meta in ({{}}, {{"coordinate_descent_tuning": True}}, {{"combo_tuning_groups": [1]}}):
            kernel = CachingAutotuner.__new__(CachingAutotuner)
            kernel.inductor_meta = {{**meta, "kernel_name": ",".join(meta) or "plain"}}
            kernel.benchmark_all_configs()
        for name in searches:
            getattr(kernel, name)()
        said = [from_line(line) for line in Path("events").read_text().splitlines()]
        print(json.dumps([[event.detail for event in said if isinstance(event, Compiled)], len(searches)]))
        """,
    )
    details, searches = answer
    plain = ["plain"] if tuning == "miss" else []
    made = "variants of combo_tuning_groups that are made while it is tuned"
    assert details == [*plain, "coordinate_descent_tuning", "combo_tuning_groups", *[made] * searches]
    assert searches >= 1


def test_dynamo_says_which_guard_a_recompile_is_for_before_it_asks_for_the_limit(tmp_path: Path) -> None:
    (tmp_path / "scaled.py").write_text("def scaled(x, flag):\n    return x.sin() if flag else x.cos()\n")
    guards = in_new_process(
        tmp_path,
        """
        import json, torch
        from pathlib import Path
        from flexwarm.events import Recompiled, from_line
        from flexwarm.observer import caches, recompiles
        from flexwarm.observer.recorder import Recorder
        from flexwarm.observer.torch_api import resolve
        from flexwarm.request import Purpose
        from scaled import scaled

        recorder = Recorder(Path("events"), Purpose.BUILD)
        recompiles.watch(resolve(), recorder)
        caches.watch(resolve(), recorder)
        f = torch.compile(scaled, dynamic=False)
        for size, flag in ((8, True), (16, True), (16, False)):
            f(torch.ones(size), flag)
        said = [from_line(line) for line in Path("events").read_text().splitlines()]
        print(json.dumps([[event.function, event.line, event.guards] for event in said if isinstance(event, Recompiled)]))
        """,
    )
    (name, line, sizes), (_, _, flags) = guards
    assert (name, line) == ("scaled", 1)
    assert sizes == ["0/0: tensor 'x' size mismatch at index 0. expected 8, actual 16"]
    assert len(flags) == 2
    assert flags[0].startswith("0/1: ")
    assert "flag" in flags[0]
