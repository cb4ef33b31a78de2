"""What a launch line says about itself: who starts the ranks, how many there will be, and what keeps an observer out.

Nothing is guessed. Each program's options are read as its own parser reads them, from a list of those that are known; an
option outside of the list may take the next word or may not, so from there on the line says nothing. A number that is
given is what the line promises. Fewer ranks than that is a finding; more than that is one too.
"""

from __future__ import annotations

import re
import shlex
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from flexwarm import canonical

#: The longest line that :func:`title` makes, in columns.
TITLE_COLUMNS: Final = 80

#: Variables that an observer of a Python process is found by.
_OBSERVED_THROUGH: Final = "PYTHONPATH"
_NOT_PASSED: Final = "does not pass PYTHONPATH and the observer's variables on"
#: What is quoted of a line in the reason why it is blind, in columns.
_QUOTED_COLUMNS: Final = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchLine:
    """What one line says.

    Attributes:
        launcher: the outermost program that starts ranks: ``torchrun``, ``accelerate``, ``deepspeed``, ``srun``,
            ``mpirun``; ``python`` if there is only that; empty if the line does not say, as with a shell script.
        expected_ranks: ranks that will run below this command on machines that it starts them on: those of this node
            for ``torchrun --nnodes 2``, those of all nodes for ``srun -N 2``. None where the line does not say.
        said_by: the words that said so, such as ``--nproc-per-node 8``; empty if none did.
        elsewhere: this command starts a part of the launch, or may: there are ranks that other commands start, on other nodes,
            and that wait for those of this one.
        blind: why an observer that is put on ``PYTHONPATH`` cannot get into the ranks; empty if the line has nothing
            against it.
    """

    argv: tuple[str, ...]
    launcher: str
    expected_ranks: int | None
    said_by: str
    blind: str
    elsewhere: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class _Syntax:
    """The options of one program.

    Attributes:
        kinds: each spelling with its kind: ``flag``, ``value``, ``pair`` (two values), ``optional`` (a value only
            when it is attached).
        names: each spelling with the name by which it is asked for.
        bundles: short flags may stand together, as in ``-lu``.
        dash_values: the word behind an option is its value even if it begins with a dash, as with getopt.
        one_dash: ``-name`` is ``--name``, and ``=`` is nothing special (mpirun).
    """

    kinds: Mapping[str, str]
    names: Mapping[str, str]
    bundles: bool
    dash_values: bool
    one_dash: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class _Option:
    name: str
    values: tuple[str, ...]
    words: str

    @property
    def value(self) -> str:
        return self.values[0] if self.values else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Parsed:
    """A program's own options, and the words behind them; ``certain`` is False if reading had to stop."""

    options: tuple[_Option, ...]
    rest: tuple[str, ...]
    certain: bool

    def has(self, *names: str) -> bool:
        return any(option.name in names for option in self.options)

    def last(self, *names: str) -> _Option | None:
        """The last one wins, for argparse and for getopt loops alike."""
        return next((option for option in reversed(self.options) if option.name in names), None)


def _syntax(
    *,
    flags: str = "",
    values: str = "",
    optional: str = "",
    pairs: str = "",
    hyphens: bool = False,
    bundles: bool = True,
    dash_values: bool = True,
    one_dash: bool = False,
) -> _Syntax:
    """Options as words, ``-n|--ntasks`` with the name last; ``hyphens``: ``--a_b`` is known as ``--a-b``, too."""
    kinds: dict[str, str] = {}
    names: dict[str, str] = {}
    for kind, text in (("flag", flags), ("value", values), ("optional", optional), ("pair", pairs)):
        for word in text.split():
            spellings = word.split("|")
            for spelling in spellings:
                for known in {spelling, spelling.replace("_", "-")} if hyphens else {spelling}:
                    kinds[known] = kind
                    names[known] = spellings[-1]
    return _Syntax(kinds=kinds, names=names, bundles=bundles, dash_values=dash_values, one_dash=one_dash)


