"""The result in one sentence, the title of a report, and what each method does."""

from __future__ import annotations

import re

from kedge.experiments import paper
from kedge.experiments.records import Record, RecordSet
from kedge.report import queries
from kedge.report.format import listing, number, pool_phrase, signed
from kedge.report.paper_comparison import counterparts, order_sentence

METHODS = {
    "NU": "no update: the base model, unchanged",
    "FT": "fine-tuning: trains on the new classes alone",
    "DFA": "direct feature alignment: fine-tuning with a penalty on changes of the features",
    "IDA": "indirect discriminant alignment: fine-tuning with a penalty on changes of the class "
    "probabilities over the anchors of old classes",
    "IDA+": "IDA for many updates: all anchors in each step, λ = √(n_old/n_new), no DropBlock, and "
    "weights merged with the old ones if there are more old classes than new ones",
    "EIML": "exemplar-based incremental meta-learning: fine-tuning that also rehearses stored "
    "images of old classes",
    "EWC": "elastic weight consolidation: fine-tuning with a penalty on changes of the weights "
    "that matter for old classes",
    "PAR": "paragon: trains on the images of all classes so far, which the others may not see",
}


def headline(record: Record) -> str:
    """The result of IDA against fine-tuning, or against another method, in one sentence."""
    round, lead = queries.final_round(record), queries.lead_methods(record)[0]
    pools = queries.table_pools(record, round)
    others = [m for m in queries.methods_after(record, round) if m != lead]
    order = ("FT", *(m for m in others if not queries.is_reference(m)), *others)
    rival = next((m for m in order if m in others), None)
    after = f"After round {round}: " if len(queries.incremental_rounds(record)) > 1 else ""
    if rival is None:
        scores = [(pool, queries.score(record, lead, round, pool.name)) for pool in pools]
        values = [f"{number(s.mean)}% on {pool_phrase(p)}" for p, s in scores if s is not None]
        return f"{after}{lead} reaches {listing(values or ['no scores'])}."
    outcomes: dict[int, list[str]] = {1: [], -1: [], 0: []}
    for pool in pools:
        ours, theirs = (queries.score(record, m, round, pool.name) for m in (lead, rival))
        difference = queries.difference(record, lead, rival, round, pool.name)
        if difference is not None and ours is not None and theirs is not None:
            means = f"{number(ours.mean)}% against {number(theirs.mean)}%"
            text = f"{pool_phrase(pool)} ({means}: {' ± '.join(signed(difference))})"
            outcomes[queries.sign(difference)].append(text)
    words = {1: "ahead on", -1: "behind on", 0: "not clearly different on"}
    clauses = [f"{words[sign]} {listing(texts)}" for sign, texts in outcomes.items() if texts]
    name = f"{METHODS[rival].partition(':')[0]} ({rival})" if rival in METHODS else rival
    if not clauses:
        return f"{lead} and {name} were not tested on the same classes."
    return f"{after}Against {name}, {lead} is {'; '.join(clauses)}."


def headlines(record_set: RecordSet) -> list[str]:
    """The result of a record; of several parts, the agreement with the paper, then each part."""
    if "" in record_set.parts:
        return [headline(record_set.parts[""])]
    sentences = [f"{part}: {headline(record)}" for part, record in record_set.parts.items()]
    if record_set.paper is None:
        return sentences
    table = paper.table(record_set.paper)
    return [order_sentence(counterparts(record_set, table), table), *sentences]


def report_title(record_set: RecordSet) -> str:
    """The title of the recipe; without one 'mine: Drawings, split at random, 5-way 5-shot'."""
    if record_set.title != record_set.name:
        return record_set.title.removesuffix(".")
    record = next(iter(record_set.parts.values()))
    about = re.split(r"[:;(]", record.sentence)[0].strip().rstrip(".")
    facts = ", ".join(filter(None, [about, str(queries.train_shape(record) or "")]))
    return ": ".join(filter(None, [record_set.name, facts]))
