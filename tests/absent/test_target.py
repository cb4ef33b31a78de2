"""Built for GPUs that are not there, in the job's own layout: what hits, what is refused, and that nobody takes it for more."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from flexwarm import toolchain
from flexwarm.events import Open, Untuned, from_line
from flexwarm.store import Store
from flexwarm.toolchain import nullgpu
from flexwarm.toolchain.profiles import read_profile, read_target
from tests.conftest import ROOT
from tests.harness import Flexwarm

_INSTALL = toolchain.find_torch()
pytestmark = [
    pytest.mark.torch,
    pytest.mark.xdist_group("absent"),
    pytest.mark.skipif(_INSTALL is None or not _INSTALL.cuda, reason="this torch is a build without CUDA"),
]

SPEC = """
schema = 1

[[role]]
name = "trainer"
processes = 2
devices = "cuda:0-1"

[[workload]]
name = "grouped"
mask_mod = "causal"
q_heads = 4
kv_heads = 2
head_dim = 64
q_len = [256, 512]
dtype = "bfloat16"
grad = true

[[workload]]
name = "kept"
mask_mod = "sliding_window"
mask_args = { window = 64 }
q_heads = 2
head_dim = 64
q_len = 256
dtype = "float16"
grad = true
call_site = "checkpoint"
"""

#: A step with linear layers and an optimizer; each rank on its own device.
TRAIN = """
import os, sys
import torch
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", 0)))
flex = torch.compile(flex_attention)
net = torch.nn.Linear(64, 64, device="cuda", dtype=torch.bfloat16)
optimizer = torch.optim.AdamW(net.parameters(), betas=(0.75, 0.875), fused=False)
update = torch.compile(optimizer.step)

def causal(b, h, q, kv):
    return q >= kv

for length in map(int, sys.argv[1:]):
    mask = create_block_mask(causal, None, None, length, length, device="cuda")
    q, k, v = (net(torch.randn(1, 2, length, 64, device="cuda", dtype=torch.bfloat16)) for _ in range(3))
    flex(q, k, v, block_mask=mask).float().square().mean().backward()
    update()
    optimizer.zero_grad()
