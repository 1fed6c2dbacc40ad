"""The verb `tell`: print the script by which a container learns which NIC belongs to which GPU."""

from __future__ import annotations

import argparse

from nodeagent.console.options import GOOD, Add


def add(add: Add) -> None:
    parser = add(
        "tell",
        _tell,
        "print the script that tells vLLM, UCX, NVSHMEM and NCCL the NIC of each GPU",
        "For containers that get their NICs by name from device plugins. With `tell` in the configuration they\n"
        "have the script as /var/run/nodeagent.io/tell.sh; for others put what is printed into the image or a\n"
        "ConfigMap. The container's command reads it, or asks for it:\n\n"
        "  . /var/run/nodeagent.io/tell.sh\n"
        '  eval "$(nodeagent tell vllm nvshmem)"\n\n'
        "The script needs a POSIX shell and awk. Containers with claims have the variables without it (docs/rails.md).",
    )
    parser.add_argument(
        "programs",
        metavar="PROGRAM",
        nargs="*",
        type=_program,
        help="programs to tell: vllm, ucx, nvshmem, nccl (default: all)",
    )


def _program(text: str) -> str:
    from nodeagent.kinds.tell_script import PROGRAMS

    if text not in PROGRAMS:
        raise argparse.ArgumentTypeError(f"{text!r} is not one of {', '.join(PROGRAMS)}")
    return text


def _tell(options: argparse.Namespace) -> int:
    from nodeagent.kinds.tell_script import PROGRAMS, script

    print(script(options.programs or PROGRAMS), end="")
    return GOOD
