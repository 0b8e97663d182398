"""Recipes: complete, runnable, and those of the paper; and files of users' own."""

from __future__ import annotations

import functools
import tomllib
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from fnmatch import fnmatch
from pathlib import Path

import pytest
import torch

import kedge
from kedge.benchmarks import PROTOCOLS, get_protocol
from kedge.benchmarks.class_lists import load_class_lists
from kedge.config import Schedule
from kedge.data.table import ImageTable
from kedge.errors import KedgeError
from kedge.experiments import paper
from kedge.experiments.experiment import Experiment, check_experiment
from kedge.experiments.recipes import Recipe, load_recipe, recipe_names, text

NAMES = recipe_names()
TABLES = paper.tables()
SETTING = paper.setting()
DATASETS = {
    "miniImageNet": ("mini-imagenet", "drawings-random"),
    "tieredImageNet": ("tiered-imagenet", "drawings-many"),
    "DomainImageNet": ("domain-imagenet", "drawings"),
}
DRAFT = ("NU", "FT", "DFA", "IDA", "PAR")  # rows of tiered-ecm, of which the draft fills two
SWEEPS = ("ways-shots-pn", "ways-shots-ecm")
ALSO_PROTOCOLS = {"omniglot"}  # recipes that have the name of a protocol
Write = Callable[[str], Path]
included = functools.cache(load_recipe)


def protocols_of(table: str) -> tuple[str, str]:
    """The protocol of a table's recipe, and of its twin on the drawings."""
    if table.startswith("domain-reverse"):
        return "domain-imagenet-reverse", "drawings-reverse"
    if table == "two-rounds":
        return "mini-imagenet-2-rounds", "drawings-2-rounds"
    datasets = {"domain": "DomainImageNet", "tiered": "tieredImageNet"}
    return DATASETS[datasets.get(table.split("-")[0], "miniImageNet")]


def experiments(recipe: Recipe) -> dict[str, Experiment]:
    """The experiments of a recipe, with --data where that is needed."""
    base = recipe.base()
    needs = recipe.data_names or get_protocol(base.protocol).required_data
    return recipe.experiments(replace(base, data="images") if needs else base)


def both(name: str) -> list[Recipe]:
    return [included(name), included(f"drawings-{name}")]


# ── every recipe ─────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("name", NAMES)
def test_recipe_is_complete_and_says_how_it_is_run(name: str) -> None:
    recipe, header = included(name), text(name).split("\ntitle", 1)[0]
    assert recipe.name == name
    assert recipe.title.endswith(".")
    found = experiments(recipe)
    assert list(found) == (list(recipe.parts) or [""])
    assert len({repr(each) for each in found.values()}) == len(found), "two parts are the same"
    needs = {bool(get_protocol(each.protocol).required_data) for each in found.values()}
    assert needs == {not name.startswith("drawings-")}
    command = f"#   kedge bench {name}"
    if needs == {True}:
        command += f" --data {'FOLDER' if recipe.data_names or name == 'omniglot' else 'DATA'}"
    assert command in header.splitlines()
    assert "# Results: " in header
    assert all(line.startswith("#") for line in header.strip().splitlines())
    assert max(map(len, text(name).splitlines())) <= 100
    updates = {"drawings-4-rounds": 4, "drawings-2-rounds": 2, "mini-imagenet-2-rounds": 2}
    rounds: Counter[str] = Counter()
    for each in found.values():
        trained = sum(method != "NU" for method in each.methods)
        length = f"{each.schedule.epochs} epochs of {each.schedule.episodes} episodes"
        rounds[length] += len(each.seeds) * (1 + updates.get(each.protocol, 1) * trained)
    words = " ".join(header.replace("\n#", " ").split())
    for length, n in rounds.items():
        assert f"{length} in each of the {n} rounds that are trained" in words


def test_schedules_are_the_papers_or_take_minutes() -> None:
    full = Schedule(SETTING.epochs, SETTING.episodes_per_epoch, 400, SETTING.lr, SETTING.patience)
    for name in set(NAMES) - ALSO_PROTOCOLS:
        for each in experiments(included(name)).values():
            assert each.episode.n_query == SETTING.n_query
            assert each.head.temperature == SETTING.temperature
            network = (each.backbone.backbone, each.backbone.width)
            if name.startswith("drawings-"):
                epochs = 20 if name == "drawings-lambda-sweep" else 6
                assert replace(each.schedule, sampling="uniform") == Schedule(epochs, 100, 200)
                assert network == ("conv4", 32)
                assert each.eval_episodes in (1000, 2000)
            else:
                assert each.schedule == full
                assert each.eval_episodes == SETTING.evaluation_episodes
                assert network == ("conv4" if name in SWEEPS else "resnet12", 64)


@functools.cache
def ilsvrc() -> ImageTable:
    """All classes of ILSVRC, 40 tiny images each."""
    classes = [name for part in load_class_lists("ImageNet").values() for name in part]
    labels = torch.arange(len(classes)).repeat_interleave(40)
    return ImageTable.build(torch.zeros(len(labels), 1, 16, 16, dtype=torch.uint8), labels, classes)


