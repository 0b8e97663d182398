"""All commands by their names.

Each is a dataclass whose fields are its options. Heavy imports stand inside `run`, so that help
and `kedge paper` answer at once.
"""

from kedge.cli.bench import Bench, Paper, Recipes, Report
from kedge.cli.data import Inspect, Pack
from kedge.cli.models import Evaluate, Predict, Train, Update
from kedge.cli.speed import Speed

COMMANDS = {
    "bench": Bench,
    "train": Train,
    "update": Update,
    "evaluate": Evaluate,
    "predict": Predict,
    "data inspect": Inspect,
    "data pack": Pack,
    "report": Report,
    "recipes": Recipes,
    "paper": Paper,
    "speed": Speed,
}