"""


def torchrun(*arguments: str, ranks: int = 2) -> list[str]:
    return ["--", sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(ranks), "train.py", *arguments]


def choices(command: Flexwarm) -> list[Path]:
    return [path for path in command.bucket.path.rglob("*") if path.name.endswith((".best_config", ".autotune.json"))]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Flexwarm:
    """A project whose spec and launch line were built for two H200 that are not there."""
    base = tmp_path_factory.mktemp("absent")
    (base / "project").mkdir()
    command = Flexwarm(base / "project", base / "store")
    command.spec(SPEC)
    command.module(TRAIN, "train")
    done = command.run_json("build", "--target", "h200:2")
    assert (done.code, done.json["verdict"]) == (0, "built"), done.messages() + done.err
    done = command.run_json("build", "--target", "h200:2", *torchrun("256"))
    assert (done.code, done.json["verdict"]) == (0, "built"), done.messages() + done.err
    return command


def test_a_spec_hits_everything_on_both_devices_and_no_result_is_claimed(built: Flexwarm) -> None:
    done = built.run_json("verify", "--target", "h200:2")
    assert (done.code, done.json["verdict"], done.codes()) == (0, "warm", set()), done.messages() + done.err
    jobs = done.json["jobs"]
    assert {(job["workload"], job["device"]) for job in jobs} == {
        (workload, f"cuda:{index}") for workload in ("grouped", "kept") for index in (0, 1)
    }
    assert {job["outcome"] for job in jobs} == {"hit"}
    assert {shape["agrees"] for job in jobs for shape in job["shapes"]} == {None}
    assert all(key["answer"] == "hit" for job in jobs for key in job["keys"])
    assert built.processes_left() == []


def test_a_launch_line_hits_everything_and_says_what_is_left_open(built: Flexwarm) -> None:
    done = built.run_json("verify", "--target", "h200:2", *torchrun("256"))
    assert (done.code, done.json["verdict"], done.codes()) == (0, "warm", set()), done.messages() + done.err
    assert [(job["rank"], job["device"], job["outcome"]) for job in done.json["jobs"]] == [
        (0, "cuda:0", "hit"),
        (1, "cuda:1", "hit"),
    ]


def test_a_length_that_was_not_built_is_cold_and_nothing_is_compiled(built: Flexwarm) -> None:
    done = built.run_json("verify", "--target", "h200:2", *torchrun("256", "384"))
    assert (done.code, done.json["verdict"], done.json["compiles"]) == (1, "cold", 0), done.messages()
    assert "1x2x384" in done.messages()


def test_no_choice_by_time_is_kept(built: Flexwarm) -> None:
    assert choices(built) == []
    untuned = [job.detail["untuned"] for job in built.manifest().jobs.values() if "untuned" in job.detail]
    assert untuned
    assert all("flex_attention_backward" in name or "triton_" in name for names in untuned for name in names)


def test_constants_of_the_optimizer_are_what_they_are_and_not_what_an_absent_gpu_reads(built: Flexwarm) -> None:
    """Inductor folds ``1 - beta`` on the device and compiles what it reads from there."""
    kernels = [path.read_text() for path in built.bucket.inductor.rglob("*.py")]
    updates = [text for text in kernels if "addcdiv" in text and "def triton_" in text]
    assert updates
    # beta1 = 0.75 and beta2 = 0.875 are exact, and so are the rests of 1.
    written = (rf"tl\.full\(\[1\], {rest}, tl\.float32\)|tmp\d+ = {rest}\b" for rest in (r"0\.25", r"0\.125"))
    assert all(re.search(pattern, text) for pattern in written for text in updates)


def test_what_a_shell_preloads_is_no_gpu(built: Flexwarm) -> None:
    """Nobody asked for a GPU that is not there: what would hit on it proves nothing."""
    env = nullgpu.environment(read_target("h200:2"), Store.open(built.store, create=True), os.environ)
    for arguments in (("verify",), ("verify", "--fast"), ("verify", *torchrun("256")), ("run", *torchrun("256"))):
        done = built(*arguments, env=env)
        assert done.code == 3
        assert "the NVIDIA driver here stands in for a GPU that is not there" in done.err
        assert "unset LD_PRELOAD" in done.err


@pytest.mark.parametrize(
    ("target", "code", "words"),
    [
        ("h200:1", 3, "cuda:1 is not there: 1 of 1 GPUs are visible"),
        ("h300:2", 2, "there is no device profile 'h300'"),
        ("h200:0", 2, "'0' is not a number of devices"),
    ],
)
def test_a_target_that_cannot_be_is_refused_first(built: Flexwarm, target: str, code: int, words: str) -> None:
    done = built("build", "--target", target)
    assert done.code == code
    assert words in done.err
    assert "next:" in done.err


def test_more_memory_than_the_gpu_has_is_torchs_own_error(flexwarm: Flexwarm) -> None:
    flexwarm.module("import torch\ntorch.empty(200 << 30, dtype=torch.uint8, device='cuda')\n", "greedy")
    done = flexwarm.run_json("build", "--target", "h200", "--", sys.executable, "greedy.py")
    assert (done.code, done.json["command_exit_code"]) == (5, 1)
    assert "OutOfMemoryError" in done.messages()


def stored(command: Flexwarm) -> list[str]:
    """Entries of the two graph caches, which a launch would take."""
    trees = (command.bucket.inductor / "fxgraph", command.bucket.inductor / "aotautograd")
    return [str(path) for tree in trees for path in tree.rglob("*") if path.is_file()]


#: Two graphs: one depends on no choice, and of the other torch chooses what becomes of it, by time.
CHOSEN = """
import torch
on = dict(device='cuda', dtype=torch.float16)
torch.compile(lambda x: x.sin() + 1)(torch.randn(4097, **on))
x = torch.randn({side}, {side}, **on)
torch.compile(lambda x: (x @ x).relu(), mode={mode!r})(x)
"""


@pytest.mark.parametrize(
    ("side", "mode", "kernels"),
    [
        # One of several kernels.
        (256, "max-autotune-no-cudagraphs", True),
        # Whether to pad a matrix whose sides are odd: torch does so by default.
        (4097, "default", False),
    ],
)
def test_a_choice_by_time_is_left_to_the_gpu_and_all_else_is_kept(
    flexwarm: Flexwarm, side: int, mode: str, kernels: bool
) -> None:
    flexwarm.module(CHOSEN.format(side=side, mode=mode), "chosen")
    line = ("--target", "h200", "--", sys.executable, "chosen.py")
    done = flexwarm.run_json("build", *line)
    assert (done.code, done.json["verdict"], done.json["published"]) == (0, "built", True), done.messages() + done.err
    assert [job["outcome"] for job in done.json["jobs"]] == ["untuned"]
    assert "flexwarm build on the GPU chooses" in " ".join(done.json["notes"])
    # Of the graph that depends on the choice nothing is there that a launch would take.
    asked = [key for call in done.json["jobs"][0]["calls"] for key in call["keys"] if key["layer"] != "triton"]
    kept = {path.parent.name for path in map(Path, stored(flexwarm))}
    assert sorted(key["key"] in kept for key in asked if key["layer"] == "aot") == [False, True]
    assert choices(flexwarm) == []
    (entry,) = flexwarm.manifest().jobs.values()
    assert entry.detail["left_out"]
    assert {key.key for key in entry.keys} <= kept

    again = flexwarm.run_json("build", *line)
    assert (again.code, again.json["verdict"]) == (0, "built"), again.messages()
    assert [call["hit"] for call in again.json["jobs"][0]["calls"]] == [True, False]
    if kernels:
        answers = [key["answer"] for key in again.json["jobs"][0]["calls"][1]["keys"] if key["layer"] == "triton"]
        # What was chosen between is there; the graph's own kernels, fused with the choice, are made with it.
        assert answers.count("hit") > 10

    cold = flexwarm.run_json("verify", *line)
    assert (cold.code, cold.json["verdict"]) == (1, "cold")
    assert "untuned" in cold.codes()
    assert "flexwarm build on the GPU" in " ".join(reason["hint"] for reason in cold.json["jobs"][0]["reasons"])


#: torch searches around the fastest variant while kernels run, or asks for times in the partitioner.
UNFOLLOWED = """
import torch
import torch._functorch.config as functorch
torch._functorch.config.activation_memory_budget_runtime_estimator = "profile"
x = torch.randn(256, 64, device="cuda", requires_grad=True)
if {budget}:
    functorch.activation_memory_budget = {budget}
    torch.compile(lambda x: (x.sin() @ x.cos().T).tanh())(x).sum().backward()
