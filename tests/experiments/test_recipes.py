"""The ready experiments: whole, runnable, and those of the paper."""

import functools
import re
import tomllib
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from fnmatch import fnmatch
from pathlib import Path

import pytest
import torch

import kedge.experiments.recipes
from kedge.benchmarks import PROTOCOLS, protocol
from kedge.benchmarks.imagenet import imagenet_domains
from kedge.config import (
    SHORT,
    EpisodeShape,
    Schedule,
)
from kedge.data.table import ImageTable
from kedge.errors import KedgeError
from kedge.experiments import paper
from kedge.experiments.experiment import Experiment, check
from kedge.experiments.recipes import (
    Recipe,
    load_recipe,
    recipe_names,
    text,
)

NAMES = recipe_names()
TABLES = paper.tables()
SETTING = paper.setting()
DATASETS = {
    "miniImageNet": ("mini-imagenet", "drawings-random"),
    "tieredImageNet": ("tiered-imagenet", "drawings-many"),
    "DomainImageNet": ("domain-imagenet", "drawings"),
}
EXPECTED = {  # table → protocol, and that of its twin
    **{name: DATASETS["miniImageNet"] for name in TABLES if name.startswith("mini")},
    **{name: DATASETS["DomainImageNet"] for name in TABLES if name.startswith("domain")},
    **{
        name: ("domain-imagenet-reverse", "drawings-reverse")
        for name in TABLES
        if name.startswith("domain-reverse")
    },
    "tiered-pn": DATASETS["tieredImageNet"],
    "two-rounds": ("mini-imagenet-2-rounds", "drawings-2-rounds"),
    "ways-shots-pn": DATASETS["miniImageNet"],
    "ways-shots-ecm": DATASETS["miniImageNet"],
}
included = functools.cache(load_recipe)


def experiments(recipe: Recipe) -> dict[str, Experiment]:
    """Of a user who has said where the images are, if that has to be said."""
    base = recipe.base()
    needs = recipe.data_names or protocol(base.protocol).needs_data
    return recipe.experiments(replace(base, data="images") if needs else base)


def both(name: str) -> list[Recipe]:
    return [included(name), included(f"drawings-{name}")]


# ── every recipe ─────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("name", NAMES)
def test_every_recipe_is_whole_and_says_how_it_is_launched(name: str) -> None:
    recipe, header = included(name), text(name).split("\ntitle", 1)[0]
    assert recipe.name == name
    assert recipe.title.endswith(".")
    found = experiments(recipe)
    assert list(found) == (list(recipe.parts) or [""])
    assert len({repr(each) for each in found.values()}) == len(found), "two parts are the same"
    needs = {protocol(each.protocol).needs_data for each in found.values()}
    assert needs == {not name.startswith("drawings-")}
    launched = f"#   kedge bench {name}"
    if needs == {True}:
        launched += f" --data {'FOLDER' if recipe.data_names or name == 'omniglot' else 'DATA'}"
    assert launched in header.splitlines()
    assert "# Results: " in header
    assert all(line.startswith("#") for line in header.strip().splitlines())
    assert max(map(len, text(name).splitlines())) <= 100


def test_headers_count_the_rounds_that_are_trained() -> None:
    updates = {
        "drawings-4-rounds": 4,
        "drawings-2-rounds": 2,
        "mini-imagenet-2-rounds": 2,
    }
    for name in NAMES:
        rounds: Counter[str] = Counter()
        for each in experiments(included(name)).values():
            trained = sum(method != "NU" for method in each.methods)
            length = f"{each.schedule.epochs} epochs of {each.schedule.episodes} episodes"
            rounds[length] += len(each.seeds) * (1 + updates.get(each.protocol, 1) * trained)
        header = " ".join(text(name).split())
        for length, n in rounds.items():
            assert f"{length} in each of the {n} rounds that are trained" in header


OF_A_PROTOCOL = {"omniglot"}  # recipes that stand before the protocol of the same name


def test_a_recipe_that_has_the_name_of_a_protocol_is_on_that_protocol() -> None:
    assert set(NAMES) & set(PROTOCOLS) == OF_A_PROTOCOL
    for name in OF_A_PROTOCOL:
        recipe = load_recipe(name)
        assert recipe.file == f"recipe {name}"
        assert [each.protocol for each in experiments(recipe).values()] == [name]


