"""The lines that explain why a run broke: a table. The first rule that matches a line names it.

The texts are from SGLang 0.4.3.post2 to 0.5.23, torch, and the threads named in ``source`` (``#n`` is
SGLang's); those marked "recorded" were seen in real logs.
"""

from __future__ import annotations

import re

from pytest_r1perf.sglang.causes import CauseRule, FailureClass, Tier

_F = FailureClass

_HINT_GPU_MEMORY = "lower --mem-fraction-static or the largest CUDA-graph batch; were the GPUs free beforehand?"
_HINT_HOST_MEMORY = "the host ran out of memory: see `dmesg -T | grep -i oom` and the job's memory limit"
_HINT_NCCL_HANG = "a rank stopped answering: see the stack dumps in the log, the network, and --dist-timeout"
_HINT_ARGUMENT = "correct the flag for this SGLang version"
_HINT_MODEL = "check the platform's model path: a directory with config.json and, unless dummy, the weights"
_HINT_DOWNLOAD = "the run tried to download: give a local --dataset-path and model path"
_HINT_DRIVER = "the GPU or its driver is at fault: check nvidia-smi and dmesg, then move the run to another host"


def _rule(
    name: str,
    kind: FailureClass,
    pattern: str,
    needles: tuple[str, ...],
    hint: str,
    source: str,
    tier: Tier = Tier.FIRST,
    frame: str | None = None,
) -> CauseRule:
    return CauseRule(name, re.compile(pattern), needles, kind, hint, source, tier, re.compile(frame) if frame else None)


