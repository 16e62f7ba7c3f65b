"""What an agent adds for the launchers of training frameworks: programs, caches and networks of its machine. Pure."""

from typing import Final

from muster.events.types import StartWorker

PROGRAMS: Final = {"mindspore": ("msrun",)}
"""By framework, what stands in place of programs of these names: see `msrun_program`."""
_CACHES: Final = {
    "TORCH_EXTENSIONS_DIR": "torch_extensions",
    "TORCHINDUCTOR_CACHE_DIR": "inductor",
    "TRITON_CACHE_DIR": "triton",
    "CUDA_CACHE_PATH": "cuda",
}
_CACHES_OF: Final = {
    "jax": {"JAX_COMPILATION_CACHE_DIR": "jax"},
    "mindspore": {"MS_COMPILER_CACHE_PATH": "mindspore"},
}


def cache_environment(command: StartWorker, folder: str) -> dict[str, str]:
    """Where what is compiled is kept, below a folder of the worker's own: a lock that a killed job left in a shared one
    would stop others for ever."""
    caches = _CACHES | _CACHES_OF.get(command.framework, {})
    places = {name: f"{folder}/{below}" for name, below in caches.items()}
    return places | ({"MUSTER_MSRUN_LOGS": f"{folder}/msrun"} if command.framework == "mindspore" else {})


def interface_environment(command: StartWorker, interface: str) -> dict[str, str]:
    """The network that the workers of several nodes meet on; `interface` "" = theirs is not known."""
    if not interface or command.world == 1:
        return {}
    return {"NCCL_SOCKET_IFNAME": f"={interface}", "GLOO_SOCKET_IFNAME": interface}