#: `torch.distributed.run` of torch 2.9 to 2.14. What ends at once (--help, --print-completion) is left out.
_TORCHRUN: Final = _syntax(
    flags="--standalone -m|--module --no_python --run_path --virtual_local_rank",
    values=(
        "--nnodes --nproc_per_node --rdzv_backend --rdzv_endpoint --rdzv_id --rdzv_conf --max_restarts --monitor_interval"
        " --start_method --event_log_handler --role --log_dir -r|--redirects -t|--tee --log_line_prefix_template"
        " --local_ranks_filter --duplicate_stdout_filters --duplicate_stderr_filters --node_rank --master_addr"
        " --master_port --local_addr --logs_specs --numa_binding --signals_to_handle --shutdown_timeout"
    ),
    hyphens=True,
    bundles=False,
    dash_values=False,
)
_TORCH_LAUNCH: Final = _Syntax(
    kinds={**_TORCHRUN.kinds, "--use_env": "flag", "--use-env": "flag"},
    names={**_TORCHRUN.names, "--use_env": "--use_env", "--use-env": "--use_env"},
    bundles=False,
    dash_values=False,
    one_dash=False,
)

#: accelerate 1.x. Left out is what starts ranks on other machines by itself, where they have another environment.
_ACCELERATE: Final = _syntax(
    flags=(
        "-q|--quiet --cpu --multi_gpu --tpu --enable_cpu_affinity --dynamo_use_fullgraph --dynamo_use_dynamic"
        " --dynamo_use_regional_compilation --use_deepspeed --use_fsdp --use_parallelism_config --use_megatron_lm"
        " --same_network -m|--module --no_python --no_tpu_cluster --downcast_bf16 --fp8_use_autocast_during_eval --debug"
    ),
    values=(
        "--config_file --mixed_precision --num_processes --num_machines --num_cpu_threads_per_process --dynamo_backend"
        " --dynamo_mode --gpu_ids --machine_rank --main_process_ip --main_process_port -t|--tee --log_dir --role"
        " --rdzv_backend --rdzv_conf --max_restarts --monitor_interval --main_training_function --deepspeed_config_file"
        " --zero_stage --offload_optimizer_device --offload_param_device --offload_optimizer_nvme_path"
        " --offload_param_nvme_path --gradient_accumulation_steps --gradient_clipping --zero3_init_flag"
        " --zero3_save_16bit_model --deepspeed_moe_layer_cls_names --fsdp_version --fsdp_offload_params"
        " --fsdp_min_num_params --fsdp_sharding_strategy --fsdp_reshard_after_forward --fsdp_auto_wrap_policy"
        " --fsdp_transformer_layer_cls_to_wrap --fsdp_backward_prefetch --fsdp_state_dict_type --fsdp_forward_prefetch"
        " --fsdp_use_orig_params --fsdp_cpu_ram_efficient_loading --fsdp_sync_module_states"
        " --fsdp_activation_checkpointing --megatron_lm_tp_degree --megatron_lm_pp_degree --megatron_lm_num_micro_batches"
        " --megatron_lm_sequence_parallelism --megatron_lm_recompute_activations"
        " --megatron_lm_use_distributed_optimizer --megatron_lm_gradient_clipping --fp8_backend --fp8_margin"
        " --fp8_interval --fp8_format --fp8_amax_history_len --fp8_amax_compute_algo --fp8_override_linear_precision"
        " --fp8_opt_level --parallelism_config_dp_replicate_size --parallelism_config_dp_shard_size"
        " --parallelism_config_tp_size --parallelism_config_cp_size --parallelism_config_cp_comm_strategy"
        " --parallelism_config_cp_backend --parallelism_config_sp_size --parallelism_config_sp_backend"
        " --parallelism_config_sp_seq_length --parallelism_config_sp_seq_length_is_variable"
        " --parallelism_config_sp_attn_implementation --fsdp_activation_checkpointing_offload"
        " --fp8_enable_fsdp_float8_all_gather --fp8_pad_inner_dim --megatron_lm_use_custom_fsdp --megatron_lm_no_load_optim"
        " --megatron_lm_no_save_optim --megatron_lm_eod_mask_loss --megatron_lm_overlap_cpu_optimizer_d2h_h2d"
        " --megatron_lm_optimizer_cpu_offload --megatron_lm_use_precision_aware_optimizer"
        " --megatron_lm_decoder_last_pipeline_num_layers --megatron_lm_recompute_granularity --megatron_lm_recompute_method"
        " --megatron_lm_recompute_num_layers --megatron_lm_attention_backend --megatron_lm_expert_model_parallel_size"
        " --megatron_lm_context_parallel_size --megatron_lm_attention_dropout --megatron_lm_hidden_dropout"
        " --megatron_lm_attention_softmax_in_fp32 --megatron_lm_expert_tensor_parallel_size"
        " --megatron_lm_calculate_per_token_loss --megatron_lm_use_rotary_position_embeddings"
    ),
    hyphens=True,
    bundles=False,
    dash_values=False,
)

