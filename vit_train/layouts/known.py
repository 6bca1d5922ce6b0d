"""All layouts, and the choice of the one that a state dict is in."""

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from vit_train.layouts.huggingface import HUGGING_FACE, HUGGING_FACE_MODULES
from vit_train.layouts.layout import Layout, Misfit
from vit_train.layouts.timm import TIMM
from vit_train.layouts.torchvision import TORCHVISION
from vit_train.layouts.vit_pytorch import VIT_PYTORCH

LAYOUTS: tuple[Layout, ...] = (TIMM, TORCHVISION, HUGGING_FACE, HUGGING_FACE_MODULES, VIT_PYTORCH)
# Under what training programs keep a state dict, the averaged weights first, as timm does.
WRAPPERS = ("state_dict_ema", "model_ema", "ema", "state_dict", "model")
# What torch's own wrappers put before every name.
PREFIXES = ("module.", "_orig_mod.", "model.", "backbone.")


def unwrapped(content: Any) -> dict[str, Tensor]:
    """Return the state dict in a file's content, without what wraps it.

    Raise Misfit if there is none.
    """
    while isinstance(content, Mapping):
        inner = [content[key] for key in WRAPPERS if isinstance(content.get(key), Mapping)]
        if not inner:
            break
        content = inner[0]
    if not isinstance(content, Mapping):
        raise Misfit("it holds no state dict")
    state = {str(key): each for key, each in content.items() if isinstance(each, Tensor)}
    while state and (shared := [p for p in PREFIXES if all(k.startswith(p) for k in state)]):
        state = {key.removeprefix(shared[0]): value for key, value in state.items()}
    if not state:
        keys = ", ".join(str(key)[:40] for key in list(content)[:5])
        raise Misfit(f"it holds no weights (but {keys or 'nothing'})")
    return state


def layout_of(state: Mapping[str, Tensor]) -> Layout:
    """Return the layout of a state dict; raise Misfit if it is none that is known."""
    for layout in LAYOUTS:
        if layout.recognizes(state):
            return layout
    libraries = dict.fromkeys(layout.name for layout in LAYOUTS)
    keys = ", ".join(key[:40] for key in list(state)[:3])
    raise Misfit(f"its weights ({keys}, …) are in no layout that is known: {', '.join(libraries)}")
