"""conf/model/*.yaml: every preset is a valid model of a known size."""

import pytest

from benchmarks.turn import composed
from vit_train.config.run import CONF_DIR
from vit_train.model.build import build, on_meta

# At 32×32×3 and 10 classes. With patch P, width D, depth L, hidden width F and N = (32/P)²:
#   patches 3P²D + D, class token and positions D(N + 2),
#   L blocks of 4D² + 4D (attention), 2DF + F + D (MLP) and 4D (two LayerNorms),
#   last LayerNorm 2D, head 10D + 10.
PARAMETERS = {
    "tiny": 1_205_898,  # P 4, D 128, L 6, F 512
    "small": 3_722_250,  # P 4, D 256, L 7, F 512
    "base": 21_342_346,  # P 4, D 384, L 12, F 1536
    "vit_tiny_patch16_224": 5_489_482,  # P 16, D 192, L 12, F 768
    "vit_small_patch16_224": 21_595_786,  # P 16, D 384, L 12, F 1536
    "vit_base_patch16_224": 85_658_890,  # P 16, D 768, L 12, F 3072
    "cnn": 141_354,
    "resnet": 175_258,
    "fast_cnn": 1_972_802,
}


def test_table_lists_exactly_the_files_in_conf_model():
    assert {path.stem for path in (CONF_DIR / "model").glob("*.yaml")} == set(PARAMETERS)


@pytest.mark.parametrize("preset", PARAMETERS)
def test_preset_has_exactly_this_many_parameters(preset):
    config = composed([f"model={preset}"]).model
    model = on_meta(lambda: build(config, (3, 32, 32), 10), config)
    assert sum(parameter.numel() for parameter in model.parameters()) == PARAMETERS[preset]