#: deepspeed 0.1x. Left out is what chooses hosts or devices by other means than a number.
_DEEPSPEED: Final = _syntax(
    flags="--module --no_python --no_local_rank --no_ssh_check --save_pid --bind_cores_to_rank -q|--quiet",
    values=(
        "--num_nodes --num_accelerators|--num_gpus --master_port --master_addr --enable_each_rank_log --bind_core_list"
        " --ssh_port --log_level"
    ),
    bundles=False,
    dash_values=False,
)

#: srun of Slurm 20 to 24. Left out is what makes several jobs of one line, or ends at once.
_SRUN: Final = _syntax(
    flags=(
        "-E|--preserve-env -H|--hold -l|--label -O|--overcommit -Q|--quiet -s|--oversubscribe -u|--unbuffered -v|--verbose"
        " -X|--disable-status -Z|--no-allocate --contiguous --exact --overlap --pty --quit-on-interrupt --reboot"
        " --spread-job --use-min-nodes"
    ),
    values=(
        "-A|--account -B|--extra-node-info -b|--begin -C|--constraint -c|--cpus-per-task -D|--chdir -d|--dependency"
        " -e|--error -F|--nodefile -G|--gpus -i|--input -J|--job-name -L|--licenses -M|--clusters -m|--distribution"
        " -N|--nodes -n|--ntasks -o|--output -p|--partition -q|--qos -r|--relative -S|--core-spec -T|--threads -t|--time"
        " -W|--wait -w|--nodelist -x|--exclude --accel-bind --acctg-freq --bb --bbf --bcast-exclude --comment"
        " --cores-per-socket --cpu-bind --cpu-freq --cpus-per-gpu --deadline --delay-boot --epilog --export --gid --gpu-bind"
        " --gpu-freq --gpus-per-node --gpus-per-socket --gpus-per-task --gres --gres-flags --hint --jobid --mail-type"
        " --mail-user --mcs-label --mem --mem-bind --mem-per-cpu --mem-per-gpu --mincpus --mpi --msg-timeout --network"
        " --ntasks-per-core --ntasks-per-gpu --ntasks-per-node --ntasks-per-socket --open-mode --power --prefer"
        " --priority --profile --prolog --reservation --signal --slurmd-debug --sockets-per-node --switches --task-epilog"
        " --task-prolog --thread-spec --threads-per-core --time-min --tmp --uid --wckey"
    ),
    optional=(
        "-I|--immediate -K|--kill-on-bad-exit -k|--no-kill --bcast --compress --exclusive --nice --propagate --resv-ports"
        " --send-libs --x11"
    ),
)

#: What Open MPI and MPICH's hydra read alike. Left out is what names hosts: who is started there has another environment.
_MPIRUN: Final = _syntax(
    flags=(
        "-v|--verbose -q|--quiet -verbose|--verbose -quiet|--quiet --allow-run-as-root -oversubscribe|--oversubscribe"
        " -report-bindings|--report-bindings -tag-output|--tag-output -display-map|--display-map"
        " -merge-stderr-to-stdout|--merge-stderr-to-stdout -genvall -envall -genvnone -envnone"
    ),
    values=(
        "-n|--n|-np|--np -bind-to|--bind-to -map-by|--map-by -rank-by|--rank-by -x -wdir|--wdir -H|-host|--host"
        " -output-filename|--output-filename -genvlist -envlist"
    ),
    pairs="-mca|--mca -gmca|--gmca -genv -env",
    bundles=False,
    one_dash=True,
)