@functools.cache
def characters() -> ImageTable:
    """As many classes as Omniglot has, 20 images each, in its two parts."""
    labels = torch.arange(964 + 659).repeat_interleave(20)
    pixels = torch.zeros(len(labels), 1, 16, 16, dtype=torch.uint8)
    table = ImageTable.build(pixels, labels, [f"character {i:04}" for i in range(964 + 659)])
    return replace(table, parts=("train", "test"), part=(labels >= 964).to(torch.uint8))


@pytest.fixture
def imagenet(monkeypatch: pytest.MonkeyPatch) -> None:
    """Images in place of those that would be on disk."""
    for name, each in PROTOCOLS.items():
        if each.required_data:
            table = characters if name == "omniglot" else ilsvrc
            load = functools.partial(lambda table, data: table(), table)
            monkeypatch.setitem(PROTOCOLS, name, replace(each, load=load))


@pytest.mark.usefixtures("imagenet")
def test_recipes_have_the_classes_and_images_that_they_need() -> None:
    found = [e for name in NAMES for e in experiments(included(name)).values()]
    shapes = {(e.protocol, e.episode, e.update_episode, e.test_shapes): e for e in found}
    models = {(e.head, e.backbone): e for e in found}
    for each in {*shapes.values(), *models.values()}:
        check_experiment(each)


def test_files_are_in_the_package() -> None:
    source = Path(kedge.__file__).parent
    pyproject = source.parents[1] / "pyproject.toml"
    if not pyproject.exists():
        pytest.skip("kedge is not installed from its sources")
    tools = tomllib.loads(pyproject.read_text(encoding="utf-8"))["tool"]
    patterns = tools["setuptools"]["package-data"]["kedge"]
    files = [file for kind in ("toml", "json", "jinja") for file in source.rglob(f"*.{kind}")]
    assert len(files) > len(NAMES)
    for file in files:
        assert any(fnmatch(str(file.relative_to(source)), pattern) for pattern in patterns), file


# ── the paper's tables ───────────────────────────────────────────────────────────────────────


def test_every_table_has_a_recipe_and_a_twin() -> None:
    twins = {f"drawings-{name}" for name in TABLES}
    assert {name for name in NAMES if included(name).paper} == {*TABLES, *twins}
    for name, table in TABLES.items():
        for recipe in both(name):
            assert recipe.paper == name
            assert {each.head.head for each in experiments(recipe).values()} == {table.head}


@pytest.mark.usefixtures("imagenet")
@pytest.mark.parametrize("name", sorted(set(TABLES) - {*SWEEPS, "eiml-vs-ida"}))
def test_methods_parts_and_classes_are_those_of_the_table(name: str) -> None:
    table = TABLES[name]
    shots = {column.group: column.n_shot for column in table.columns}
    if len(set(shots.values())) == 1:  # one group, or two rounds of one experiment
        shots = {"": next(iter(shots.values()))}
    for recipe, protocol in zip(both(name), protocols_of(name), strict=True):
        found = experiments(recipe)
        assert {part: each.episode.n_shot for part, each in found.items()} == shots
        for each in found.values():
            printed = tuple(row.label for row in table.rows)
            assert each.methods == (DRAFT if name == "tiered-ecm" else printed)
            assert each.episode.n_way == SETTING.n_way
            assert each.protocol == protocol
            assert each.test_shapes == (each.episode,)
    benchmark = get_protocol(protocols_of(name)[0]).benchmark(0, "images")
    for column in table.columns:
        pools = benchmark.test_pools(2 if column.group == "round II" else 1)
        sizes = {pool.name: len(pool.classes) for pool in pools}
        assert sizes[column.pool] == column.n_classes, column.key


@pytest.mark.parametrize("name", SWEEPS)
def test_sweep_of_shapes_has_a_part_for_each_row_and_a_test_for_each_column(name: str) -> None:
    rows = [row.label for row in TABLES[name].rows if row.label != "range"]
    columns = [(column.n_shot, column.n_way) for column in TABLES[name].columns]
    for recipe, protocol in zip(both(name), protocols_of(name), strict=True):
        found = experiments(recipe)
        assert list(found) == rows
        for part, each in found.items():
            assert part == f"{each.episode.n_shot}-shot {each.episode.n_way}-way"
            assert [(shape.n_shot, shape.n_way) for shape in each.test_shapes] == columns
            assert (each.methods, each.protocol) == (("NU",), protocol)


def test_sweeps_have_the_papers_values() -> None:
    weights = ("NU", "FT", *(f"IDA lambda={value:g}" for value in SETTING.lam_values))
    for recipe in both("lambda-sweep"):
        assert recipe.base().methods == weights
    real, twin = both("exemplar-sweep")
    kept = [f"EIML exemplars={value}" for value in SETTING.exemplar_values]
    assert real.base().methods == (*kept, "IDA")
    assert twin.base().methods == (*kept[:3], "IDA")  # a drawing has 70 training images
    for recipe in (*both("lambda-sweep"), real, twin):
        (experiment,) = experiments(recipe).values()
        assert (experiment.episode.n_way, experiment.episode.n_shot) == (5, 5)