def test_omniglot_has_enough_images_for_its_episodes(imagenet: None) -> None:
    """Of 20 images 10 are held out: too few for the 15 queries of other recipes."""
    (experiment,) = experiments(included("omniglot")).values()
    assert experiment.episode == EpisodeShape(n_way=5, n_shot=5, n_query=5)
    assert experiment.schedule == SHORT
    assert (experiment.backbone.backbone, experiment.backbone.width) == ("conv4", 32)
    check(experiment)
    bare = Experiment("omniglot", data="images")
    with pytest.raises(KedgeError, match="20"):
        check(bare)
    kept = replace(experiment, methods=("EIML exemplars=10",))
    check(kept)


def test_every_recipe_is_on_the_paper_s_schedule_or_takes_minutes() -> None:
    full = Schedule(SETTING.epochs, SETTING.episodes_per_epoch, 400, SETTING.lr, SETTING.patience)
    for name in set(NAMES) - OF_A_PROTOCOL:
        for each in experiments(included(name)).values():
            assert each.episode.n_query == SETTING.n_query
            assert each.head.temperature == SETTING.temperature
            if name.startswith("drawings-"):
                epochs = 20 if name == "drawings-lambda-sweep" else 6
                assert replace(each.schedule, tasks="uniform") == Schedule(epochs, 100, 200)
                assert (each.backbone.backbone, each.backbone.width) == ("conv4", 32)
                assert each.eval_episodes in (1000, 2000)
            else:
                assert each.schedule == full
                assert each.eval_episodes == SETTING.evaluation_episodes
                backbone = "conv4" if "ways-shots" in name else "resnet12"
                assert (each.backbone.backbone, each.backbone.width) == (backbone, 64)


@functools.cache
def ilsvrc() -> ImageTable:
    """All classes of ILSVRC, 40 tiny images each."""
    classes = [name for part in imagenet_domains().values() for name in part]
    labels = torch.arange(len(classes)).repeat_interleave(40)
    return ImageTable.build(torch.zeros(len(labels), 1, 16, 16, dtype=torch.uint8), labels, classes)


@functools.cache
def characters() -> ImageTable:
    """As many as Omniglot has, 20 images each, in its two parts."""
    labels = torch.arange(964 + 659).repeat_interleave(20)
    table = ImageTable.build(
        torch.zeros(len(labels), 1, 16, 16, dtype=torch.uint8),
        labels,
        [f"character {i:04}" for i in range(964 + 659)],
    )
    return replace(table, parts=("train", "test"), part=(labels >= 964).to(torch.uint8))


@pytest.fixture
def imagenet(monkeypatch: pytest.MonkeyPatch) -> None:
    """Images in place of those that would be on disk."""

    def load(data: str | None) -> ImageTable:
        return ilsvrc()

    def load_characters(data: str | None) -> ImageTable:
        return characters()

    for name, each in PROTOCOLS.items():
        if each.needs_data:
            own = load_characters if name == "omniglot" else load
            monkeypatch.setitem(PROTOCOLS, name, replace(each, load=own))


def test_every_recipe_has_the_classes_and_images_that_it_needs(imagenet: None) -> None:
    """Many have the same, which is checked once."""
    found = [e for name in NAMES for e in experiments(included(name)).values()]
    shapes = {(e.protocol, e.episode, e.update_episode, e.test_shapes): e for e in found}
    models = {(e.head, e.backbone): e for e in found}
    for each in {*shapes.values(), *models.values()}:
        check(each)


def test_the_files_travel_with_the_package() -> None:
    source = Path(kedge.experiments.recipes.__file__).parents[1]
    pyproject = source.parents[1] / "pyproject.toml"
    if not pyproject.exists():
        pytest.skip("kedge is not installed from its sources")
    tools = tomllib.loads(pyproject.read_text(encoding="utf-8"))["tool"]
    patterns = tools["setuptools"]["package-data"]["kedge"]
    for folder in ("recipes", "protocols"):
        files = [file for file in (source / folder).iterdir() if file.suffix in (".toml", ".json")]
        assert files
        for file in files:
            assert any(fnmatch(str(file.relative_to(source)), pattern) for pattern in patterns)


