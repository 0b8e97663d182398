"""All commands by their names.

Each is a dataclass whose fields are its options. Heavy imports are inside `run`, so that help is
fast.
"""

from kedge.cli.bench import Bench
from kedge.cli.compare import Compare
from kedge.cli.data import Inspect, Pack
from kedge.cli.evaluate import Evaluate
from kedge.cli.export import Export
from kedge.cli.paper import Paper
from kedge.cli.predict import Predict
from kedge.cli.recipes import Recipes
from kedge.cli.report import Report
from kedge.cli.show import Show
from kedge.cli.speed import Speed
from kedge.cli.train import Train
from kedge.cli.update import Update

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
    "data compare": Compare,
    "report": Report,
    "recipes": Recipes,
    "paper": Paper,
    "speed": Speed,
}
