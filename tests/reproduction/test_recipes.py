"""The recipes on photographs: loadable by path, and what their names and headers say."""

from pathlib import Path

import pytest

from kedge.experiments import paper
from kedge.experiments.recipes import load_recipe
from kedge.experiments.records import RecordSet

ROOT = Path(__file__).parents[2] / "reproduction"
RECIPES = sorted((ROOT / "recipes").glob("*.toml"))
BENCHMARKS = {
    "flowers": "flowers",
    "flowers-scratch": "flowers",
    "flowers-10-updates": "flowers-10-updates",
    "tiny-two-rounds": "tiny-imagenet-2-rounds",
    "tiny-rounds-seeds": "tiny-imagenet-16-rounds",
    "tiny-domain-pn": "tiny-imagenet-domain",
    "tiny-domain-ecm": "tiny-imagenet-domain",
    "tiny-domain-reverse-pn": "tiny-imagenet-domain-reverse",
    "tiny-domain-reverse-ecm": "tiny-imagenet-domain-reverse",
}

PRETRAINED = {"flowers": (0, 1, 2), "flowers-10-updates": (0, 1)}  # and their seeds


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_a_recipe_is_what_its_name_and_its_header_say(path: Path) -> None:
    recipe, text = load_recipe(path), path.read_text(encoding="utf-8")
    assert f"kedge bench reproduction/recipes/{path.name} --data DATA" in text
    head = next((h for h in ("ecm", "ridge") if path.stem.endswith(f"-{h}")), "prototype")
    head = "unit" if path.stem in PRETRAINED else head
    seeds = PRETRAINED.get(path.stem, (0, 1, 2) if "-seeds" in path.stem else (0,))
    for experiment in recipe.experiments(recipe.base()).values():
        assert experiment.protocol == BENCHMARKS.get(path.stem, "tiny-imagenet")
        assert experiment.head.head == head
        assert experiment.seeds == seeds
        if recipe.paper and "ways-shots" not in path.stem:
            assert {row.label for row in paper.table(recipe.paper).rows} <= set(experiment.methods)


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_every_replicate_of_a_recipe_has_its_settings(path: Path) -> None:
    """Classes, episodes, schedule, backbone and head; the methods may be fewer or more."""
    recipe = load_recipe(path)
    expected = recipe.experiments(recipe.base())
    folders = sorted((ROOT / "records").glob(f"{path.stem}*/"))
    replicates = [f for f in folders if f.name.split(".")[0] == path.stem]
    assert replicates
    for folder in replicates:
        records = RecordSet.load(folder)
        assert (records.name, records.paper) == (recipe.name, recipe.paper)
        assert list(records.parts) == list(expected)
        for part, record in records.parts.items():
            experiment = expected[part]
            assert record.config["protocol"] == experiment.protocol
            assert set(record.seeds) <= set(experiment.seeds)  # a replicate may have fewer
            assert record.config["schedule"]["epochs"] == experiment.schedule.epochs
            assert record.config["schedule"]["episodes"] == experiment.schedule.episodes
            assert record.config["episode"]["n_shot"] == experiment.episode.n_shot