# ── the paper's tables ───────────────────────────────────────────────────────────────────────


def test_every_table_has_a_recipe_and_a_twin_and_they_name_it() -> None:
    for name in TABLES:
        assert {name, f"drawings-{name}"} <= set(NAMES)
        assert [recipe.paper for recipe in both(name)] == [name, name]
    told = {name for name in NAMES if included(name).paper}
    assert told == {*TABLES, *(f"drawings-{name}" for name in TABLES)}


@pytest.mark.parametrize("name", TABLES)
def test_the_head_is_that_of_the_table(name: str) -> None:
    for recipe in both(name):
        assert {each.head.head for each in experiments(recipe).values()} == {TABLES[name].head}


@pytest.mark.parametrize("name", sorted(set(EXPECTED) - {"ways-shots-pn", "ways-shots-ecm"}))
def test_methods_and_parts_are_the_rows_and_column_groups(name: str) -> None:
    table = TABLES[name]
    shots = {column.group: column.n_shot for column in table.columns}
    if len(set(shots.values())) == 1:  # one group, or two rounds of one experiment
        shots = {"": next(iter(shots.values()))}
    for recipe, expected in zip(both(name), EXPECTED[name], strict=True):
        found = experiments(recipe)
        assert {part: each.episode.n_shot for part, each in found.items()} == shots
        for each in found.values():
            assert each.methods == tuple(row.label for row in table.rows)
            assert each.episode.n_way == SETTING.n_way
            assert each.protocol == expected
            assert each.test_shapes == (each.episode,)


@pytest.mark.parametrize("name", sorted(set(EXPECTED) - {"ways-shots-pn", "ways-shots-ecm"}))
def test_the_real_ones_have_as_many_classes_as_the_table(name: str, imagenet: None) -> None:
    experiment = next(iter(experiments(included(name)).values()))
    bench = protocol(experiment.protocol).benchmark(0, "images")
    of_round = {"round I": 1, "round II": 2}
    for column in TABLES[name].columns:
        pools = {p.name: p for p in bench.test_pools(of_round.get(column.group, 1))}
        assert len(pools[column.pool].classes) == column.n_classes, column.key


def test_eiml_beside_ida_has_a_part_for_each_data_set_and_group() -> None:
    table = TABLES["eiml-vs-ida"]
    groups = {column.group: column.n_shot for column in table.columns}
    real, twin = map(experiments, both("eiml-vs-ida"))
    assert list(real) == [f"{data} {group}" for data in table.datasets for group in groups]
    assert len(twin) == len(real)
    for (part, ours), (twin_part, its_twin) in zip(real.items(), twin.items(), strict=True):
        data, group = part.rsplit(" ", 1)
        assert (ours.protocol, its_twin.protocol) == DATASETS[data]
        assert twin_part == f"{its_twin.protocol} {group}"
        for each in (ours, its_twin):
            labels = tuple(row.label for row in table.rows if row.dataset == data)
            assert each.methods == labels
            assert each.episode.n_shot == groups[group]


@pytest.mark.parametrize("name", ["ways-shots-pn", "ways-shots-ecm"])
def test_the_sweep_of_shapes_has_a_part_for_each_row_and_a_test_for_each_column(name: str) -> None:
    table = TABLES[name]
    rows = [row.label for row in table.rows if row.label != "range"]
    columns = [(column.n_shot, column.n_way) for column in table.columns]
    for recipe, expected in zip(both(name), EXPECTED[name], strict=True):
        found = experiments(recipe)
        assert list(found) == rows
        for part, each in found.items():
            assert part == f"{each.episode.n_shot}-shot {each.episode.n_way}-way"
            assert [(shape.n_shot, shape.n_way) for shape in each.test_shapes] == columns
            assert each.methods == ("NU",)
            assert each.protocol == expected