_ENV: Final = _syntax(
    flags="-i|--ignore-environment -v|--debug",
    values="-u|--unset -C|--chdir",
    optional="--block-signal --default-signal --ignore-signal",
)
_NICE: Final = _syntax(values="-n|--adjustment")
_TIMEOUT: Final = _syntax(flags="--preserve-status --foreground -v|--verbose", values="-k|--kill-after -s|--signal")
_STDBUF: Final = _syntax(values="-i|--input -o|--output -e|--error")
_NUMACTL: Final = _syntax(
    flags="-a|--all -b|--balancing -l|--localalloc",
    values=(
        "-i|--interleave -p|--preferred -P|--preferred-many -m|--membind -N|--cpunodebind -C|--physcpubind"
        " -w|--weighted-interleave"
    ),
)
#: Left out is --env-file, which may set anything.
_UV: Final = _syntax(
    flags=(
        "--all-extras --no-dev --only-dev --no-default-groups --all-groups --no-editable --exact --no-env-file --isolated"
        " --active --no-sync --locked --frozen --all-packages --no-project --no-index -U|--upgrade --no-sources --reinstall"
        " --compile-bytecode --no-build-isolation --no-build --no-binary -n|--no-cache --refresh --managed-python"
        " --no-managed-python --no-python-downloads -q|--quiet -v|--verbose --offline --no-progress --no-config"
        " -m|--module -s|--script"
    ),
    values=(
        "--extra --no-extra --group --no-group --only-group -w|--with --with-editable --with-requirements --package"
        " --python-platform --index --default-index -i|--index-url --extra-index-url -f|--find-links --index-strategy"
        " --keyring-provider -P|--upgrade-package --resolution --prerelease --fork-strategy --exclude-newer"
        " --reinstall-package --link-mode -C|--config-setting --no-build-package --no-binary-package --cache-dir"
        " --refresh-package -p|--python --color --allow-insecure-host --directory --project --config-file"
    ),
    dash_values=False,
)
_CONDA: Final = _syntax(
    flags="-v|--verbose --dev --debug-wrapper-scripts --no-capture-output|--live-stream",
    values="-n|--name -p|--prefix --cwd",
    bundles=False,
    dash_values=False,
)
_PYTHON: Final = _syntax(
    flags="-b -B -d -E -i -I -O -P -q -R -s -S -t -u -v -x", values="-c -m -W -X --check-hash-based-pycs", dash_values=True
)

_PYTHON_NAME: Final = re.compile(r"python(3(\.\d+t?)?)?")
_NUMBER: Final = re.compile(r"[1-9][0-9]{0,5}", re.ASCII)
_ASSIGNMENT: Final = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)=(.*)", re.DOTALL)
_NICENESS: Final = re.compile(r"-[-+]?\d+", re.ASCII)
_DURATION: Final = re.compile(r"\d+(\.\d*)?[smhd]?", re.ASCII)

