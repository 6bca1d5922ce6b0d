"""Figure of a model's position embeddings."""

import torch
from matplotlib.figure import Figure

from vit_train.explain.positions import mosaic, similarity
from vit_train.model.vit import Encoder

# More patches than this are too small to be drawn, and their similarities take gigabytes.
MOST_PLACES = 48**2


@torch.no_grad()
def draw_positions(encoder: Encoder) -> Figure:
    """Draw the first table of absolute positions and the similarities of the patches' positions.

    The similarities are drawn as in figure 7 (middle) of Dosovitskiy et al. 2021.
    """
    table = encoder.pos_embed[0]()[0].float().cpu()  # (T,D)
    patches = table[len(table) - encoder.grid**2 :]
    figure = Figure(figsize=(10, 4.6), dpi=120)
    values, places = figure.subplots(1, 2)
    figure.subplots_adjust(left=0.07, right=0.99, bottom=0.12, top=0.92, wspace=0.06)
    most = table.abs().quantile(0.99).item()
    image = values.imshow(
        table.numpy(), cmap="RdBu", vmin=-most, vmax=most, aspect="auto", interpolation="nearest"
    )
    values.set(title=f"{encoder.config.positions}: the table", xlabel="value", ylabel="token")
    figure.colorbar(image, ax=values, shrink=0.8)
    image = places.imshow(mosaic(similarity(patches)).numpy(), cmap="viridis", vmax=1)
    places.set(title="each patch's cosine similarity to all patches", xticks=[], yticks=[])
    places.set_anchor("N")  # its title as high as the other
    places.spines[:].set_visible(False)
    figure.colorbar(image, ax=places, shrink=0.8)
    return figure
