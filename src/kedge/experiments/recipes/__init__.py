"""Recipes: ready experiments, one TOML file each, the paper's tables among them.

A recipe has a `title`, the id of the paper's table that it repeats or mirrors (`paper`, if any),
settings of `Experiment` that all its parts share (`protocol` is required), and under
`[parts."NAME"]` the settings in which a part differs. A part's `data` is the name of a folder or
packed file inside --data.
"""

from __future__ import annotations

import functools
import re
import tomllib
from dataclasses import asdict, dataclass
from difflib import get_close_matches
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kedge.errors import KedgeError, require
from kedge.experiments import paper
from kedge.utils.config_io import check_depth, from_dict, option_name
from kedge.utils.regular_file import read_text

if TYPE_CHECKING:  # imports PyTorch, which listing recipes does not need
    from kedge.experiments.experiment import Experiment

Settings = dict[str, Any]
LONGEST_TEXT, MOST_DOTS = 1 << 20, 100  # characters of a file, and dots in a line of it


@dataclass(frozen=True)
class Recipe:
    name: str
    title: str  # one sentence
    paper: str | None  # id of a table
    settings: Settings  # of Experiment, nested as there
    parts: dict[str, Settings]
    file: str  # for messages

    def base(self) -> Experiment:
        """The settings that all parts share."""
        from kedge.experiments.experiment import Experiment

        return _patched(Experiment(), self.settings, self.file)

    def experiments(self, base: Experiment) -> dict[str, Experiment]:
        """The experiment of each part; a recipe without parts has one, named "".

        `base` is the recipe's own, or changed by a user's options.
        """
        if not self.parts:
            return {"": base}
        own, given = _flat(asdict(self.base())), _flat(asdict(base))
        set_by_all = set.intersection(*(set(_flat(patch)) for patch in self.parts.values()))
        for key in sorted(set_by_all - {"data"}):
            if given.get(key) != own.get(key):
                option = option_name(key.rpartition(".")[2])
                raise KedgeError(
                    f"{option}: each part of {self.file} sets its own; run a copy that you change "
                    f"('kedge recipes {self.name}' prints the recipe)."
                )
        return {
            part: _patched(base, self._with_data(patch, base.data), f"{self.file}, part '{part}'")
            for part, patch in self.parts.items()
        }

    @property
    def data_names(self) -> tuple[str, ...]:
        """Names that the folder --data must contain; empty if it is the data itself."""
        return tuple(dict.fromkeys(p["data"] for p in self.parts.values() if "data" in p))

    def _with_data(self, patch: Settings, folder: str | None) -> Settings:
        if "data" not in patch:
            return patch
        if folder is None:
            raise KedgeError(
                f"--data: the recipe {self.name} needs a folder that holds "
                f"{', '.join(self.data_names)}: each a folder of class folders, or a packed image "
                "file with that name and any ending."
            )
        path = Path(folder) / patch["data"]
        packed = [] if path.exists() else sorted(path.parent.glob(f"{path.name}.*"))
        return {**patch, "data": str(packed[0] if packed else path)}


def recipe_names() -> tuple[str, ...]:
    """Names of the recipes that come with kedge."""
    return tuple(_included())


def text(name: str | Path) -> str:
    """The text of a recipe's file, with its comments."""
    if str(name) in _included():
        return _included()[str(name)]
    path = Path(name)
    if path.suffix != ".toml":
        from kedge.benchmarks import PROTOCOLS

        own = path.with_suffix(".toml") if path.name else path
        known = [*_included(), *PROTOCOLS]
        close = [str(own)] if own.is_file() else get_close_matches(str(name), known)
        hint = f"did you mean {' or '.join(close)}?" if close else "'kedge recipes' lists them."
        raise KedgeError(f"There is no recipe and no protocol '{name}'; {hint}")
    try:
        return read_text(path)
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8"
        raise KedgeError(f"{path}: cannot be read as a recipe ({reason}).") from None