else:
    torch.compile(lambda x: (x.sin() + 1).sum(-1), options={{"coordinate_descent_tuning": True}})(x.detach())
"""


@pytest.mark.parametrize(("budget", "name"), [(0, "coordinate_descent_tuning"), (0.5, "activation_memory_budget")])
def test_where_torch_chooses_and_nobody_can_follow_nothing_is_stored(flexwarm: Flexwarm, budget: float, name: str) -> None:
    flexwarm.module(UNFOLLOWED.format(budget=budget), "chosen")
    line = ("--target", "h200", "--", sys.executable, "chosen.py")
    done = flexwarm.run_json("build", *line)
    assert (done.code, done.json["verdict"]) == (0, "built"), done.messages() + done.err
    assert [job["outcome"] for job in done.json["jobs"]] == ["untuned"]
    assert name in " ".join(done.json["notes"])
    assert not any("aotautograd" in path for path in stored(flexwarm))
    for _ in range(2):
        cold = flexwarm.run_json("verify", *line)
        assert (cold.code, cold.json["verdict"], "untuned" in cold.codes()) == (1, "cold", True), cold.messages()
    assert choices(flexwarm) == []


#: What is selected by value is counted on the GPU, and the count is a size; printing a tensor selects.
COUNTED = """
import resource
import torch
resource.setrlimit(resource.RLIMIT_AS, (12 << 30, 12 << 30))  # a count that is none would be billions
x = torch.randn(64, device="cuda")
torch.compile(lambda x: x + 1)(x)
assert "device='cuda:0'" in repr(x)
for found in (x.nonzero(), x.masked_select(x > 0), x.unique(), x[x > 0]):
    assert found.numel() == 0, found.shape
