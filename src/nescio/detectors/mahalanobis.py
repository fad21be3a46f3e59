"""Distance to class-conditional Gaussians, for samples with several labels each."""

from __future__ import annotations

from nescio._validation import Array, FloatArray, checked_choice, checked_flag
from nescio.detectors.arrays import Arrays
from nescio.detectors.base import Detector
from nescio.detectors.features import checked_layer
from nescio.detectors.gaussians import Gaussians, learn_gaussians, minus_distances
from nescio.errors import ShapeError


class Mahalanobis(Detector):
    """Mahalanobis distance of the features to the label means, under one shared covariance.

    Each label has a mean: that of the features of all samples with this label. The covariance is
    shared: a sample with three labels enters it three times, once around each of their means. The
    label-wise score is minus the squared distance, aggregated by the nearest label (max) or over
    all labels (sum).

    Features are whitened once with a Cholesky factor, so that a distance becomes Euclidean. If the
    covariance is singular (constant features, few samples), its pseudo-inverse is used.

    Parameters
    ----------
    aggregate : {"max", "sum"}
        The paper's method takes the max; its ablation takes the sum.
    normalise : bool
        Divide features by their Euclidean length first ("Mahalanobis++", Mueller & Hein, ICML
        2025). A row of zeros stays as it is.
    layer : str
        The array to read: "features", or a name in `Outputs.arrays`.

    Attributes
    ----------
    center_ : array of shape (n_features,)
        Subtracted before whitening.
    whitening_ : array of shape (n_features, rank)
        Its product with itself is the inverse covariance.
    means_ : array of shape (n_labels_with_samples, rank)
        The label means, whitened.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> labels = rng.integers(0, 2, (300, 4))
    >>> features = labels @ rng.normal(size=(4, 6)) + rng.normal(size=(300, 6))
    >>> detector = Mahalanobis().fit(features, labels)
    >>> detector.predict(np.full((1, 6), 50.0))
    array([-1])
    """

    name = "mahalanobis"
    paper = "Lee et al., NeurIPS 2018; multi-label as in Wang et al., NeurIPS 2021"
    learned = ("center_", "whitening_", "means_")

    def __init__(
        self,
        aggregate: str = "max",
        normalise: bool = False,
        layer: str = "features",
        *,
        tpr: float = 0.95,
        nonfinite: str = "raise",
    ) -> None:
        super().__init__(tpr=tpr, nonfinite=nonfinite)
        self.aggregate = aggregate
        self.normalise = normalise
        self.layer = layer

    @property
    def learns_from(self) -> tuple[str, ...]:
        """The features of the layer, and labels."""
        return (self.layer, "labels")

    @property
    def scores_from(self) -> tuple[str, ...]:
        """The features of the layer."""
        return (self.layer,)

    def _check_params(self) -> None:
        super()._check_params()
        checked_choice("aggregate", self.aggregate, ("max", "sum"))
        checked_flag("normalise", self.normalise)
        checked_layer(self.layer)

    def _learn(self, arrays: Arrays) -> None:
        self.center_, self.whitening_, self.means_ = learn_gaussians(
            arrays[self.layer], arrays.labels, normalise=self.normalise
        )

    def _score(self, arrays: Arrays) -> Array:
        (name,) = self.scores_from
        inputs: FloatArray = arrays[name]
        if inputs.shape[1] != len(self.center_):
            raise ShapeError(
                f"{self.name} learned from {len(self.center_)} features, but {name} has "
                f"{inputs.shape[1]} columns."
            )
        return minus_distances(inputs, self._gaussians(), self.aggregate, normalise=self.normalise)

    def _gaussians(self) -> Gaussians:
        return Gaussians(self.center_, self.whitening_, self.means_)

    def _check_learned(self) -> None:
        self._gaussians().check(self.n_features_in_)


class PerturbedMahalanobis(Mahalanobis):
    """Mahalanobis as in the paper: on the features of slightly perturbed inputs.

    It learns from the plain features of the training data, and scores the features of perturbed
    inputs, which `nescio extract --tuned` adds to the outputs as mahalanobis_max or
    mahalanobis_sum.

    Parameters
    ----------
    aggregate : {"max", "sum"}
        The paper's method takes the max; its ablation takes the sum.
    """

    name = "mahalanobis_perturbed"

    def __init__(
        self, aggregate: str = "max", *, tpr: float = 0.95, nonfinite: str = "raise"
    ) -> None:
        # The perturbation was computed for features as they are.
        super().__init__(aggregate, tpr=tpr, nonfinite=nonfinite)

    @property
    def scores_from(self) -> tuple[str, ...]:
        """The features of perturbed inputs, for the aggregate."""
        return (f"mahalanobis_{self.aggregate}",)
