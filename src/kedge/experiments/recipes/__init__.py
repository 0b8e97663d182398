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
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from difflib import get_close_matches
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kedge.errors import KedgeError
from kedge.experiments import paper
from kedge.utils.config_io import from_dict
from kedge.utils.strict_json import check_depth

if TYPE_CHECKING:  # imports PyTorch, which listing recipes does not need
    from kedge.experiments.experiment import Experiment

Settings = dict[str, Any]


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
        self._reject_overridden(base)
        return {
            part: _patched(base, self._with_data(patch, base.data), f"{self.file}, part '{part}'")
            for part, patch in self.parts.items()
        }

    def _reject_overridden(self, base: Experiment) -> None:
        """Raise if a user changes an option that every part sets for itself."""
        own, given = asdict(self.base()), asdict(base)
        first, *others = ({key for key, _ in _leaves(patch)} for patch in self.parts.values())
        for key in sorted(first.intersection(*others) - {"data"}):
            if _at(given, key) != _at(own, key):
                option = key.rpartition(".")[2].replace("_", "-")
                if self.file.endswith(".toml"):  # a user's own file
                    raise KedgeError(
                        f"--{option}: each part of {self.file} sets its own; change it there."
                    )
                raise KedgeError(
                    f"--{option}: each part of the recipe {self.name} sets its own; print the "
                    f"recipe with 'kedge recipes {self.name}', change a copy and run that."
                )

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
        close = [str(own)] if own.is_file() else get_close_matches(str(name), known, n=3)
        hint = f"did you mean {' or '.join(close)}?" if close else "'kedge recipes' lists them."
        raise KedgeError(f"There is no recipe and no protocol '{name}'; {hint}")
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8"
        raise KedgeError(f"{path}: cannot be read as a recipe ({reason}).") from None


def load_recipe(name: str | Path) -> Recipe:
    """A recipe by its name, by the path of its file, or made from the name of a protocol."""
    if str(name) not in _included():
        from kedge.benchmarks import PROTOCOLS

        if str(name) in PROTOCOLS:
            settings = {"protocol": str(name)}
            return Recipe(str(name), str(name), None, settings, {}, f"protocol {name}")
    file = f"recipe {name}" if str(name) in _included() else str(name)
    return _read(Path(name).stem, file, text(name))


@functools.cache
def _included() -> dict[str, str]:
    """Texts of the recipes that come with kedge, by name."""
    files = sorted(
        resources.files("kedge.experiments.recipes").iterdir(), key=lambda file: file.name
    )
    return {
        file.name.removesuffix(".toml"): file.read_text(encoding="utf-8")
        for file in files
        if file.name.endswith(".toml")
    }


def _read(name: str, file: str, text: str) -> Recipe:
    try:
        settings = tomllib.loads(text)
        check_depth(settings)
    except (ValueError, RecursionError) as error:
        raise KedgeError(f"{file}: not written in TOML ({error}).") from None
    title, table = settings.pop("title", None), settings.pop("paper", None)
    parts = settings.pop("parts", {})
    _check(isinstance(title, str) and bool(title), file, "title", "must be one sentence")
    known = paper.tables()
    named = table is None or (isinstance(table, str) and table in known)
    _check(named, file, "paper", f"must be one of {', '.join(known)}")
    tables = isinstance(parts, dict) and all(isinstance(part, dict) for part in parts.values())
    _check(tables, file, "parts", 'must be tables of settings, such as [parts."1-shot"]')
    plain = [re.sub(r"[^a-z0-9]+", "-", part.lower()).strip("-") for part in parts]
    _check(
        all(plain) and len(set(plain)) == len(plain), file, "parts",
        "must have names that differ in more than capitals and signs, with a Latin letter or digit",
    )  # fmt: skip
    for part, patch in parts.items():
        named = isinstance(patch.get("data", ""), str)
        _check(named, f"{file}, part '{part}'", "data", "must be the name of a folder or file")
    recipe = Recipe(name, title, table, settings, parts, file)
    base = recipe.base()
    for part, patch in parts.items():
        _patched(base, patch, f"{file}, part '{part}'")
    # A default exists, but it is for the command: a file without a protocol is a mistake.
    named = "protocol" in settings or (bool(parts) and all("protocol" in p for p in parts.values()))
    _check(named, file, "protocol", 'must be named, such as protocol = "drawings"')
    return recipe


def _check(holds: bool, file: str, key: str, sentence: str) -> None:
    if not holds:
        raise KedgeError(f"{file}: {key} {sentence}.")


def _patched(base: Experiment, patch: Settings, file: str) -> Experiment:
    from kedge.experiments.experiment import Experiment

    try:
        return from_dict(Experiment, _merged(asdict(base), patch))
    except KedgeError as error:
        key = _culprit(base, patch, str(error))
        raise KedgeError(f"{file}: {f'{key}: ' if key else ''}{error}") from None


def _merged(settings: Settings, patch: Settings) -> Settings:
    """Settings with those of the patch; nested tables are merged."""
    out = dict(settings)
    for key, value in patch.items():
        nested = isinstance(value, dict) and isinstance(out.get(key), dict)
        out[key] = _merged(out[key], value) if nested else value
    return out


def _culprit(base: Experiment, patch: Settings, message: str) -> str | None:
    """The key that raises the same error when it is set alone."""
    from kedge.experiments.experiment import Experiment

    for key, single in _leaves(patch):
        try:
            from_dict(Experiment, _merged(asdict(base), single))
        except KedgeError as error:
            if str(error) == message:
                return key
    return None


def _at(settings: Settings, key: str) -> Any:
    for part in key.split("."):
        settings = settings[part]
    return settings


def _leaves(patch: Settings) -> Iterator[tuple[str, Settings]]:
    """Each single setting by its dotted name: ("episode.n_way", {"episode": {"n_way": 5}})."""
    for key, value in patch.items():
        if isinstance(value, dict):
            for name, inner in _leaves(value):
                yield f"{key}.{name}", {key: inner}
        else:
            yield key, {key: value}