"""


def test_what_is_counted_by_values_is_nothing_and_not_whatever_was_there(flexwarm: Flexwarm) -> None:
    flexwarm.module(COUNTED, "counted")
    done = flexwarm.run_json("build", "--target", "h200", "--", sys.executable, "counted.py")
    assert (done.code, done.json["verdict"]) == (0, "built"), done.messages() + done.err


def test_where_a_program_reads_values_that_are_none_is_said(flexwarm: Flexwarm) -> None:
    flexwarm.module(
        "import torch\n"
        "double = torch.compile(lambda x: x * 2)\n"
        "x = torch.ones(8, device='cuda')\n"
        "x.sum().item()\n"
        "for step in range(3):\n"
        "    if double(x).sum() > 1:\n"
        "        print(step)\n",
        "deciding",
    )
    done = flexwarm.run_json("build", "--target", "h200", "--", sys.executable, "deciding.py")
    assert (done.code, done.json["verdict"]) == (0, "built"), done.messages() + done.err
    # Before the first compiled call there is none that could depend on it.
    (place,) = done.json["jobs"][0]["reads"]
    assert place.endswith("deciding.py:6 in <module>")
    assert f"at {place}: what depends on them may be otherwise on the GPU" in " ".join(done.json["notes"])


#: What is read from the device while a graph is compiled, as a pass of the compiler would do it.
READS = """
from pathlib import Path
import torch
from flexwarm.observer import absent
from flexwarm.observer.recorder import Recorder
from flexwarm.observer.torch_api import TorchApi
from flexwarm.request import Purpose

value = torch.ones(1, device="cuda")
choices = absent.Choices(TorchApi(), Recorder(Path("events"), Purpose.BUILD))
assert choices.during(choices.setting_aside(lambda: value.item()))() == 1
assert choices.during(lambda: 7)() == 7
try:
    choices.during(lambda: value.item())()
except RuntimeError as error:
    print(error)
"""


def test_a_compile_that_reads_from_the_device_ends_before_anything_is_stored(built: Flexwarm, tmp_path: Path) -> None:
    env = nullgpu.environment(read_target("h200"), Store.open(built.store, create=True), os.environ)
    done = subprocess.run(
        [sys.executable, "-c", READS],
        cwd=tmp_path,
        env={**os.environ, **env, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert "a value was read from a GPU that is not there" in done.stdout, done.stderr
    said = [from_line(line) for line in (tmp_path / "events").read_text().splitlines()]
    assert [(event.kernel, event.open) for event in said if isinstance(event, Untuned)] == [
        ("a value that was read while a graph was compiled", Open.VALUE)
    ]


#: Loads every stored graph as torch does, in a process that knows nothing of flexwarm; and says what its kernels save with.
LOADS = """
import pickle, sys
names = set()
class Told(pickle.Unpickler):
    def find_class(self, module, name):
        names.add(module.partition(".")[0])
        return super().find_class(module, name)
for path in sys.argv[1:]:
    Told(open(path, "rb")).load()
print(sorted(name for name in names if name == "flexwarm"), "flexwarm" in sys.modules)
"""


def test_what_is_stored_is_torchs_own_and_names_nothing_of_flexwarm(built: Flexwarm) -> None:
    graphs = [path for path in stored(built) if "fxgraph" in path and not path.endswith(".lock")]
    assert graphs
    asked = subprocess.run([sys.executable, "-c", LOADS, *graphs], capture_output=True, text=True, timeout=120)
    assert asked.returncode == 0, asked.stderr
    assert asked.stdout.split("\n")[0] == "[] False"
    # What a kernel saves its tuning with is there, for the GPU.
    assert any(b"AutotuneCache" in Path(path).read_bytes() for path in graphs)
    assert not any(b"keep_no_choice" in Path(path).read_bytes() for path in graphs)


#: Triton's own module for the host, as a process asks for it where the driver lies in two directories.
HOST_MODULE = """
import inspect, os
from triton.backends.nvidia import driver
from triton.runtime import build

driver.libcuda_dirs = lambda: ["/usr/local/nvidia/lib64", "/lib"]
def compile_it(*args):
    raise SystemExit("compiled")