def load_recipe(name: str | Path) -> Recipe:
    """A recipe by its name, by the path of its file, or made from the name of a protocol."""
    if str(name) in _included():
        return _read(str(name), f"recipe {name}", text(name))
    from kedge.benchmarks import PROTOCOLS

    if str(name) in PROTOCOLS:
        settings = {"protocol": str(name)}
        return Recipe(str(name), str(name), None, settings, {}, f"protocol {name}")
    return _read(Path(name).stem, str(name), text(name))


@functools.cache
def _included() -> dict[str, str]:
    """Texts of the recipes that come with kedge, by name."""
    files = resources.files("kedge.experiments.recipes").iterdir()
    texts = {f.name: f.read_text("utf-8") for f in files if f.name.endswith(".toml")}
    return {name.removesuffix(".toml"): texts[name] for name in sorted(texts)}


def _read(name: str, file: str, text: str) -> Recipe:
    try:
        # Python's parser takes quadratic memory for a key of many parts, such as a.a.a.a.
        if len(text) > LONGEST_TEXT or any(
            line.count(".") > MOST_DOTS for line in text.split("\n")
        ):
            raise ValueError("it is too long, or has a line of too many dots")
        settings = tomllib.loads(text)
        check_depth(settings)
    except (ValueError, RecursionError) as error:
        raise KedgeError(f"{file}: not written in TOML ({error}).") from None
    title, table = settings.pop("title", None), settings.pop("paper", None)
    parts, known = settings.pop("parts", {}), paper.tables()
    tables = isinstance(parts, dict) and all(isinstance(part, dict) for part in parts.values())
    names = (
        [re.sub(r"[^a-z0-9]+", "-", part.lower()).strip("-") for part in parts] if tables else []
    )
    for holds, sentence in (
        (isinstance(title, str) and title, "title must be one sentence"),
        (table is None or table in list(known), f"paper must be one of {', '.join(known)}"),
        (tables, 'parts must be tables of settings, such as [parts."1-shot"]'),
        (
            all(names) and len(set(names)) == len(names),
            "parts must have names that differ in more than capitals and signs, with a Latin "
            "letter or digit",
        ),
    ):
        require(bool(holds), f"{file}: {sentence}.")
    recipe = Recipe(name, title, table, settings, parts, file)
    base = recipe.base()
    for part, patch in parts.items():
        where = f"{file}, part '{part}'"
        is_name = isinstance(patch.get("data", ""), str)
        require(is_name, f"{where}: data must be the name of a folder or file.")
        _patched(base, patch, where)
    # A default exists, but it is for the command: a file without a protocol is a mistake.
    named = "protocol" in settings or (bool(parts) and all("protocol" in p for p in parts.values()))
    require(named, f'{file}: protocol must be named, such as protocol = "drawings".')
    return recipe


def _patched(base: Experiment, patch: Settings, file: str) -> Experiment:
    from kedge.experiments.experiment import Experiment

    def build(changes: Settings) -> Experiment:
        return from_dict(Experiment, _merged(asdict(base), changes))

    try:
        return build(patch)
    except KedgeError as error:
        message = str(error)
    for key, value in _flat(patch).items():
        try:
            build(functools.reduce(lambda inner, part: {part: inner}, key.split(".")[::-1], value))
        except KedgeError as error:
            if str(error) == message:  # the key that is wrong on its own
                raise KedgeError(f"{file}: {key}: {message}") from None
    raise KedgeError(f"{file}: {message}")


def _merged(settings: Settings, patch: Settings) -> Settings:
    """Settings with those of the patch; nested tables are merged."""
    out = dict(settings)
    for key, value in patch.items():
        nested = isinstance(value, dict) and isinstance(out.get(key), dict)
        out[key] = _merged(out[key], value) if nested else value
    return out


def _flat(settings: Settings) -> Settings:
    """Each single setting by its dotted name: {"episode.n_way": 5}."""
    flat: Settings = {}
    for key, value in settings.items():
        inner = _flat(value) if isinstance(value, dict) else {}
        flat |= {f"{key}.{name}": each for name, each in inner.items()} or {key: value}
    return flat
