"""Render the results from the committed records.

python -m reproduction                     docs/results.md, docs/many-updates.md, their figures and
                                           reproduction/claims.md, the flowers in
                                           docs/is-this-for-me.md
python -m reproduction --records           first the tables and figures beside every record
python -m reproduction --records NAME ...  the same beside some records
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path

from kedge.experiments.records import INDEX
from reproduction.claims import Evidence
from reproduction.figure import forest_plot, to_svg
from reproduction.flowers import flowers_figure, flowers_section, insert_section, load_flowers
from reproduction.many_updates import FIFTEEN, many_updates_page, rounds_figure
from reproduction.pages import claims_page, effects_grid, results_page
from reproduction.studies import RECORDS, load_records

ROOT = Path(__file__).resolve().parents[1]


def render_pages(evidence: Evidence) -> dict[Path, bytes]:
    """Path within the repository → content, for every generated page and figure."""
    flowers = load_flowers()
    section = flowers_section(flowers)
    single = {name: each.parts[""] for name, each in evidence.records.items() if "" in each.parts}
    page = Path("docs/is-this-for-me.md")
    text = (ROOT / page).read_text(encoding="utf-8")
    return {
        page: insert_section(text, section).encode(),
        Path("docs/figures/flowers.svg"): to_svg(flowers_figure(flowers)),
        Path("docs/many-updates.md"): many_updates_page(single).encode(),
        Path("docs/figures/many-rounds.svg"): to_svg(rounds_figure(single[FIFTEEN])),
        Path("docs/results.md"): results_page(evidence).encode(),
        Path("docs/figures/results-effects.svg"): to_svg(forest_plot(effects_grid(evidence))),
        Path("reproduction/claims.md"): claims_page(evidence).encode(),
    }


def render_records(names: Sequence[str]) -> None:
    """Renew the reports beside the records; only files that are kept there already."""
    from kedge.report.record_report import (  # slow to import: needs PyTorch
        write_record_set,
        write_report,
    )

    records = load_records()
    for name in names or records:
        folder, record_set = RECORDS / name, records[name]
        with tempfile.TemporaryDirectory() as temporary:
            if (folder / INDEX).exists():
                write_record_set(record_set, temporary)
            else:
                write_report(record_set.parts[""], temporary)
            for file in (path for path in Path(temporary).rglob("*") if path.is_file()):
                kept = folder / file.relative_to(temporary)
                if kept.exists():
                    shutil.copyfile(file, kept)
        print(folder.relative_to(ROOT))


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m reproduction", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--records", nargs="*", metavar="NAME", help="renew reports of records")
    names = parser.parse_args().records
    if names is not None:
        render_records(names)
    for path, content in render_pages(Evidence()).items():
        (ROOT / path).write_bytes(content)
        print(path)


if __name__ == "__main__":
    main()
