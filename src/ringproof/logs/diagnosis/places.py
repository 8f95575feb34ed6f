"""Where in upstream's source a frame of a traceback is, whatever folder it was installed in."""

from __future__ import annotations

import re

_INSTALLED = re.compile(r".*(?:site-packages|dist-packages|lib/python3\.\d+)/")
_REPOSITORIES = (
    ("megatron/bridge/", "Megatron-Bridge"),
    ("megatron/", "Megatron-LM"),
    ("transformer_engine/", "Transformer Engine"),
    ("verl/", "verl"),
    ("nemo_rl/", "NeMo-RL"),
    ("nemo_automodel/", "Automodel"),
    ("nemo/", "NeMo"),
    ("swift/", "ms-swift"),
    ("mcore_bridge/", "mcore-bridge"),
    ("mcore_adapter/", "mcore_adapter of ROLL"),
    ("slime/", "slime"),
    ("torchtitan/", "torchtitan"),
    ("llamafactory/", "LLaMA-Factory"),
    ("deepspeed/", "DeepSpeed"),
    ("transformers/", "Transformers"),
    ("torch/", "PyTorch"),
)


def inside(place: str) -> str:
    """Return a place without the folder that packages are installed in, whose name says nothing.

    >>> inside("/opt/conda/envs/torch/lib/python3.10/site-packages/requests/adapters.py:7")
    'requests/adapters.py:7'
    """
    return _INSTALLED.sub("", place.replace("\\", "/"))


def upstream_place(place: str) -> str:
    """Return the repository's name and the path inside it, or an empty text.

    >>> upstream_place("/opt/x/lib/python3.12/site-packages/megatron/core/utils.py:1928")
    'Megatron-LM, megatron/core/utils.py'
    >>> upstream_place("/home/me/train.py:3")
    ''
    """
    path = "/" + inside(place).rpartition(":")[0].lstrip("/")
    for package, repository in _REPOSITORIES:
        _, found, rest = path.rpartition(f"/{package}")
        if found:
            return f"{repository}, {package}{rest}"
    return ""
