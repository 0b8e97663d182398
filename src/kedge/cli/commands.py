"""All commands by their names.

Each is a dataclass whose fields are its options. Heavy imports stand inside `run`, so that help
and `kedge paper` answer at once.
"""

from kedge.cli.bench import (
    Bench,
    Paper,
    Recipes,
    Report,
)
from kedge.cli.data import Inspect, Pack
from kedge.cli.evaluate import Evaluate
from kedge.cli.export import Export
from kedge.cli.predict import Predict
from kedge.cli.show import Show
from kedge.cli.speed import Speed
from kedge.cli.train import Train, Update

COMMANDS = {
    "bench": Bench,
    "train": Train,
    "update": Update,
    "evaluate": Evaluate,
    "predict": Predict,
    "show": Show,
    "export": Export,
    "data inspect": Inspect,
    "data pack": Pack,
    "report": Report,
    "recipes": Recipes,
    "paper": Paper,
    "speed": Speed,
}
