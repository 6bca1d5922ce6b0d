import pytest
import torch
from sklearn.decomposition import PCA

from vit_train.explain.attribution import principal_filters


def test_filters_are_the_principal_components_of_scikit_learn() -> None:
    weight = 5 + torch.randn(20, 3, 2, 2)
    filters, shares = principal_filters(weight, 4)
    theirs = PCA(4).fit(weight.flatten(1).double().numpy())
    assert filters.shape == (4, 3, 2, 2)
    assert shares == pytest.approx(theirs.explained_variance_ratio_.tolist())
    cosines = (filters.flatten(1) * torch.from_numpy(theirs.components_)).sum(1)
    torch.testing.assert_close(cosines.abs(), torch.ones(4).double())  # the sign is arbitrary
