"""Our weights under the names of torch's own Transformer layers."""

from torch import Tensor, nn

MLP = {"mlp.fc1": "linear1", "mlp.fc2": "linear2"}


def named_as_in_torch(module: nn.Module, names: dict[str, str]) -> dict[str, Tensor]:
    """`names` says which part of a name becomes which, beside those of the MLP."""
    state = {}
    for name, value in module.state_dict().items():
        for ours, theirs in (names | MLP).items():
            name = name.replace(ours, theirs)
        state[name] = value
    return state
