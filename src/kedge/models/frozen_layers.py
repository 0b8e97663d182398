"""Leading layers of a backbone that do not train: their outputs are computed once per image.

A round in which only the last layers train is then a round of a shorter model whose inputs are
maps (the outputs of the frozen layers) instead of images. Each training image has several maps, one
for each of its views: the first is of the image as it is, the others of augmented copies.
"""

from __future__ import annotations

import copy
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from kedge.data.augment import augment, draw_augmentation, to_float
from kedge.data.pools import Pool, RoundData
from kedge.data.table import ImageTable
from kedge.models.embedding import Embedding, eval_mode, half_precision
from kedge.models.model import Model
from kedge.utils.progress import Tick, no_tick
from kedge.utils.seeding import generator

N_VIEWS = 4  # maps of a training image: of itself and of 3 augmented copies
MAX_BYTES = 4 << 30  # of all maps; with fewer than 2 views, nothing is computed in advance
LARGEST_HALF = 60_000.0  # from the first map with a larger value on, all are kept in float32


@dataclass(frozen=True, eq=False)
class MapTable(ImageTable):
    """A table with maps in place of images: n × views × any shape, float16 or float32."""

    def _check_images(self) -> None:
        ok = self.images.dtype.is_floating_point and self.images.ndim >= 3
        self._require(ok, "maps must be floating-point numbers of shape N×views×…")

    @property
    def n_views(self) -> int:
        return self.images.shape[1]


class TrainedLayers(Embedding):
    """The rest of an embedding after its frozen layers; its inputs are maps. Shares all weights."""

    takes_maps = True

    def __init__(self, embedding: Embedding, names: tuple[str, ...]) -> None:
        nn.Module.__init__(self)
        children = ((name, embedding.backbone.get_submodule(name)) for name in names)
        self.backbone = nn.Sequential(OrderedDict(children))
        self.unit_features = embedding.unit_features
        self.register_buffer("mean", embedding.mean)
        self.register_buffer("std", embedding.std)

    def forward(self, maps: Tensor) -> Tensor:
        return self.to_features(maps)