def test_data_of_each_part_is_inside_the_given_folder(tmp_path: Path) -> None:
    recipe = load_recipe("eiml-vs-ida")
    assert recipe.data_names == ("mini-imagenet", "tiered-imagenet", "imagenet")
    (tmp_path / "mini-imagenet").mkdir()
    (tmp_path / "mini-imagenet.txt").touch()
    (tmp_path / "tiered-imagenet.safetensors").touch()
    found = recipe.experiments(replace(recipe.base(), data=str(tmp_path)))
    names = ["mini-imagenet", "tiered-imagenet.safetensors", "imagenet"]
    expected = [str(tmp_path / name) for name in names for _ in range(2)]
    assert [each.data for each in found.values()] == expected
    with pytest.raises(KedgeError, match=r"--data: .*mini-imagenet, tiered-imagenet, imagenet"):
        recipe.experiments(recipe.base())


# ── a user's own files ───────────────────────────────────────────────────────────────────────


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def writing(content: str) -> Path:
        path = tmp_path / "mine.toml"
        path.write_text(content, encoding="utf-8")
        return path

    return writing


OWN = """
title = "Mine."
protocol = "drawings"
methods = ["ft", "IDA  lambda=2.0"]
seeds = [1, 2]
update_shots = [1, 3]

[episode]
n_way = [3, 6]

[parts.quick.schedule]
epochs = 1

[parts.other]
protocol = "drawings-random"
"""


def test_parts_change_single_settings_of_what_a_user_asks_for(write: Write) -> None:
    recipe = load_recipe(write(OWN))
    assert (recipe.name, recipe.title, recipe.paper) == ("mine", "Mine.", None)
    base = recipe.base()
    default = Experiment()
    assert base == replace(
        default,
        methods=("FT", "IDA lambda=2"),
        seeds=(1, 2),
        update_shots=(1, 3),
        episode=replace(default.episode, n_way=(3, 6)),
    )
    changed = replace(base, seeds=(7,), schedule=replace(base.schedule, episodes=3, epochs=9))
    quick, other = recipe.experiments(changed).values()
    assert quick == replace(changed, schedule=replace(changed.schedule, epochs=1))
    assert other == replace(changed, protocol="drawings-random")


def test_options_that_every_part_sets_cannot_be_overridden(write: Write) -> None:
    path = write(text("drawings-mini-ecm"))
    for name, place in (("drawings-mini-ecm", "kedge recipes"), (path, str(path))):
        recipe = load_recipe(name)
        base = recipe.base()
        with pytest.raises(KedgeError, match=rf"^--n-shot: .*{place}"):
            recipe.experiments(replace(base, episode=replace(base.episode, n_shot=3)))


@pytest.mark.parametrize(
    ("content", "word"),
    [
        ('title = "x', "TOML"),
        ("a." * 20_000 + "b = 1", "TOML .*dots"),  # Python's parser would take gigabytes
        ("methods = ['FT']", "title"),
        ("title = 'x'\nseeds = [1]", "protocol"),
        ("[parts.one]\nprotocol = 'drawings'\n[parts.two]\nseeds = [1]", "protocol"),
        ("paper = 'mini'", "paper must be one of mini-pn"),
        ("parts = 3", "parts"),
        ("[parts.A]\nseeds = [1]\n[parts.a]\nseeds = [2]", "parts"),
        ('[parts."!"]\nseeds = [1]', "parts"),
        ("epochs = 3", "epochs"),
        ("[episode]\nn_ways = 3", r"episode\.n_ways: "),
        ("[episode]\nn_way = 1", r"episode\.n_way: n_way is 1"),
        ("methods = ['EIML images=3']\nprotocol = 'drawings'", "methods: .*images"),
        ("protocol = 'nowhere'", "protocol: .*'nowhere'"),
        ("[parts.one.schedule]\nepochs = -1", r"part 'one': schedule\.epochs: epochs is -1"),
        ("[parts.one]\ndata = 3", "part 'one': data"),
    ],
)
def test_mistakes_name_the_file_and_the_key(content: str, word: str, write: Write) -> None:
    titled = content if "title" in content or "['FT']" in content else f'title = "x"\n{content}'
    path = write(titled)
    with pytest.raises(KedgeError, match=word) as caught:
        load_recipe(path)
    assert str(caught.value).startswith(str(path))
    assert "\n" not in str(caught.value)


def test_unknown_recipe_gets_a_hint(tmp_path: Path) -> None:
    (tmp_path / "mine.toml").touch()
    for near in ("mine", "mine.tml"):
        with pytest.raises(KedgeError, match=r"mine\.toml\?"):
            load_recipe(tmp_path / near)
    for name, hint in (("mini-np", "mini-pn"), ("qqq", "kedge recipes")):
        with pytest.raises(KedgeError, match=rf"'{name}'.*{hint}"):
            load_recipe(name)
    gone = tmp_path / "gone.toml"
    with pytest.raises(KedgeError, match=r"gone\.toml"):
        load_recipe(gone)
    gone.write_bytes(b"title = '\xff'")
    with pytest.raises(KedgeError, match="UTF-8"):
        load_recipe(gone)