build._build = compile_it
build._load_module_from_path = lambda name, path: print(path)
source = os.path.join(driver.dirname, "driver.c")
common = dict(name="cuda_utils", library_dirs=driver.library_dirs(), include_dirs=driver.include_dirs)
if hasattr(build, "compile_module_from_file"):
    build.compile_module_from_file(src_path=source, libraries=driver.libraries, **common)
else:
    build.compile_module_from_src(src=open(source).read(), libraries=driver.libraries, **common)
"""


def test_tritons_module_for_the_host_is_the_one_that_the_targets_machine_asks_for(flexwarm: Flexwarm) -> None:
    flexwarm.module("import torch\ntorch.compile(lambda x: x + 1)(torch.ones(64, device='cuda'))\n", "train")
    data = {**read_profile("h200").to_json(), "driver_path": "/usr/local/nvidia/lib64:/lib"}
    (flexwarm.directory / "there.json").write_text(json.dumps(data))
    done = flexwarm.run_json("build", "--target", "./there.json", "--", sys.executable, "train.py")
    assert done.code == 0, done.messages() + done.err
    env = {**os.environ, "TRITON_CACHE_DIR": str(flexwarm.bucket.triton)}
    asked = subprocess.run([sys.executable, "-c", HOST_MODULE], env=env, capture_output=True, text=True, timeout=120)
    assert asked.returncode == 0, asked.stderr
    assert asked.stdout.startswith(str(flexwarm.bucket.triton))


def test_what_was_built_without_the_gpu_is_said_and_kept_apart(built: Flexwarm, tmp_path: Path) -> None:
    for job in built.manifest().jobs.values():
        assert job.detail["built_for"] == {"name": "NVIDIA H200", "shape": read_profile("h200").shape}
    done = built.run_json("verify", "--target", "h200:2")
    assert done.json["target"] == "2 x NVIDIA H200"
    assert "for 2 x NVIDIA H200 not here" in built("verify", "--target", "h200:2").out
    data = read_profile("h200").to_json()
    data["attributes"]["multiprocessor_count"] = 66
    (tmp_path / "half.json").write_text(json.dumps(data))
    refused = built("build", "--target", f"{tmp_path / 'half.json'}:2")
    assert (refused.code, "of another size" in refused.err) == (2, True), refused.err
    for arguments in ((), ("--fast",), torchrun("256")):
        cold = built.run_json("verify", "--target", f"{tmp_path / 'half.json'}:2", *arguments)
        assert (cold.code, cold.codes()) == (1, {"fingerprint-changed"}), cold.messages()
        assert "multiprocessor_count 132, and" in cold.messages()


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("TORCHINDUCTOR_FX_GRAPH_REMOTE_CACHE", "1", "shares what is compiled"),
        ("TORCHINDUCTOR_ENABLE_CACHING_MODULE", "1", "keeps choices by time outside of the bucket"),
        ("TORCHINDUCTOR_FX_COMPILE_MODE", "subprocess", "compiles in processes in which choices by time are not seen"),
    ],
)
def test_what_shares_remembers_or_hides_is_refused(built: Flexwarm, name: str, value: str, words: str) -> None:
    done = built("build", "--target", "h200:2", env={name: value})
    assert (done.code, words in done.err) == (2, True), done.err


def test_what_was_built_on_one_device_is_cold_on_the_next_and_the_index_is_named(flexwarm: Flexwarm) -> None:
    flexwarm.module(
        "import os, torch\n"
        "torch.cuda.set_device(int(os.environ['LOCAL_RANK']))\n"
        "torch.compile(lambda x: x.sin() + 1)(torch.ones(64, device='cuda'))\n",
        "train",
    )
    assert flexwarm.run_json("build", "--target", "h200:2", *torchrun(ranks=1)).code == 0
    done = flexwarm.run_json("verify", "--target", "h200:2", *torchrun(ranks=2))
    assert (done.code, done.json["verdict"]) == (1, "cold"), done.messages()
    assert "it calls on cuda:1, and what was built is for cuda:0" in done.messages()
    assert "isolate = true" in " ".join(reason["hint"] for job in done.json["jobs"] for reason in job["reasons"])