def test_the_sweeps_have_the_paper_s_values() -> None:
    weights = ("NU", "FT", *(f"IDA lambda={value:g}" for value in SETTING.lam_values))
    for recipe in both("lambda-sweep"):
        assert recipe.base().methods == weights
    real, twin = both("exemplar-sweep")
    kept = [f"EIML exemplars={value}" for value in SETTING.exemplar_values]
    assert real.base().methods == (*kept, "IDA")
    assert twin.base().methods == (*kept[:3], "IDA")
    assert "70 training drawings" in text(twin.name)
    for recipe in (*both("lambda-sweep"), real, twin):
        (experiment,) = experiments(recipe).values()
        assert (experiment.episode.n_way, experiment.episode.n_shot) == (5, 5)
    for recipe in (both("lambda-sweep")[0], real, twin):
        (experiment,) = experiments(recipe).values()
        assert experiment.protocol == DATASETS["miniImageNet"][recipe.name.startswith("drawings")]


# ── where the images of the parts are ────────────────────────────────────────────────────────


def test_each_part_has_its_images_within_the_folder_that_is_given(tmp_path: Path) -> None:
    recipe = load_recipe("eiml-vs-ida")
    assert recipe.data_names == ("mini-imagenet", "tiered-imagenet", "imagenet")
    (tmp_path / "mini-imagenet").mkdir()
    (tmp_path / "mini-imagenet.txt").touch()
    (tmp_path / "tiered-imagenet.safetensors").touch()
    found = recipe.experiments(replace(recipe.base(), data=str(tmp_path)))
    places = [each.data for each in found.values()]
    names = ["mini-imagenet", "tiered-imagenet.safetensors", "imagenet"]
    assert places == [str(tmp_path / name) for name in names for _ in range(2)]


def test_a_folder_for_all_parts_is_asked_for_by_what_is_in_it() -> None:
    recipe = load_recipe("eiml-vs-ida")
    with pytest.raises(KedgeError, match=r"--data: .*holds mini-imagenet, tiered-imagenet, image"):
        recipe.experiments(recipe.base())


# ── files of one's own ───────────────────────────────────────────────────────────────────────

Write = Callable[[str], Path]


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


def test_parts_are_merged_deeply_onto_what_a_user_has_changed(write: Write) -> None:
    recipe = load_recipe(write(OWN))
    assert (recipe.name, recipe.title, recipe.paper) == ("mine", "Mine.", None)
    base = recipe.base()
    plain = Experiment()
    assert base == replace(
        plain,
        methods=("FT", "IDA lambda=2"),
        seeds=(1, 2),
        update_shots=(1, 3),
        episode=replace(plain.episode, n_way=(3, 6)),
    )
    changed = replace(base, seeds=(7,), schedule=replace(base.schedule, episodes=3, epochs=9))
    quick, other = recipe.experiments(changed).values()
    assert quick == replace(changed, schedule=replace(changed.schedule, epochs=1))
    assert other == replace(changed, protocol="drawings-random")


def test_what_every_part_sets_cannot_be_changed_for_all_of_them() -> None:
    recipe = load_recipe("drawings-mini-ecm")
    base = recipe.base()
    changed = replace(base, episode=replace(base.episode, n_shot=3))
    with pytest.raises(KedgeError, match=r"^--n-shot: each part of the recipe drawings-mini-ecm"):
        recipe.experiments(changed)


def test_a_recipe_of_ones_own_is_not_to_be_printed_but_changed(write: Write) -> None:
    """Its name is that of a file, which 'kedge recipes' does not know."""
    path = write(text("drawings-mini-ecm"))
    recipe = load_recipe(path)
    base = recipe.base()
    with pytest.raises(KedgeError) as caught:
        recipe.experiments(replace(base, episode=replace(base.episode, n_shot=3)))
    assert str(caught.value) == f"--n-shot: each part of {path} sets its own; change it there."


@pytest.mark.parametrize("names", [("A", "a"), ("1 way", "1-way"), ("!",), ("..", "x")])
def test_parts_that_would_share_a_folder_or_have_none_are_refused(
    write: Write, names: tuple[str, ...]
) -> None:
    parts = "".join(f'[parts."{name}"]\nseeds = [{i}]\n' for i, name in enumerate(names))
    with pytest.raises(KedgeError, match="parts must have names that differ"):
        load_recipe(write(f'title = "x."\n{parts}'))


