"""What models of devices there are: their names as users write them, and what each name promises."""

import re
from typing import Final, NamedTuple


class Model(NamedTuple):
    """What a model's name promises, and about what the driver reserves of it."""

    nominal_mib: int
    reserved_mib: int


MODELS: Final[dict[str, Model]] = {
    "A2": Model(16_384, 424),
    "A10": Model(24_576, 512),
    "A10G": Model(24_576, 512),
    "A16": Model(16_384, 424),
    "A30": Model(24_576, 452),
    "A40": Model(49_152, 584),
    "A100-40GB": Model(40_960, 588),
    "A100-80GB": Model(81_920, 766),
    "A800-40GB": Model(40_960, 588),
    "A800-80GB": Model(81_920, 766),
    "B200": Model(184_320, 1_024),
    "B300": Model(276_480, 1_024),
    "GB10": Model(131_072, 0),
    "GB200": Model(190_464, 1_024),
    "GB300": Model(285_696, 1_024),
    "GH200-96GB": Model(98_304, 736),
    "GH200-144GB": Model(147_456, 841),
    "H20-96GB": Model(98_304, 736),
    "H20-141GB": Model(144_384, 841),
    "H100-80GB": Model(81_920, 736),
    "H100-94GB": Model(96_256, 736),
    "H100-96GB": Model(98_304, 736),
    "H200": Model(144_384, 841),
    "H800": Model(81_920, 736),
    "L4": Model(24_576, 512),
    "L20": Model(49_152, 584),
    "L40": Model(49_152, 584),
    "L40S": Model(49_152, 584),
    "P40": Model(24_576, 344),
    "P100-16GB": Model(16_384, 344),
    "RTX-3090": Model(24_576, 384),
    "RTX-4090": Model(24_576, 384),
    "RTX-5090": Model(32_768, 512),
    "RTX-6000-Ada": Model(49_152, 584),
    "RTX-A5000": Model(24_576, 512),
    "RTX-A6000": Model(49_152, 584),
    "RTX-PRO-6000": Model(98_304, 640),
    "T4": Model(16_384, 424),
    "V100-16GB": Model(16_384, 344),
    "V100-32GB": Model(32_768, 344),
}
_MAKERS: Final = re.compile(r"^(NVIDIA|Tesla|GeForce|Quadro)\s+")
_FORMS: Final = re.compile(
    r"[- ](SXM\d?|PCIE|PCIe|NVL|HBM3e?|AC|Generation|Blackwell|(Max-Q )?(Server|Workstation) Edition)\b"
)
_SIZE: Final = re.compile(r"-(\d+)GB$")
_INTEGRATED: Final = re.compile(r"\b(GB10|Thor|Orin)\b")


def model_of(name: str, total_mib: int) -> str:
    """NVML's name as users write it: ``NVIDIA A100-SXM4-80GB`` → ``A100-80GB``. A model that is sold with several sizes
    of memory has its size in it, others do not; a size that is not the device's own (a superchip's name can tell the
    host's) is left out. `total_mib` 0 = unknown."""
    short = name.strip()
    while _MAKERS.match(short):
        short = _MAKERS.sub("", short)
    short = re.sub(r"[^A-Za-z0-9._+-]+", "-", _FORMS.sub("", short)).strip("-")
    size = _SIZE.search(short)
    if size is not None and total_mib and not _near(int(size[1]) * 1024, total_mib):
        short = short[: size.start()]
    if short in MODELS:
        return short
    sold = [model for model in MODELS if _SIZE.sub("", model) == short]
    near = [model for model in sold if _near(MODELS[model].nominal_mib, total_mib)]
    return min(near, key=lambda model: abs(MODELS[model].nominal_mib - total_mib)) if near else short


def nominal_mib(model: str, total_mib: int) -> int:
    """What the model's name promises; of an unknown one, its memory in whole GiB."""
    if model in MODELS:
        return MODELS[model].nominal_mib
    promised = _SIZE.search(model)
    return int(promised[1]) * 1024 if promised else -(-total_mib // 1024) * 1024


def is_integrated(name: str) -> bool:
    """Whether this is a part whose memory is the host's."""
    return _INTEGRATED.search(name) is not None


def _near(nominal: int, total: int) -> bool:
    return abs(nominal - total) * 10 < total
