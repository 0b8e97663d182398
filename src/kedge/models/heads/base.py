"""The interface of a head. The package's docstring explains the shapes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int64
from torch import Tensor, nn

from kedge.errors import NotFiniteError

# Added to the number of examples in `mean_error`. With 1/3, images of new classes with 1 or 5
# examples are named at least as well as if all classes had that few; a smaller number costs the
# known classes more. Chosen on classes other than those reported in LOG.md.
MEAN_ERROR_PRIOR = 1 / 3
ClassFeatures = Sequence[Float[Tensor, "_ d"]]  # of any number of images of each class
Episode = Float[Tensor, "k s_plus_q d"]


class Head(nn.Module, ABC):
    """A classifier on features. Its own parameters, if any, train with the backbone. Its options
    are keyword-only arguments of the constructor, with defaults."""

    learns_class_embeddings: bool = False  # whether a round trains one vector for each class
    class_lr_scale: float = 1.0  # learning rate of these vectors, relative to the network's
    anchors_are_means: bool = False  # if they are not, a model also stores class means
    unit_features: bool = False  # whether features are scaled to length 1

    def __init__(self, n_features: int, temperature: float) -> None:
        super().__init__()
        self.n_features, self.temperature = n_features, temperature

    @abstractmethod
    def fit(
        self, support: Float[Tensor, "*e k s d"], mask: Bool[Tensor, "*e k s"] | None = None
    ) -> Float[Tensor, "*e k r"]:
        """One representative for each class of an episode; differentiable. Classes with fewer than
        s examples are padded, and `mask` is False at the padding."""

    @abstractmethod
    def logits(
        self, features: Float[Tensor, "*e n d"], representatives: Float[Tensor, "*e k r"]
    ) -> Float[Tensor, "*e n k"]:
        """Scores already divided by the temperature: their softmax is p(class)."""

    @abstractmethod
    def anchors(
        self, features: ClassFeatures, class_embeddings: Float[Tensor, "k r"] | None = None
    ) -> Float[Tensor, "k r"]:
        """The anchor of each class at the end of a round: from the features of all its training
        images, or the class embedding that the round has learned."""

    def episode_logits(
        self, episode: Episode, n_shot: int, class_embeddings: Float[Tensor, "k r"] | None
    ) -> tuple[Float[Tensor, "n k"], Int64[Tensor, " n"]]:
        """Logits and targets of the images that meta-training classifies: here the queries.
        `class_embeddings` are those of the episode's classes, if the head learns them."""
        queries, targets = flatten_with_targets(episode[:, n_shot:])
        return self.logits(queries, self.fit(episode[:, :n_shot])), targets

    def loss(
        self, episode: Episode, n_shot: int, class_embeddings: Float[Tensor, "k r"] | None
    ) -> Float[Tensor, ""]:
        """Cross-entropy of one episode, which meta-training minimizes."""
        return F.cross_entropy(*self.episode_logits(episode, n_shot, class_embeddings))

    def initial_class_embeddings(self, features: ClassFeatures) -> Float[Tensor, "k r"]:
        """Class embeddings at the start of a round, if the head learns them."""
        raise NotImplementedError(f"{type(self).__name__} has no initial class embeddings.")

    def distance_features(self, features: Float[Tensor, "n d"]) -> Float[Tensor, "n r"]:
        """The features in the space in which `logits` measures distances."""
        return features

    def offsets(self, counts: Float[Tensor, " k"], variance: float) -> Float[Tensor, " k"]:
        """What `Model.classifier` adds to the logits of classes whose representatives come from
        this many examples each, so that few examples are no disadvantage. `variance` is the mean
        squared distance of images from their class mean. Here 0: the scores have no such bias."""
        return torch.zeros_like(counts)

    def representatives_from(self, features: ClassFeatures) -> Float[Tensor, "k r"]:
        """Representatives of any number of classes from features alone; not differentiated."""
        learned = self.learns_class_embeddings
        return self.initial_class_embeddings(features) if learned else self.anchors(features)


def mean_error(counts: Float[Tensor, " k"], variance: float) -> Float[Tensor, " k"]:
    """By how much the squared distance from an image to the mean of n examples of its class exceeds
    that to the true mean, on average: variance / n. Of one example the correction is reduced (see
    `MEAN_ERROR_PRIOR`), since images of other classes come nearer, too."""
    return variance / (counts + MEAN_ERROR_PRIOR)


def neg_sq_dist(
    features: Float[Tensor, "*e n d"], points: Float[Tensor, "*e k d"]
) -> Float[Tensor, "*e n k"]:
    """−‖z−c‖² by one matrix product, after centring for precision (distances do not change)."""
    centre = points.mean(-2, keepdim=True).detach()
    z, c = features - centre, points - centre
    z2, c2 = z.square().sum(-1, keepdim=True), c.square().sum(-1)[..., None, :]
    return 2 * z @ c.mT - z2 - c2


def require_finite(logits: Float[Tensor, "*n k"]) -> Float[Tensor, "*n k"]:
    """The logits. Raises NotFiniteError if some are infinite or NaN: any class might win then."""
    if not bool(logits.isfinite().all()):
        raise NotFiniteError(
            "The model's scores of images are not finite numbers, since its weights or features "
            "are absurdly large; train it again with a lower --lr, or use an earlier model."
        )
    return logits


def flatten_with_targets(
    episode: Float[Tensor, "k n d"],
) -> tuple[Float[Tensor, "kn d"], Int64[Tensor, " kn"]]:
    """The features of all classes in one dimension, and the index of each one's class."""
    k, n, _ = episode.shape
    return episode.flatten(0, 1), torch.arange(k, device=episode.device).repeat_interleave(n)


def masked_mean(
    support: Float[Tensor, "*e k s d"], mask: Bool[Tensor, "*e k s"] | None
) -> Float[Tensor, "*e k d"]:
    """The mean of each class's examples; `mask` is False at padding."""
    if mask is None:
        return support.mean(-2)
    counts = mask.sum(-1, keepdim=True).to(support.dtype)
    return support.masked_fill(~mask[..., None], 0).sum(-2) / counts


def mean_features(features: ClassFeatures) -> Float[Tensor, "k d"]:
    """The mean feature of each class."""
    return torch.stack([of_class.mean(0) for of_class in features])