#: Variables in which launchers tell a rank how many there are.
_WORLD_SIZES: Final = ("WORLD_SIZE", "SLURM_NTASKS", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE")

#: No program's name: what stands for the module of that name once it has been read.
_OLD_TORCHRUN: Final = "python -m torch.distributed.launch"

#: Programs and modules that start ranks, with the launcher that they are.
_LAUNCHERS: Final = {
    "torchrun": "torchrun",
    _OLD_TORCHRUN: "torchrun",
    "accelerate": "accelerate",
    "accelerate-launch": "accelerate",
    "deepspeed": "deepspeed",
    "srun": "srun",
    "mpirun": "mpirun",
    "mpiexec": "mpirun",
    "mpirun.openmpi": "mpirun",
    "mpiexec.openmpi": "mpirun",
    "mpiexec.hydra": "mpirun",
    "orterun": "mpirun",
}
_MODULES: Final = {
    "torch.distributed.run": "torchrun",
    "torch.distributed.launch": _OLD_TORCHRUN,
    "accelerate.commands.launch": "accelerate-launch",
    "accelerate.commands.accelerate_cli": "accelerate",
    "deepspeed.launcher.runner": "deepspeed",
}
#: Console scripts that are Python files: ``python /venv/bin/torchrun`` is ``torchrun``.
_SCRIPTS: Final = frozenset({"torchrun", "accelerate", "accelerate-launch", "deepspeed"})


def read(argv: Sequence[str], environ: Mapping[str, str] | None = None) -> LaunchLine:
    """What the launch line ``argv`` says about itself. Never fails: a line that cannot be read says nothing.

    Args:
        environ: the environment that the line will be started in. torchrun takes the number of ranks from
            ``PET_NPROC_PER_NODE`` where its options do not give it, and srun from several of Slurm's.
    """
    return _Reader(argv, environ or {}).read()


class _Reader:
    """Walks over a line from the left, one program at a time: each one starts the next."""

    def __init__(self, argv: Sequence[str], environ: Mapping[str, str]) -> None:
        self.argv = tuple(argv)
        self.words = self.argv
        self.variables = dict(environ)
        self.launchers: list[str] = []
        self.ranks: int | None = 1
        self.said: list[str] = []
        self.blind = ""
        self.elsewhere = False
        self.flags_of_launcher: tuple[str, ...] = ()

    def read(self) -> LaunchLine:
        while self.words:
            program, rest = _base_name(self.words[0]), self.words[1:]
            if _PYTHON_NAME.fullmatch(program):
                if not self._python(program, rest):
                    return self._end(is_python=True)
            elif program in _LAUNCHERS:
                if not self._launcher(program, rest):
                    break
            elif program not in _PREFIXES or not _PREFIXES[program](self, rest):
                break  # a shell, a script, anything: it may start whatever it likes
        return self._end(is_python=False)

    def _end(self, *, is_python: bool) -> LaunchLine:
        """``is_python``: the last program is an interpreter that runs a program of the user's."""
        launcher = self.launchers[0] if self.launchers else "python" if is_python else ""
        # A plain program may start ranks of its own, and how many an unknown one starts cannot be read here.
        ranks = self.ranks if self.launchers and is_python else None
        said = " ".join(self.said) if ranks is not None else ""
        # One that is started as a rank itself: `srun flexwarm verify -- python train.py`.
        of_many = not self.launchers and any((_count(self.variables.get(name, "")) or 1) > 1 for name in _WORLD_SIZES)
        return LaunchLine(
            argv=self.argv,
            launcher=launcher,
            expected_ranks=ranks,
            said_by=said,
            blind=self.blind,
            elsewhere=self.elsewhere or of_many,
        )

    def _times(self, number: int | None, *said: _Option | str | None) -> None:
        self.ranks = None if number is None or self.ranks is None else self.ranks * number
        self.said += [option.words if isinstance(option, _Option) else option for option in said if option is not None]

    def _hide(self, by: str, why: str) -> None:
        self.blind = self.blind or f"{_cut(by, _QUOTED_COLUMNS)} {why}"

    def _assign(self, name: str, value: str, by: str) -> None:
        self.variables[name] = value
        if name == _OBSERVED_THROUGH:
            self._hide(by, "replaces the PYTHONPATH that the observer is found by")

    # Programs that start ranks

    def _launcher(self, program: str, rest: tuple[str, ...]) -> bool:
        launcher = _LAUNCHERS[program]
        if program == "accelerate":
            if rest[:1] != ("launch",):
                return False  # `accelerate config` and the like start no ranks
            rest = rest[1:]
        self.launchers.append(launcher)
        match launcher:
            case "torchrun":
                return self._torchrun(_parse(rest, _TORCHRUN if program == "torchrun" else _TORCH_LAUNCH))
            case "accelerate":
                return self._accelerate(_parse(rest, _ACCELERATE))
            case "deepspeed":
                return self._deepspeed(_parse(rest, _DEEPSPEED))
            case "srun":
                return self._srun(_parse(rest, _SRUN))
            case _:
                return self._mpirun(_parse(rest, _MPIRUN))

    def _torchrun(self, parsed: _Parsed) -> bool:
        # The number of nodes does not matter for the ranks: a torchrun starts those of its own node.
        nodes = parsed.last("--nnodes")
        self.elsewhere |= (nodes.value if nodes is not None else self.variables.get("PET_NNODES", "1")) not in ("1", "1:1")
        given = parsed.last("--nproc_per_node")
        default = self.variables.get("PET_NPROC_PER_NODE")
        if given is not None:
            self._times(_count(given.value), given)
        elif default is not None:
            self._times(_count(default), f"PET_NPROC_PER_NODE={default}")
        else:
            self._times(1)
        # With these in the environment, what torchrun starts is not what its options say.
        moved = {"PET_MODULE", "PET_NO_PYTHON", "PET_RUN_PATH", "PYTHON_EXEC"} & self.variables.keys()
        return parsed.certain and not moved and self._script(parsed, "--run_path")

    def _accelerate(self, parsed: _Parsed) -> bool:
        processes, machines = parsed.last("--num_processes"), parsed.last("--num_machines")
        total = _count(processes.value) if processes is not None else None
        share = _count(machines.value) if machines is not None else 1
        self.elsewhere |= share != 1
        # A configuration file may say that there are more machines, or that one of them starts the ranks of all: a line
        # that names no machines promises no fewer ranks than it will start, and one with several must name their kind.
        named = parsed.has("--multi_gpu", "--use_fsdp", "--use_megatron_lm")
        # With --cpu it is one process, whatever the number, or all of them through mpirun.
        unsaid = parsed.has("--cpu") or (share != 1 and not named)
        if total is None or share is None or total % share or unsaid:
            self._times(None)
        else:
            self._times(total // share, processes, machines)
        return parsed.certain and self._script(parsed, "--tpu")

    def _deepspeed(self, parsed: _Parsed) -> bool:
        devices, nodes = parsed.last("--num_gpus"), parsed.last("--num_nodes")
        known = nodes is None or nodes.value == "1"
        self._times(_count(devices.value) if devices is not None and known else None, devices, nodes)
        return parsed.certain and self._script(parsed)

    def _script(self, parsed: _Parsed, *in_process: str) -> bool:
        """Go on with what a Python launcher starts; ``in_process``: options with which its own interpreter's flags hold."""
        flags, self.flags_of_launcher = self.flags_of_launcher, ()
        if not parsed.rest:
            return False
        if parsed.has(*in_process):
            self.words = ("python", *flags, "--", *parsed.rest)
        elif parsed.has("--no_python"):
            self.words = parsed.rest
        elif parsed.has("--module"):
            self.words = ("python", "-m", *parsed.rest)
        else:
            self.words = ("python", "--", *parsed.rest)
        return not (parsed.has("--no_python") and parsed.has("--module"))

    def _srun(self, parsed: _Parsed) -> bool:
        tasks, nodes, each = parsed.last("--ntasks"), parsed.last("--nodes"), parsed.last("--ntasks-per-node")
        if tasks is not None:
            self._times(_count(tasks.value), tasks)
        elif nodes is None or each is None or parsed.has("--ntasks-per-gpu", "--ntasks-per-socket", "--ntasks-per-core"):
            self._times(None)
        else:
            count, per_node = _count(nodes.value), _count(each.value)
            number = count * per_node if count is not None and per_node is not None else None
            # Inside an allocation these say the number of tasks, and which of both counts has changed with versions.
            if {self.variables.get(name, str(number)) for name in ("SLURM_NTASKS", "SLURM_NPROCS")} != {str(number)}:
                number = None
            self._times(number, nodes, each)
        export = parsed.last("--export")
        names = export.value if export is not None else self.variables.get("SLURM_EXPORT_ENV", "ALL")
        words = export.words if export is not None else f"SLURM_EXPORT_ENV={names}"
        for word in names.split(","):
            if match := _ASSIGNMENT.fullmatch(word):
                self._assign(match[1], match[2], f"srun {words}")
        if "ALL" not in names.upper().split(","):
            self._hide(f"srun {words}", _NOT_PASSED)
        self.words = parsed.rest
        # A colon separates the parts of a heterogeneous job, wherever it stands.
        return parsed.certain and bool(parsed.rest) and ":" not in parsed.rest

    def _mpirun(self, parsed: _Parsed) -> bool:
        counts = [option for option in parsed.options if option.name == "--np"]
        self._times(_count(counts[0].value) if len(counts) == 1 else None, *counts)
        for option in parsed.options:
            if option.name in ("-genvnone", "-envnone", "-genvlist", "-envlist"):
                self._hide(f"mpirun {option.words}", _NOT_PASSED)
            elif option.name in ("-genv", "-env"):
                self._assign(option.values[0], option.values[1], f"mpirun {option.words}")
            elif option.name == "-x" and (match := _ASSIGNMENT.fullmatch(option.value)):
                self._assign(match[1], match[2], f"mpirun {option.words}")
        hosts = {
            host.partition(":")[0] for option in parsed.options if option.name == "--host" for host in option.value.split(",")
        }
        self.words = parsed.rest
        return parsed.certain and bool(parsed.rest) and hosts <= {"localhost", "127.0.0.1"} and ":" not in parsed.rest

    # Python itself

    def _python(self, program: str, rest: tuple[str, ...]) -> bool:
        """Whether the line goes on behind the interpreter: it runs a launcher. Else it runs a program, and that is the end."""
        parsed, target = _parse_python(rest)
        if not parsed.certain:
            self._times(None)
        module = parsed.last("-m")
        flags = tuple(option.name for option in parsed.options if option.name in ("-I", "-E", "-S"))
        # Only what a launcher is known to be is read further: its ranks get interpreters of their own.
        name = _base_name(target)
        if parsed.certain and module is not None and target in _MODULES:
            self.words, self.flags_of_launcher = (_MODULES[target], *parsed.rest), flags
            return True
        if parsed.certain and module is None and not parsed.has("-c") and name in _SCRIPTS:
            self.words, self.flags_of_launcher = (name, *parsed.rest), flags
            return True
        for flag in flags:
            does = "leaves out site, which loads sitecustomize" if flag == "-S" else "ignores PYTHONPATH"
            self._hide(f"{program} {flag}", does)
        return False

    # Programs that start another one in their place

    def _env(self, rest: tuple[str, ...]) -> bool:
        parsed = _parse(rest, _ENV)
        for option in parsed.options:
            if option.name == "--ignore-environment":
                self.variables.clear()
                self._hide("env -i", "empties the environment")
            elif option.name == "--unset":
                self.variables.pop(option.value, None)
                if option.value == _OBSERVED_THROUGH:
                    self._hide(f"env {option.words}", "removes PYTHONPATH")
        words = parsed.rest
        if parsed.certain and words[:1] == ("-",):
            self.variables.clear()
            self._hide("env -", "empties the environment")
            words = words[1:]
        while parsed.certain and words and "=" in words[0]:
            name, _, value = words[0].partition("=")
            self._assign(name, value, f"env {name}=...")
            words = words[1:]
        return self._go_on(parsed, words)

    def _nice(self, rest: tuple[str, ...]) -> bool:
        while rest and _NICENESS.fullmatch(rest[0]):
            rest = rest[1:]
        parsed = _parse(rest, _NICE)
        return self._go_on(parsed, parsed.rest)

    def _timeout(self, rest: tuple[str, ...]) -> bool:
        parsed = _parse(rest, _TIMEOUT)
        timed = bool(parsed.rest) and _DURATION.fullmatch(parsed.rest[0]) is not None
        return self._go_on(parsed, parsed.rest[1:]) and timed

    def _nohup(self, rest: tuple[str, ...]) -> bool:
        parsed = _parse(rest, _syntax())
        return self._go_on(parsed, parsed.rest)

    def _stdbuf(self, rest: tuple[str, ...]) -> bool:
        parsed = _parse(rest, _STDBUF)
        return self._go_on(parsed, parsed.rest)

    def _numactl(self, rest: tuple[str, ...]) -> bool:
        parsed = _parse(rest, _NUMACTL)
        return self._go_on(parsed, parsed.rest)

    def _uv(self, rest: tuple[str, ...]) -> bool:
        before = _parse(rest, _UV)
        if not before.certain or before.has("--module", "--script") or before.rest[:1] != ("run",):
            return False
        parsed = _parse(before.rest[1:], _UV)
        words = parsed.rest
        if parsed.has("--module"):
            words = ("python", "-m", *words) if words else ()
        elif parsed.has("--script") or (words and words[0].endswith((".py", ".pyw"))):
            words = ("python", "--", *words) if words else ()
        return self._go_on(parsed, words)

    def _conda(self, rest: tuple[str, ...]) -> bool:
        if rest[:1] != ("run",):
            return False
        parsed = _parse(rest[1:], _CONDA)
        return self._go_on(parsed, parsed.rest)

    def _go_on(self, parsed: _Parsed, words: tuple[str, ...]) -> bool:
        self.words = words
        return parsed.certain and bool(words)


_PREFIXES: Final[Mapping[str, Callable[[_Reader, tuple[str, ...]], bool]]] = {
    "env": _Reader._env,
    "nice": _Reader._nice,
    "timeout": _Reader._timeout,
    "nohup": _Reader._nohup,
    "stdbuf": _Reader._stdbuf,
    "numactl": _Reader._numactl,
    "uv": _Reader._uv,
    "conda": _Reader._conda,
}


def _parse(words: tuple[str, ...], syntax: _Syntax, *, ends: frozenset[str] = frozenset()) -> _Parsed:
    """Read options until the first word that is none, or until one in ``ends``, which is read too."""
    options: list[_Option] = []
    at = 0

    def parsed(*, certain: bool) -> _Parsed:
        return _Parsed(options=tuple(options), rest=words[at:], certain=certain)

    def take(name: str, attached: str | None, number: int) -> bool:
        """An option with its values; False if they are missing, or may be the next option."""
        nonlocal at
        values = () if attached is None else (attached,)
        more = words[at + 1 : at + 1 + number - len(values)]
        bad = not syntax.dash_values and any(word.startswith("-") and word != "-" for word in more)
        if len(values) + len(more) != number or bad:
            return False
        options.append(_Option(name=name, values=(*values, *more), words=shlex.join(words[at : at + 1 + len(more)])))
        at += 1 + len(more)
        return True

    while at < len(words):
        word = words[at]
        if word == "-" or not word.startswith("-"):
            break
        if word == "--" and not syntax.one_dash:
            at += 1
            break
        if word.startswith("--") or syntax.one_dash:
            spelling, equals, value = (word, "", "") if syntax.one_dash else word.partition("=")
            kind, attached = syntax.kinds.get(spelling), value if equals else None
            if kind is None or (kind == "flag" and equals):
                return parsed(certain=False)
            numbers = {"flag": 0, "optional": 1 if equals else 0, "value": 1, "pair": 2}
            if not take(syntax.names[spelling], attached, numbers[kind]):
                return parsed(certain=False)
            if syntax.names[spelling] in ends:
                break
            continue
        # Short options: -n 4, -n4 and, where they may be bundled, -lun4.
        ended = False
        letters = word[1:]
        while letters:
            spelling, letters = f"-{letters[0]}", letters[1:]
            kind = syntax.kinds.get(spelling)
            name = syntax.names.get(spelling, "")
            if kind == "value":
                if not syntax.dash_values:
                    letters = letters.removeprefix("=")  # argparse and clap: -n=4
                if not take(name, letters or None, 1):
                    return parsed(certain=False)
                ended = name in ends
                break
            if kind == "flag" or kind == "optional":
                values = (letters,) if kind == "optional" and letters else ()
                options.append(_Option(name=name, values=values, words=word))
                if values:
                    letters = ""
                if letters and not syntax.bundles:
                    return parsed(certain=False)
                if not letters:
                    at += 1
                continue
            return parsed(certain=False)
        if ended:
            break
    return parsed(certain=True)


def _parse_python(words: tuple[str, ...]) -> tuple[_Parsed, str]:
    """An interpreter's options, and what it runs: the module behind -m, the program behind -c, or the script."""
    parsed = _parse(words, _PYTHON, ends=frozenset({"-c", "-m"}))
    for name in ("-m", "-c"):
        if (option := parsed.last(name)) is not None:
            return parsed, option.value
    if not parsed.rest:
        return parsed, ""
    return _Parsed(options=parsed.options, rest=parsed.rest[1:], certain=parsed.certain), parsed.rest[0]


def python_program(argv: Sequence[str]) -> tuple[str, str]:
    """What an interpreter's own line runs: ``("-m", module)``, ``("-c", program)`` or ``("", script)``, empty if it is none."""
    parsed, name = _parse_python(tuple(argv[1:]))
    kind = next((option for option in ("-m", "-c") if parsed.has(option)), "")
    return kind, name if parsed.certain else ""


def _count(text: str) -> int | None:
    """A plain number of at least 1; the words ``gpu``, ``cpu`` and ``auto``, and ranges, are none."""
    return int(text) if _NUMBER.fullmatch(text) else None


def _base_name(path: str) -> str:
    return path.rpartition("/")[2]


def title(argv: Sequence[str]) -> str:
    """The line as a shell would take it, for people: printable, and at most :data:`TITLE_COLUMNS` columns wide."""
    return _cut(shlex.join(argv), TITLE_COLUMNS)


def _cut(text: str, columns: int) -> str:
    text = "".join(char if char.isprintable() else _escaped(char) for char in text)
    if sum(map(_columns, text)) <= columns:
        return text
    width, kept = 1, []  # 1 for the mark of what is left out
    for char in text:
        width += _columns(char)
        if width > columns:
            break
        kept.append(char)
    return "".join(kept).rstrip() + "…"


def _escaped(char: str) -> str:
    return char.encode("unicode_escape", "backslashreplace").decode("ascii")


def _columns(char: str) -> int:
    if unicodedata.combining(char):
        return 0
    return 2 if unicodedata.east_asian_width(char) in "WF" else 1


def digest(argv: Sequence[str], cwd: str) -> str:
    """The digest of a line and of the directory that it is started in: with another of either it is another launch."""
    return canonical.digest({"argv": list(argv), "cwd": cwd})