CAUSE_RULES: tuple[CauseRule, ...] = (
    # --- memory
    _rule(
        "gpu-oom",
        _F.OOM,
        r"(?:CUDA|HIP) out of memory|CUDA error: out of memory|OutOfMemoryError|CUDA_ERROR_OUT_OF_MEMORY"
        r"|cudaErrorMemoryAllocation|CUBLAS_STATUS_ALLOC_FAILED|Cuda failure 2 'out of memory'",
        ("out of memory", "OutOfMemory", "OUT_OF_MEMORY", "MemoryAllocation", "ALLOC_FAILED"),
        _HINT_GPU_MEMORY,
        "torch; #5285, #1455 ('Capture cuda graph failed' without this text is not OOM: #9706)",
    ),
    _rule(
        "no-kv-room",
        _F.OOM,
        r"Not enough memory\. Please try|leave no GPU memory",
        ("Not enough memory", "leave no GPU memory"),
        "the weights left no room for the KV cache: raise --mem-fraction-static, or use more GPUs",
        "ModelRunner; 'Loaded weights leave no GPU memory for the KV cache' in newer versions",
    ),
    _rule(
        "host-oom",
        _F.OOM,
        r"^(?:numpy\S*)?_?(?:Array)?MemoryError\b|Cannot allocate memory|DefaultCPUAllocator: (?:can't|not)"
        r"|std::bad_alloc",
        ("MemoryError", "Cannot allocate memory", "DefaultCPUAllocator", "bad_alloc"),
        _HINT_HOST_MEMORY,
        "CPython, errno 12, torch, libstdc++",
    ),
    _rule(
        "oom-killer",
        _F.OOM,
        r"Out of memory: Killed process|oom[-_]kill(?:er)?\b|Memory cgroup out of memory",
        ("Killed process", "oom-kill", "oom_kill", "Memory cgroup"),
        _HINT_HOST_MEMORY,
        "Linux kernel; slurmstepd 'Detected 1 oom_kill event'",
        Tier.DECISIVE,
    ),
    _rule(
        "child-sigkill",
        _F.OOM,
        # The newer text goes on "If exit code is -9 (SIGKILL), a common cause is ..." for every code.
        r"\(exit code:? -9\)|crashed with exit code -9\b",
        ("exit code",),
        "a scheduler was killed and gave no reason, most likely for memory: see `dmesg -T | grep -i oom`",
        "engine.py _scheduler_died_error; the second recorded with 0.5.20",
        Tier.KILLED,
    ),
    # --- hang
    _rule(
        "watchdog",
        _F.HANG,
        r"[Ww]atchdog timeout \(self\.watchdog_timeout",
        ("atchdog timeout",),
        "the scheduler made no progress: see the py-spy dump in the log; with PP try a smaller micro-batch",
        "#7553, #17941; '{name} watchdog timeout' from 0.5.8",
    ),
    _rule(
        "nccl-timeout",
        _F.HANG,
        r"Watchdog caught collective operation timeout|watchdog got stuck for \d+ seconds"
        r"|Timed out waiting \d+ms for (?:recv|send) operation|Some NCCL operations have failed or timed out",
        ("collective operation timeout", "watchdog got stuck", "Timed out waiting", "failed or timed out"),
        _HINT_NCCL_HANG,
        "#3932 (600 s, remedy --dist-timeout 3600); gloo",
    ),
    # --- infrastructure
    _rule(
        "port-taken",
        _F.INFRA,
        r"EADDRINUSE|[Aa]ddress already in use|is used by a process already|is not available in \d+ seconds",
        ("EADDRINUSE", "ddress already in use", "used by a process", "is not available in"),
        "another process holds the port: end it or choose another port family",
        "#37215; wait_port_available",
    ),
    _rule(
        "offline-hub",
        _F.INFRA,
        r"OfflineModeIsEnabled|LocalEntryNotFoundError",
        ("OfflineModeIsEnabled", "LocalEntryNotFound"),
        _HINT_DOWNLOAD,
        "#5386, #14407: even --dataset-name random wants ShareGPT",
    ),
    _rule(
        "hub-unreachable",
        _F.INFRA,
        r"(?:huggingface\.co|hf-mirror|hf\.co|ModelScope|modelscope).*(?:Max retries|Connection refused"
        r"|timed out|Failed to resolve|Cannot reach)|(?:Max retries|Failed to resolve|couldn't connect to)"
        r".*(?:huggingface\.co|hf\.co|modelscope)|Temporary failure in name resolution",
        ("huggingface.co", "hf.co", "hf-mirror", "odelscope", "odelScope", "name resolution"),
        _HINT_DOWNLOAD,
        "requests, huggingface_hub",
        Tier.SURVIVABLE,
    ),
    _rule(
        "disk-full",
        _F.INFRA,
        r"No space left on device|Disk quota exceeded",
        ("No space left", "Disk quota"),
        "free the disk (or /dev/shm, or the kernel caches' directory) and run again",
        "errno 28, 122",
        Tier.SURVIVABLE,
    ),
    _rule(
        "permission",
        _F.INFRA,
        r"PermissionError: |Permission denied",
        ("PermissionError", "Permission denied"),
        "give this user access to the path, device or cache directory that the line names",
        "errno 13",
        Tier.SURVIVABLE,
    ),
    _rule(
        "gpu-driver",
        _F.INFRA,
        r"CUDA driver version is insufficient|CUDA driver initialization failed|CUDA unknown error"
        r"|no CUDA-capable device|CUDA-capable device\(s\) is/are busy|devices are busy or unavailable"
        r"|uncorrectable (?:ECC|NVLink) error|system not yet initialized|unsupported display driver"
        r"|Driver/library version mismatch|GPU is lost|fallen off the bus|NVRM: Xid"
        r"|No accelerator \(CUDA|No CUDA GPUs are available|Found no NVIDIA driver",
        (
            "CUDA driver",
            "CUDA unknown",
            "CUDA-capable",
            "busy or unavailable",
            "uncorrectable",
            "not yet initialized",
            "unsupported display",
            "version mismatch",
            "GPU is lost",
            "off the bus",
            "NVRM",
            "No accelerator",
            "No CUDA GPUs",
            "no NVIDIA driver",
        ),
        _HINT_DRIVER,
        "CUDA runtime errors 35, 46, 100, 101, 214, 802, 803, 999; NVML; get_device()",
    ),
    _rule(
        "gpu-dirty",
        _F.INFRA,
        r"memory capacity is unbalanced",
        ("memory capacity is unbalanced",),
        "another process occupies a GPU of the group: end it and wait until its memory is back",
        "ModelRunner: 'Some GPUs may be occupied by other processes'",
    ),
    _rule(
        "nccl-system",
        _F.INFRA,
        r"ncclSystemError|unhandled system error|NCCL WARN .*(?:No route to host|Connection refused)",
        ("ncclSystemError", "unhandled system error", "NCCL WARN"),
        "NCCL could not use the network or shared memory: check NCCL_SOCKET_IFNAME, InfiniBand and /dev/shm",
        "NCCL",
    ),
    _rule(
        "rendezvous",
        _F.INFRA,
        r"Timed out after \d+ seconds waiting for clients|client socket has (?:timed out|failed to connect)",
        ("waiting for clients", "client socket has"),
        "not every node came: check --dist-init-addr and that rank 0 is reachable",
        "torch TCPStore",
    ),
    # --- configuration
    _rule(
        "argparse",
        _F.CONFIG,
        r"\berror: (?:unrecognized arguments|ambiguous option|argument \S+: (?:invalid|expected|not allowed)"
        r"|the following arguments are required|one of the arguments)",
        (" error: ", "\terror: "),
        _HINT_ARGUMENT,
        "argparse, exit code 2; unrecognized, invalid choice and expected one argument recorded with 0.5.20",
    ),
    _rule(
        "input-too-long",
        _F.CONFIG,
        r"Input length \(\d+ tokens\) exceeds the maximum allowed length"
        r"|is longer than the model's context length",
        ("Input length (", "longer than the model's"),
        "raise --max-total-tokens or --context-length: the KV cache cannot hold one such request",
        "recorded with 0.5.20 (--max-total-tokens 64)",
    ),
    _rule(
        "no-weights",
        _F.CONFIG,
        r"Cannot find any model weights",
        ("Cannot find any model weights",),
        _HINT_MODEL,
        "recorded with 0.5.20 (--load-format auto on a model of config files only)",
    ),
    _rule(
        "model-path",
        _F.CONFIG,
        r"Repo id must be in the form|Unrecognized model in |does not appear to have a file named"
        r"|is not a local folder and is not a valid model|Can't load (?:the )?(?:configuration|tokenizer)"
        r"|Model architectures? \S+ (?:is|are) not supported",
        (
            "Repo id must",
            "Unrecognized model",
            "does not appear",
            "not a local folder",
            "Can't load",
            "architecture",
        ),
        _HINT_MODEL,
        "huggingface_hub, transformers; the first two recorded with 0.5.20",
    ),
    _rule(
        "dataset-path",
        _F.CONFIG,
        r"FileNotFoundError: .*\.jsonl?'",
        ("FileNotFoundError",),
        "the dataset is not there: check the platform's dataset path",
        "recorded with 0.5.20 (--dataset-path none.json)",
    ),
    _rule(
        "no-module",
        _F.CONFIG,
        r"No module named '?sglang\b",
        ("No module named",),
        "this SGLang has no such module (moved in 0.5.21), or the environment has no SGLang",
        "sglang.bench_offline_throughput is gone from 0.5.21",
    ),
    _rule(
        "divisibility",
        _F.CONFIG,
        r"(?:must be|is not|not) divisible by",
        ("divisible by",),
        "the topology does not fit this model: choose sizes that divide it",
        "ServerArgs, torch-parallel layers",
    ),
    _rule(
        "backend-name",
        _F.CONFIG,
        r"Please set backend to either|Please set SGLANG_TORCH_PROFILER_DIR",
        ("Please set ",),
        _HINT_ARGUMENT,
        "bench_offline_throughput, all versions and 0.4.6.post5+",
    ),
    _rule(
        "server-args",
        _F.CONFIG,
        r"^(?:AssertionError|ValueError|NotImplementedError)\b",
        (),
        "SGLang refused this combination of flags: the line says which",
        "ServerArgs validation: server_args.py, arg_groups/ (0.5.19+), configs/model_config.py",
        frame=r"/server_args\.py$|/arg_groups/|/configs/model_config\.py$",
    ),
    # --- crashes without a Python traceback, and what others say of a dead process
    _rule(
        "native-crash",
        _F.CRASH,
        r"Fatal Python error: |Segmentation fault|terminate called after throwing|Bus error",
        ("Fatal Python error", "Segmentation fault", "terminate called", "Bus error"),
        "a compiled kernel crashed: see the stack in the log and try another attention or MoE backend",
        "CPython faulthandler, libstdc++, the shell",
    ),
    _rule(
        "peer-gone",
        _F.CRASH,
        r"^(?:EOFError|BrokenPipeError|ConnectionResetError|KeyboardInterrupt|SystemExit)\b"
        r"|Connection (?:closed|reset) by (?:remote )?peer|ncclRemoteError|remote process exited",
        ("EOFError", "BrokenPipe", "ConnectionReset", "KeyboardInterrupt", "SystemExit", " peer", "emote"),
        "another process ended first: see its own output",
        "parent and sibling processes of a dead scheduler",
        Tier.SYMPTOM,
    ),
    _rule(
        "child-failed",
        _F.CRASH,
        r"Rank \d+ scheduler (?:is dead|died)|crashed with exit code|Initialization failed\. Please see"
        r"|[Rr]eceived sigquit from a child|SIGQUIT received",
        (
            "scheduler is dead",
            "scheduler died",
            "crashed with",
            "Initialization failed",
            "sigquit",
            "SIGQUIT",
        ),
        "a scheduler process ended and said nothing: see its last lines",
        "engine.py; sigquit and SIGQUIT texts recorded with 0.5.20 (0.4.3 has 'proces')",
        Tier.SYMPTOM,
    ),
)