def test_a_copied_recipe_is_the_same_recipe(write: Write) -> None:
    for name in ("drawings-mini-pn", "drawings-any-shape"):
        recipe, copy = load_recipe(name), load_recipe(write(text(name)))
        assert (copy.name, recipe.name) == ("mine", name)
        assert experiments(copy) == experiments(recipe)


def test_a_recipe_without_parts_is_one_experiment() -> None:
    recipe = load_recipe("drawings-two-rounds")
    assert recipe.experiments(recipe.base()) == {"": recipe.base()}


def test_a_protocol_is_a_recipe_that_says_nothing_else() -> None:
    for name in set(PROTOCOLS) - OF_A_PROTOCOL:
        recipe = load_recipe(name)
        assert (recipe.name, recipe.settings, recipe.parts) == (name, {"protocol": name}, {})
        assert recipe.title == name
        assert recipe.base() == Experiment(name)


BAD = {
    'title = "x': r"not written in TOML \(Unterminated string",
    "title =\nx": r"not written in TOML \(.*line 1",
    "methods = ['FT']": "title must be one sentence",
    "seeds = [1]": 'protocol must be named, such as protocol = "drawings"',
    "[parts.one]\nprotocol = 'drawings'\n[parts.two]\nseeds = [1]": "protocol must be named",
    "title = 3": "title must be one sentence",
    "paper = 'mini'": "paper must be one of mini-pn, ",
    "parts = 3": "parts must be tables",
    "[parts]\na = 3": "parts must be tables",
    "epochs = 3": "epochs: Experiment has no setting named epochs",
    "[episode]\nn_ways = 3": r"episode\.n_ways: EpisodeShape has no setting named n_ways",
    "[episode]\nn_way = 'many'": r"episode\.n_way: 'many' must be of type int or",
    "[episode]\nn_way = 1": r"episode\.n_way: --n-way is 1",
    "methods = ['FT', 'XYZ']": "methods: There is no method 'XYZ'",
    "methods = ['EIML images=3']": "methods: .*knows the options",
    "protocol = 'nowhere'": "protocol: There is no protocol 'nowhere'",
    "episode = 5": "episode: EpisodeShape must be written as names and values",
    "[parts.one]\nseed = 3": r", part 'one': seed: Experiment has no setting named seed",
    "[parts.one.schedule]\nepochs = 0": r", part 'one': schedule\.epochs: --epochs is 0:",
    "[parts.one]\ndata = 3": r", part 'one': data must be the name",
    "[parts.one]\ntitle = 'y'": r", part 'one': title: Experiment has no setting named title",
}


@pytest.mark.parametrize("content", BAD)
def test_mistakes_name_the_file_and_the_key_in_one_sentence(content: str, write: Write) -> None:
    titled = content if "title =" in content[:8] or "['FT']" in content else 'title="x"\n' + content
    path = write(titled)
    with pytest.raises(KedgeError, match=BAD[content]) as caught:
        load_recipe(path)
    said = str(caught.value)
    assert said.startswith(str(path))
    assert said.endswith(".")
    assert "\n" not in said


def test_what_is_no_recipe_is_refused(tmp_path: Path) -> None:
    (tmp_path / "mine.toml").touch()
    for near in ("mine", "mine.tml"):
        with pytest.raises(KedgeError, match=r"; did you mean .*mine\.toml\?"):
            load_recipe(tmp_path / near)
    with pytest.raises(KedgeError, match=r"no protocol 'mini-np'; did you mean mini-pn"):
        load_recipe("mini-np")
    with pytest.raises(KedgeError, match=r"no protocol 'qqq'; 'kedge recipes' lists them\."):
        load_recipe("qqq")
    gone = tmp_path / "gone.toml"
    with pytest.raises(KedgeError, match=rf"^{re.escape(str(gone))}: .*No such file"):
        load_recipe(gone)
    gone.write_bytes(b"title = '\xff'")
    with pytest.raises(KedgeError, match="not UTF-8"):
        load_recipe(gone)