class FrozenLayers:
    """The leading layers of a model's backbone that a round does not train."""

    def __init__(self, model: Model, trained_names: tuple[str, ...]) -> None:
        """`trained_names` are the children of the backbone after the frozen ones."""
        self.model, self.trained_names = model, trained_names

    @classmethod
    def of(cls, model: Model, weights: Iterable[str]) -> FrozenLayers | None:
        """The frozen layers, if there are any that can be computed on their own: all of a backbone,
        or the first children of an `nn.Sequential`. `weights` names those that train, as in
        `Model.weights`."""
        backbone, prefix = model.embedding.backbone, "embedding.backbone."
        trained = [name.removeprefix(prefix) for name in weights if name.startswith(prefix)]
        if not trained:
            return cls(model, ()) if any(True for _ in backbone.parameters()) else None
        # Of a subclass, `forward` may do more than run the children one after the other.
        if getattr(type(backbone), "forward", None) is not nn.Sequential.forward:
            return None
        names = [name for name, _ in backbone.named_children()]
        first = min(names.index(name.partition(".")[0]) for name in trained)
        # Layers without weights alone are not frozen. A child used twice is listed only once.
        frozen = any(n.partition(".")[0] in names[:first] for n, _ in backbone.named_parameters())
        whole = len(names) == len(backbone._modules)
        return cls(model, tuple(names[first:])) if frozen and whole else None

    def shorten(self, model: Model) -> Model:
        """The model with maps as its inputs. It shares all weights with the given one."""
        return replace(model, embedding=TrainedLayers(model.embedding, self.trained_names))

    def restore(self, short: Model) -> Model:
        """The whole model, with layers, head and anchors of a short one."""
        embedding = copy.deepcopy(self.model.embedding)
        for name, child in short.embedding.backbone.named_children():
            embedding.backbone.add_module(name, child)
        return replace(short, embedding=embedding.eval().requires_grad_(False))

    def map_round(self, data: RoundData, seed: int, tick: Tick = no_tick) -> RoundData | None:
        """The data of a round as maps; None if they would take too much memory."""
        trained = data.training_pools
        pools = (data.val, *trained)
        mapped: dict[int, MapTable] = {}
        for table in {id(pool.table): pool.table for pool in pools}.values():
            rows = [pool.rows for pool in trained if pool.table is table]
            augmented = torch.cat([*rows, torch.empty(0, dtype=torch.int64)]).unique()
            n_views = self._n_views(table)
            if n_views < 2:
                return None
            mapped[id(table)] = self.map_table(table, augmented, n_views, seed, tick)
        val, train, *old = (replace(pool, table=mapped[id(pool.table)]) for pool in pools)
        return RoundData(data.round, train, val, *old)

    def fit_into_memory(self, data: RoundData) -> bool:
        """Whether `map_round` gives maps of these images."""
        return all(self._n_views(pool.table) >= 2 for pool in (data.val, *data.training_pools))

    def map_pool(self, pool: Pool, seed: int, tick: Tick = no_tick) -> Pool:
        """A pool of few images as maps, all with augmented views."""
        return replace(pool, table=self.map_table(pool.table, pool.rows, N_VIEWS, seed, tick))

    @torch.no_grad()
    def map_table(
        self, table: ImageTable, augmented: Tensor, n_views: int, seed: int, tick: Tick = no_tick
    ) -> MapTable:
        """Maps of all rows of a table. All views of a row that is not `augmented` are equal."""
        wanted = torch.zeros(len(table), dtype=torch.bool)
        wanted[augmented] = True
        maps = torch.empty(0, dtype=torch.float16)
        rng, size = generator("views", seed), table.image_size

        def store(rows: Tensor, views: int | slice, found: Tensor) -> None:
            nonlocal maps
            if maps.numel() == 0:
                maps = maps.new_empty((len(table), n_views, *found.shape[1:]))
            if maps.dtype == torch.float16 and not found.abs().max() < LARGEST_HALF:
                maps = maps.float()
            found = found.to("cpu", maps.dtype)
            maps[rows, views] = found[:, None] if isinstance(views, slice) else found

        with eval_mode(self.model.embedding):
            for rows in torch.arange(len(table)).split(self.model.embed_batch_size):
                images = table.take(rows).to(self.model.device)
                store(rows, slice(None), self.maps(to_float(images)))
                chosen = wanted[rows].to(images.device)
                # Drawn for all rows, so that views do not depend on which rows are augmented.
                drawn = draw_augmentation(rng, n_views - 1, len(rows), size).to(images.device)
                for view in range(1, n_views) if chosen.any() else ():
                    one = drawn.of(view - 1, len(rows)).select(chosen)
                    store(rows[chosen.cpu()], view, self.maps(augment(images[chosen], one)))
                tick(len(rows) + (n_views - 1) * int(chosen.sum()))
        return MapTable(maps, table.labels, table.classes, table.source, table.parts, table.part)

    def n_embedded(self, data: RoundData) -> int:
        """How many images and augmented copies `map_round` embeds."""
        trained = data.training_pools
        tables = {id(pool.table): len(pool.table) for pool in (data.val, *trained)}
        return sum(tables.values()) + (N_VIEWS - 1) * sum(map(len, trained))

    def maps(self, pixels: Tensor) -> Tensor:
        """Outputs of the frozen layers for one batch."""
        embedding, device = self.model.embedding, pixels.device
        x = (pixels - embedding.mean) / embedding.std
        with torch.autocast(device.type, torch.bfloat16, half_precision(device)):
            if not self.trained_names:
                return embedding.backbone(x).float()
            for name, layer in embedding.backbone.named_children():
                if name == self.trained_names[0]:
                    break
                x = layer(x)
        return x.float()

    def _n_views(self, table: ImageTable) -> int:
        return min(N_VIEWS, MAX_BYTES // (len(table) * self._map_bytes(table)))

    def _map_bytes(self, table: ImageTable) -> int:
        with torch.no_grad(), eval_mode(self.model.embedding):
            one = self.maps(
                to_float(table.take(torch.zeros(1, dtype=torch.int64)).to(self.model.device))
            )
        return 2 * one.numel()
